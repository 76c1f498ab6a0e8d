"""Float8Linear, value by value, and the conversion of a model."""

from __future__ import annotations

from typing import Any

import grimp
import pytest
import torch
from reference import E4M3, E5M2, assert_rounded, products
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from halfstep.fp8.linear import Float8Linear, convert
from halfstep.fp8.synchronise import Synchroniser

M, K, N = 48, 32, 64
# name: (dtype of the weights, autocast) -> dtype of the output is bf16 but for fp32 without autocast
MODES = {
    "fp32 weights under autocast": (torch.float32, True),
    "bf16 weights": (torch.bfloat16, False),
    "fp32": (torch.float32, False),
}


def layer(dtype: torch.dtype = torch.float32, bias: bool = True, **flags: Any) -> Float8Linear:
    torch.manual_seed(0)
    return Float8Linear(nn.Linear(K, N, bias=bias).to(dtype), emulate=True, **flags)


def tensors(dtype: torch.dtype, spread: float = 1.0) -> tuple[torch.Tensor, torch.Tensor]:
    """x [M, K] and the gradient [M, N] of the output; the gradient small, as gradients are."""
    generator = torch.Generator().manual_seed(1)
    x = spread * torch.randn(M, K, generator=generator)
    grad = 1e-4 * spread * torch.randn(M, N, generator=generator)
    return x.to(dtype), grad.to(dtype)


def run(
    linear: Float8Linear, x: torch.Tensor, grad: torch.Tensor, autocast: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None]:
    x = x.clone().requires_grad_()
    linear.zero_grad()
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        out = linear(x)
    out.backward(grad)
    assert x.grad is not None and linear.weight.grad is not None
    return out, x.grad, linear.weight.grad, None if linear.bias is None else linear.bias.grad


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("mode", MODES)
def test_the_first_step_is_right(mode: str, bias: bool) -> None:
    dtype, autocast = MODES[mode]
    linear = layer(dtype, bias)
    x, grad = tensors(dtype)
    if autocast:
        grad = grad.bfloat16()
    out, *gradients = run(linear, x, grad, autocast)
    assert out.dtype == (torch.bfloat16 if autocast else dtype)
    # autocast casts the input to bf16 first, as it does for any linear layer
    seen = x.bfloat16() if autocast else x
    seen_bias = None if linear.bias is None else linear.bias.to(out.dtype)
    exact, *exact_gradients = products(seen, linear.weight, seen_bias, grad)
    assert_rounded(out, exact)
    assert {gradient.dtype for gradient in gradients if gradient is not None} == {dtype}
    assert_rounded(gradients[1], exact_gradients[1])
    if bias:
        assert_rounded(gradients[2], exact_gradients[2])
    # that of an fp32 input passes autocast's cast on its way back
    assert_rounded(gradients[0].to(out.dtype), exact_gradients[0])


@pytest.mark.parametrize("mode", MODES)
def test_later_steps_cast_with_the_scales_of_earlier_ones_and_clip(mode: str) -> None:
    dtype, autocast = MODES[mode]
    linear = layer(dtype)
    synchronise = Synchroniser(nn.Sequential(linear))
    x, grad = tensors(torch.bfloat16 if autocast else dtype)
    run(linear, x, grad, autocast)
    synchronise()
    scales = tuple(form.scale(t.abs().max()) for form, t in ((E4M3, x), (E4M3, linear.weight.detach()), (E5M2, grad)))
    assert [linear.scale_x, linear.scale_w, linear.scale_g] == list(scales)
    wide_x, wide_grad = tensors(x.dtype, spread=3.0)
    out, grad_x, grad_weight, grad_bias = run(linear, wide_x, wide_grad, autocast)
    exact = products(wide_x, linear.weight, linear.bias.to(out.dtype), wide_grad, scales)
    for actual, expected in zip((out, grad_x, grad_weight, grad_bias), exact, strict=True):
        assert actual is not None
        assert_rounded(actual, expected)
    unclipped = products(wide_x, linear.weight, linear.bias.to(out.dtype), wide_grad)
    assert (exact[0] - unclipped[0]).norm() > 0.05 * unclipped[0].norm()  # so the test does clip
    assert linear.amax_x.item() == wide_x.abs().max().item()  # what was seen, not what was held
    assert linear.amax_g.item() == wide_grad.abs().max().item()


