"""What FP8 layers cannot do ends in a sentence; what they can only emulate is emulated when that was asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from blocks import KINDS, WIDTH, block, data, fused
from torch import nn

from halfstep.fp8 import device, operators
from halfstep.fp8.fuse import fuse
from halfstep.fp8.linear import Float8Linear, convert
from halfstep.fp8.products import scaled_product
from halfstep.fp8.scaling import E4M3, E5M2
from halfstep.fp8.synchronise import Synchroniser

K, N = 32, 48


def layer(**flags: Any) -> Float8Linear:
    torch.manual_seed(0)
    return Float8Linear(nn.Linear(K, N), emulate=True, **flags)


CONTEXTS = {"plain": torch.enable_grad, "autocast": lambda: torch.autocast("cpu", torch.bfloat16)}


@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.int64, torch.bool, torch.complex64, torch.float8_e4m3fn])
@pytest.mark.parametrize("kind", ["linear", "block"])
def test_an_input_of_another_dtype_is_refused_under_autocast_too(kind: str, dtype: torch.dtype, context: str) -> None:
    model, sizes = (layer(), (16, K)) if kind == "linear" else (fused("timm"), (2, 24, WIDTH))
    with CONTEXTS[context](), pytest.raises(TypeError, match=rf"fp32, bf16, fp16; this input is {dtype}"):
        model(torch.ones(sizes).to(dtype))


@pytest.mark.parametrize(
    ("sizes", "sentence"),
    [
        ((0, K), "rows that divide by 16; this input has 0"),
        ((4, 0, K), "rows that divide by 16; this input has 0"),
        ((24, K), "rows that divide by 16; this input has 24"),
        ((K,), "rows that divide by 16; this input has 1"),
        ((16, N), r"the last size of the input has to be 32; its sizes are \[16, 48\]"),
        ((16, 2 * K), r"the last size of the input has to be 32; its sizes are \[16, 64\]"),
        ((), r"the last size of the input has to be 32; its sizes are \[\]"),
    ],
)
def test_an_input_of_other_sizes_is_refused(sizes: tuple[int, ...], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        layer()(torch.ones(sizes))


@pytest.mark.parametrize(
    ("sizes", "sentence"),
    [
        ((0, 16, WIDTH), "rows that divide by 16; this input has 0"),
        ((2, 24, WIDTH // 2), "the last size of the input has to be 64"),
        ((48, WIDTH), r"a block takes \[batch, tokens, width\]; the sizes of this input are \[48, 64\]"),
    ],
)
def test_a_block_refuses_them_too(sizes: tuple[int, ...], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        fused("timm")(torch.ones(sizes))


@pytest.mark.parametrize("number", [0, -1, 1.0, 16.5, True, "16", None])
def test_a_history_that_is_no_whole_number_of_steps_is_refused(number: Any) -> None:
    with pytest.raises(ValueError, match=r"history_length has to be a whole number, 1 or more; it is "):
        Synchroniser(nn.Sequential(layer()), history_length=number)


@pytest.mark.parametrize("number", [-1, 0.5, False, "1", None])
def test_a_margin_that_is_no_whole_number_is_refused(number: Any) -> None:
    with pytest.raises(ValueError, match=r"margin has to be a whole number, 0 or more; it is "):
        Synchroniser(nn.Sequential(layer()), margin=number)


def test_converting_twice_is_refused_and_converting_the_rest_is_not() -> None:
    model = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 16))
    assert convert(model, lambda name, _: name == "0", emulate=True) == ["0"]
    with pytest.raises(ValueError, match=r"^0: this layer is in FP8 already: convert it once"):
        convert(model, lambda *_: True, amax_init=False, emulate=True)
    with pytest.raises(ValueError, match=r"this layer is in FP8 already"):
        Float8Linear(model[0], emulate=True)
    assert convert(model, lambda name, _: name == "1", emulate=True) == ["1"]


@pytest.mark.parametrize("sizes", [(0, 16), (16, 0)])
@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
def test_a_layer_without_features_is_refused(sizes: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match=rf"this layer has {sizes[0]} in and {sizes[1]} out"):
        Float8Linear(nn.Linear(*sizes), emulate=True)


def test_a_weight_that_is_split_over_ranks_is_refused() -> None:
    linear = nn.Linear(16, 16)
    linear.weight.device_mesh = "what a DTensor has"
    with pytest.raises(ValueError, match=r"^0: the weight of this layer is a DTensor.*before fully_shard"):
        convert(nn.Sequential(linear), lambda *_: True, emulate=True)


def test_data_parallel_is_refused() -> None:
    """nn.DataParallel copies the model for each GPU in every step."""
    with pytest.raises(RuntimeError, match=r"lose the amaxes .*: use DistributedDataParallel"):
        layer()._replicate_for_data_parallel()


SECOND: dict[str, Callable[[nn.Module, torch.Tensor], object]] = {
    "gradient penalty": lambda model, x: torch.autograd.grad(model(x).sum(), x, create_graph=True),
    "backward": lambda model, x: model(x).square().sum().backward(create_graph=True),
    "Hessian": lambda model, x: torch.autograd.functional.hessian(lambda z: model(z).sum(), x),
}


@pytest.mark.parametrize("what", SECOND)
@pytest.mark.parametrize("kind", ["linear", "block"])
@pytest.mark.filterwarnings("ignore:Using backward")
def test_a_second_derivative_is_refused_and_not_taken_for_zero(kind: str, what: str) -> None:
    model, x = (layer(), torch.ones(16, K)) if kind == "linear" else (fused("timm"), data()[0])
    with pytest.raises(RuntimeError, match="FP8 matrix products have no second derivative"):
        SECOND[what](model, x.requires_grad_())


def test_of_compiled_code_torch_refuses_it() -> None:
    """Which writes amaxes in its backward pass."""
    torch._dynamo.reset()
    x = torch.ones(16, K, requires_grad=True)
    compiled = torch.compile(layer(), backend="aot_eager", fullgraph=True)
    with pytest.raises(RuntimeError, match=r"does not support .* create_graph=True"):
        torch.autograd.grad(compiled(x).sum(), x, create_graph=True)
    torch._dynamo.reset()


@pytest.mark.parametrize("kind", ["linear", "block"])
def test_of_torch_func_and_forward_mode_torch_says_what_is_missing(kind: str) -> None:
    model, x = (layer(), torch.ones(16, K)) if kind == "linear" else (fused("timm"), data()[0])
    with pytest.raises(RuntimeError, match="setup_context"):
        torch.func.grad(lambda z: model(z).sum())(x)
    with pytest.raises(RuntimeError, match="setup_context"):
        torch.func.jvp(lambda z: model(z).sum(), (x,), (x,))
    with torch.autograd.forward_ad.dual_level(), pytest.raises(NotImplementedError, match="jvp"):
        model(torch.autograd.forward_ad.make_dual(x, x))


def test_a_backward_pass_may_be_run_twice() -> None:
    linear = layer()
    loss = linear(torch.ones(16, K)).sum()
    loss.backward(retain_graph=True)
    once = linear.weight.grad.clone()
    loss.backward()
    assert torch.equal(linear.weight.grad, 2 * once)


LACK = r"need an NVIDIA GPU of compute capability 8\.9 or newer, and {}: move the model .* emulate=True, .* for tests"


def test_on_a_cpu_conversion_is_refused_unless_emulation_was_asked_for() -> None:
    model = nn.Sequential(nn.Linear(16, 16))
    with pytest.raises(RuntimeError, match=LACK.format("this is on cpu")):
        convert(model, lambda *_: True)
    assert type(model[0]) is nn.Linear
    with pytest.raises(RuntimeError, match=LACK.format("this is on cpu")):
        Float8Linear(model[0])


@pytest.mark.parametrize("kind", ["linear", "block"])
def test_a_model_of_which_nobody_knew_where_it_would_be_is_refused_at_its_first_forward_pass(kind: str) -> None:
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(16, 16)) if kind == "linear" else block("timm")
    x = torch.ones(16, 16) if kind == "linear" else data()[0]
    convert(model, lambda *_: True)
    fuse(model, KINDS)
    model.to_empty(device="cpu")
    for context in (torch.enable_grad(), torch.no_grad()):
        with context, pytest.raises(RuntimeError, match=LACK.format("this is on cpu")):
            model(x)


def test_compiled_code_refuses_it_too() -> None:
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(16, 16))
    convert(model, lambda *_: True)
    model.to_empty(device="cpu")
    torch._dynamo.reset()
    with pytest.raises(RuntimeError, match=LACK.format("this is on cpu")):
        torch.compile(model[0], backend="aot_eager")(torch.ones(16, 16))
    torch._dynamo.reset()


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[tuple[int, int]], torch.device]]:
    """A GPU of a compute capability, as far as asking goes."""

    def made(capability: tuple[int, int]) -> torch.device:
        device._lacks.cache_clear()
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA A100")
        return torch.device("cuda", 0)

    yield made
    device._lacks.cache_clear()


@pytest.mark.parametrize("capability", [(7, 0), (8, 0), (8, 6)])
def test_an_older_gpu_is_refused_by_name_unless_emulation_was_asked_for(gpu: Any, capability: tuple[int, int]) -> None:
    old = gpu(capability)
    sentence = LACK.format(rf"NVIDIA A100 has {capability[0]}\.{capability[1]}")
    with pytest.raises(RuntimeError, match=sentence):
        device.need_fp8(old, emulate=False)
    device.need_fp8(old, emulate=True)
    # the operator of a GPU asks before it launches anything
    call = operators._on_cuda("transpose", operators.transpose._init_fn)
    with pytest.raises(RuntimeError, match=sentence):
        call(FakeOn(old))
    plain = torch.ones(16, 32).to(E4M3)
    assert torch.equal(call(plain, emulate=True).float(), plain.t().float())


class FakeOn:
    """What is asked of a tensor before a kernel is launched."""

    def __init__(self, device: torch.device) -> None:
        self.device = device


@pytest.mark.parametrize("capability", [(8, 9), (9, 0), (10, 0), (12, 0)])
def test_a_gpu_with_fp8_is_not_refused(gpu: Any, capability: tuple[int, int]) -> None:
    device.need_fp8(gpu(capability), emulate=False)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("bias", [True, False])
def test_an_emulated_product_away_from_the_cpu_is_the_cpus(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, bias: bool
) -> None:
    """Its own arithmetic, run on the CPU by not letting it see that."""
    torch.manual_seed(0)
    a, b = (10 * torch.randn(48, K)).to(E5M2), (10 * torch.randn(N, K)).to(E4M3)
    inverse_a, inverse_b = torch.tensor([0.01]), torch.tensor([0.3])
    arguments = (a, b, inverse_a, inverse_b, dtype)
    added = torch.randn(N) if bias else None
    expected = scaled_product(*arguments, bias=added)
    with monkeypatch.context() as patch:
        patch.setattr(torch, "_scaled_mm", None)
        patch.setattr("halfstep.fp8.products.CPU", "another")
        actual = scaled_product(*arguments, bias=added, emulate=True)
    assert actual.dtype == dtype
    torch.testing.assert_close(actual, expected)


class Overflow(torch.autograd.Function):
    """The gradient that comes back is infinite in one place."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, bad: float) -> torch.Tensor:
        ctx.bad = bad
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        grad = grad.clone(memory_format=torch.contiguous_format)
        grad.view(-1)[5] = ctx.bad
        return grad, None