def test_without_amax_init_the_first_step_casts_with_the_scale_1_which_clips_and_flushes() -> None:
    linear = layer(amax_init=False)
    x, grad = tensors(torch.float32)
    x, grad = 1e3 * x, 1e-2 * grad  # beyond the largest e4m3, below the smallest e5m2
    out, *gradients = run(linear, x, grad, autocast=False)
    exact = products(x, linear.weight, linear.bias, grad, (torch.ones(1),) * 3)
    assert_rounded(out, exact[0])
    assert gradients[0].count_nonzero() == gradients[1].count_nonzero() == 0
    right = run(layer(), x, grad, autocast=False)
    truth = x @ linear.weight.t() + linear.bias
    assert (out - truth).norm() > 0.3 * truth.norm()
    assert (right[0] - truth).norm() < 0.1 * truth.norm()
    assert (right[2] - grad.t() @ x).norm() < 0.1 * (grad.t() @ x).norm()


def test_the_second_step_without_amax_init_is_that_of_the_first_with_it() -> None:
    late, early = layer(amax_init=False), layer()
    x, grad = tensors(torch.float32)
    first = run(early, x, grad, autocast=False)
    run(late, x, grad, autocast=False)
    Synchroniser(nn.Sequential(late))()
    second = run(late, x, grad, autocast=False)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_leading_dimensions_are_rows() -> None:
    linear = layer()
    x = torch.randn(2, 3, 8, K, generator=torch.Generator().manual_seed(2))
    assert linear(x).shape == (2, 3, 8, N)
    assert torch.equal(linear(x).flatten(0, 2), linear(x.flatten(0, 2)))


def test_any_memory_layout_gives_the_same() -> None:
    linear = layer()
    x, grad = tensors(torch.float32)
    expected = run(linear, x, grad, autocast=False)
    got = run(linear, x.t().contiguous().t(), grad.t().contiguous().t(), autocast=False)
    assert all(torch.equal(a, b) for a, b in zip(expected[:3], got[:3], strict=True))
    torch.testing.assert_close(expected[3], got[3])  # the sum of the bias's gradient takes another order


def test_an_all_zero_gradient_gives_zeros() -> None:
    linear = layer()
    x, grad = tensors(torch.float32)
    _, *gradients = run(linear, x, torch.zeros_like(grad), autocast=False)
    assert all(gradient is not None and not gradient.any() for gradient in gradients)


def test_what_is_saved_for_backward_is_fp8() -> None:
    linear, saved = layer(), []
    x, _ = tensors(torch.bfloat16)
    with (
        torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t),
        torch.autocast("cpu", torch.bfloat16),
    ):
        linear(x)
    big = [tensor for tensor in saved if tensor.numel() > 1]
    assert sorted((tuple(t.shape), t.dtype) for t in big) == [
        ((K, M), torch.float8_e4m3fn),
        ((K, N), torch.float8_e4m3fn),
    ]


def test_no_gradient_is_computed_for_an_input_that_needs_none(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    real = torch._scaled_mm
    monkeypatch.setattr(torch, "_scaled_mm", lambda *args, **kwargs: calls.append(args) or real(*args, **kwargs))
    linear = layer()
    x, grad = tensors(torch.float32)
    linear(x).backward(grad)
    assert len(calls) == 2
    assert [(a.dtype, b.dtype) for a, b in calls] == [
        (torch.float8_e4m3fn, torch.float8_e4m3fn),
        (torch.float8_e5m2, torch.float8_e4m3fn),
    ]


@pytest.mark.parametrize("mode", MODES)
def test_operands_are_laid_out_and_summed_as_the_hardware_wants_it(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    dtype, autocast = MODES[mode]
    calls = []
    real = torch._scaled_mm
    monkeypatch.setattr(
        torch, "_scaled_mm", lambda *args, **kwargs: calls.append((args, kwargs)) or real(*args, **kwargs)
    )
    x, grad = tensors(torch.bfloat16 if autocast else dtype)
    run(layer(dtype), x, grad, autocast)
    assert [kwargs["use_fast_accum"] for _, kwargs in calls] == [True, False, False]
    for (a, b), kwargs in calls:
        assert a.is_contiguous()
        assert b.t().is_contiguous()
        # torch's own checks for CUDA, by its shape functions: they need no GPU
        with FakeTensorMode():
            fake = {
                name: torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="cuda")
                if isinstance(value, torch.Tensor)
                else value
                for name, value in {"self": a, "mat2": b, **kwargs}.items()
            }
            out = torch.ops.aten._scaled_mm(**fake)
        assert (out.shape, out.dtype) == ((a.shape[0], b.shape[1]), kwargs["out_dtype"])


def test_amaxes_gather_over_forward_passes_until_they_are_synchronised() -> None:
    """Two micro-batches, both backward passes after both forward passes: the version counters allow it, too."""
    linear = layer()
    synchronise = Synchroniser(nn.Sequential(linear))
    x, grad = tensors(torch.float32)
    outs = [linear(factor * x) for factor in (2.0, 1.0)]
    for factor, out in zip((3.0, 1.0), outs, strict=True):
        out.backward(factor * grad)
    assert linear.amax_x.item() == 2 * x.abs().max().item()
    assert linear.amax_g.item() == (3 * grad).abs().max().item()
    synchronise()
    assert linear.amax_x.item() == linear.amax_w.item() == linear.amax_g.item() == 0


def test_a_forward_pass_without_gradients_leaves_no_trace() -> None:
    linear = layer(pre_and_post_forward=True)
    x, _ = tensors(torch.float32)
    with torch.no_grad():
        first = linear(x)
        linear(100 * x)
    assert linear.amax_x.item() == linear.amax_w.item() == 0
    assert torch.equal(first, linear(x).detach())


def test_with_pre_and_post_forward_forgetting_to_synchronise_is_an_error() -> None:
    linear = layer(pre_and_post_forward=True)
    synchronise = Synchroniser(nn.Sequential(linear))
    x, grad = tensors(torch.float32)
    for _ in range(2):
        linear(x).backward(grad)
        synchronise()
    linear(x)
    with pytest.raises(RuntimeError, match="not synchronised since the last forward pass"):
        linear(x)


def test_without_it_forgetting_goes_unseen_as_in_the_article() -> None:
    linear = layer()
    x, grad = tensors(torch.float32)
    for _ in range(2):
        linear(x).backward(grad)


@pytest.mark.parametrize("sizes", [(30, 32), (32, 30), (8, 16)])
def test_odd_features_are_refused_in_a_sentence(sizes: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match=rf"divide by 16; this layer has {sizes[0]} in and {sizes[1]} out"):
        Float8Linear(nn.Linear(*sizes))


def test_odd_rows_are_refused_in_a_sentence() -> None:
    with pytest.raises(ValueError, match="rows that divide by 16; this input has 6"):
        layer()(torch.ones(2, 3, K))


def test_the_library_knows_nothing_of_the_rest_of_the_package() -> None:
    graph = grimp.build_graph("halfstep", cache_dir=None)
    modules = graph.find_descendants("halfstep.fp8")
    imported = set().union(*map(graph.find_modules_directly_imported_by, modules))
    assert len(modules) >= 3
    assert imported <= modules


class Shared(nn.Module):
    """Holds one layer in two places, a layer to leave, and a subclass of nn.Linear."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(16, 16)
        self.inner = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16, bias=False))
        self.again = self.first
        self.odd = nn.Linear(16, 10)
        self.attention = nn.MultiheadAttention(16, 2)


def test_conversion_shares_the_parameters_and_changes_no_name() -> None:
    model = Shared()
    parameters = dict(model.named_parameters())
    state = list(model.state_dict())
    model.inner.eval()
    converted = convert(model, lambda name, linear: linear.out_features % 16 == 0, emulate=True)
    assert converted == ["first", "inner.0", "inner.2"]
    assert model.first is model.again
    assert type(model.first) is type(model.inner[0]) is type(model.inner[2]) is Float8Linear
    assert type(model.odd) is nn.Linear
    assert not isinstance(model.attention.out_proj, Float8Linear)
    assert dict(model.named_parameters()).keys() == parameters.keys()
    assert all(parameter is parameters[name] for name, parameter in model.named_parameters())
    assert list(model.state_dict()) == state
    assert not model.inner[0].training
    assert model.first.training


def test_the_choice_sees_the_name_and_a_lone_layer_is_refused() -> None:
    model = Shared()
    assert convert(model, lambda name, _: name.startswith("inner."), emulate=True) == ["inner.0", "inner.2"]
    assert type(model.first) is nn.Linear
    with pytest.raises(ValueError, match="lone linear layer"):
        convert(nn.Linear(16, 16), lambda *_: True)


def test_a_model_that_changes_its_dtype_keeps_its_scales() -> None:
    model = nn.Sequential(layer())
    synchronise = Synchroniser(model)
    x, grad = tensors(torch.float32)
    run(model[0], x, grad, autocast=False)
    synchronise()
    scale = model[0].scale_x.clone()
    model.to(torch.bfloat16)
    assert model[0].weight.dtype == torch.bfloat16
    assert model[0].scale_x.dtype == torch.float32
    assert torch.equal(model[0].scale_x, scale)
    assert run(model[0], x.bfloat16(), grad.bfloat16(), autocast=False)[0].dtype == torch.bfloat16
    assert model.to("meta")[0].amax_x.device.type == "meta"