@pytest.mark.parametrize("first_step", [True, False])
@pytest.mark.parametrize("bad", [float("inf"), float("-inf"), float("nan")])
@pytest.mark.parametrize("kind", ["linear", "attention", "GELU"])
def test_grad_scaler_sees_what_overflowed_in_fp16(
    monkeypatch: pytest.MonkeyPatch, kind: str, bad: float, first_step: bool
) -> None:
    """And skips the step, whether or not a bias is there whose gradient would show it."""
    if kind == "linear":
        model, x = nn.Sequential(nn.Linear(K, N, bias=False), nn.Identity()), torch.ones(16, K)
    else:
        model, x = block("timm", qkv_bias=False, proj_bias=False), data()[0]
    convert(model, lambda *_: True, emulate=True)
    fuse(model, KINDS)
    synchronise = Synchroniser(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    overflows = [False]
    attention = nn.functional.scaled_dot_product_attention
    gradient = operators.gelu_backward

    def spoiled(mixed: torch.Tensor) -> torch.Tensor:
        return Overflow.apply(mixed, bad) if overflows[-1] else mixed

    if kind == "attention":
        monkeypatch.setattr(
            nn.functional, "scaled_dot_product_attention", lambda q, k, v, **flags: attention(spoiled(q), k, v, **flags)
        )
    if kind == "GELU":

        def overflowed(grad: torch.Tensor, *arguments: Any, **flags: Any) -> Any:
            grad = grad.clone()
            if overflows[-1]:
                grad.view(-1)[5] = bad
            return gradient(grad, *arguments, **flags)

        monkeypatch.setattr(operators, "gelu_backward", overflowed)

    def run(overflow: bool) -> list[torch.Tensor]:
        overflows.append(overflow)
        with torch.autocast("cpu", torch.float16):
            out = model(x)
        if kind == "linear":
            out = spoiled(out)
        scaler.scale(out.float().mean()).backward()
        synchronise()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        return [parameter.detach().clone() for parameter in model.parameters()]

    if not first_step:
        run(False)
        assert scaler.get_scale() == 4.0
    before = [parameter.detach().clone() for parameter in model.parameters()]
    assert all(map(torch.equal, run(True), before))
    assert scaler.get_scale() == 2.0
    after = run(False)
    assert not all(map(torch.equal, after, before))
    assert all(parameter.isfinite().all() for parameter in after)
    assert scaler.get_scale() == 2.0
