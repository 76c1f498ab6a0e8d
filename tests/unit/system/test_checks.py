"""The comparisons that probes make: what satisfies them, and that what is wrong does not."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from halfstep.system import checks
from halfstep.system.capabilities_apex import AMP_ERRORS, plain_training, weights_change
from halfstep.system.capabilities_te import _layer_in_torch
from halfstep.system.checks import BF16, EXACT, FP8, SIZE, adamw_error, linear_errors, need_between, norm_errors
from halfstep.system.probing import Broken, Missing


class Rounded(torch.autograd.Function):
    """A linear whose operands are rounded as an FP8 recipe rounds them: forward e4m3, gradients e5m2."""

    @staticmethod
    def forward(ctx, inputs, weight, bias):
        inputs, weight = fp8(inputs, torch.float8_e4m3fn), fp8(weight, torch.float8_e4m3fn)
        ctx.save_for_backward(inputs, weight)
        return F.linear(inputs, weight, bias)

    @staticmethod
    def backward(ctx, gradient):
        inputs, weight = ctx.saved_tensors
        rounded = fp8(gradient, torch.float8_e5m2)
        return rounded @ weight, rounded.t() @ inputs, gradient.sum(0)


def fp8(x, dtype):
    scale = x.abs().max() / torch.finfo(dtype).max
    return (x / scale).to(dtype).to(x.dtype) * scale


class Fp8Linear(nn.Linear):
    def forward(self, inputs):
        return Rounded.apply(inputs, self.weight, self.bias)


class Faulty(nn.Linear):
    """Each output by the weights of its neighbour."""

    def forward(self, inputs):
        return F.linear(inputs, self.weight[torch.arange(SIZE).roll(1)], self.bias)


def of(kind):
    def quantized(linear):
        module = kind(SIZE, SIZE, dtype=linear.weight.dtype)
        module.load_state_dict(linear.state_dict())
        return module

    return quantized


def test_fp8_is_within_its_bounds_and_garbage_is_not():
    errors, step = linear_errors(of(Fp8Linear), device="cpu")
    need_between(errors, dict.fromkeys(errors, FP8))
    assert 0.02 < errors["output"] < errors["input's gradient"] < 0.07
    assert step().shape == (SIZE, SIZE)
    errors, _ = linear_errors(of(Faulty), device="cpu")
    with pytest.raises(Broken, match="the output has a relative error of 1e"):
        need_between(errors, dict.fromkeys(errors, FP8))


def test_a_linear_that_was_not_quantized_is_told_from_fp8():
    errors, _ = linear_errors(of(nn.Linear), device="cpu")
    need_between(errors, dict.fromkeys(errors, BF16))
    with pytest.raises(Broken, match="less than the rounding asked for gives"):
        need_between(errors, dict.fromkeys(errors, FP8))


@pytest.mark.parametrize(("recipe", "of_weight"), [("tensorwise", FP8), ("rowwise", FP8), ("rowwise_with_gw_hp", BF16)])
def test_the_recipes_of_torchao_emulated(recipe, of_weight):
    float8 = pytest.importorskip("torchao.float8")
    config = float8.Float8LinearConfig.from_recipe_name(recipe)
    object.__setattr__(config, "emulate", True)

    def quantized(linear):
        return float8.convert_to_float8_training(nn.Sequential(linear), config=config)

    errors, _ = linear_errors(quantized, device="cpu")
    need_between(errors, {**dict.fromkeys(errors, FP8), "weight's gradient": of_weight})


@pytest.mark.parametrize("kind", [nn.LayerNorm, nn.RMSNorm])
def test_a_norm_is_as_exact_as_fp32_and_one_with_another_epsilon_is_not(kind):
    errors, step = norm_errors(kind(SIZE, eps=1e-5), 1e-5, device="cpu")
    assert set(errors) == {"output", "input's gradient", "weight's gradient"} | (
        {"bias's gradient"} if kind is nn.LayerNorm else set()
    )
    need_between(errors, dict.fromkeys(errors, EXACT))
    step()
    errors, _ = norm_errors(kind(SIZE, eps=1e-2), 1e-5, device="cpu")
    with pytest.raises(Broken, match="output has a relative error"):
        need_between(errors, dict.fromkeys(errors, EXACT))


def test_adamw_is_told_from_adam():
    error, _ = adamw_error(torch.optim.AdamW, device="cpu")
    assert error < 1e-5
    error, _ = adamw_error(torch.optim.Adam, device="cpu")
    with pytest.raises(Broken):
        need_between({"change": error}, {"change": EXACT})


def test_no_number_is_broken():
    with pytest.raises(Broken, match="relative error of nan"):
        need_between({"output": float("nan")}, {"output": FP8})


def test_a_kernel_that_did_not_run_is_named_by_what_did(monkeypatch):
    rows = [{"kernel": "nvjet_sm90_tst_128x256"}, {"kernel": "void at::native::elementwise_kernel<4>"}]
    monkeypatch.setattr(checks, "profile_kernels", lambda step: (rows, 1.0))
    with pytest.raises(Broken, match="ran no FP8 matrix product, but nvjet_sm90_tst_128x256, void at"):
        checks.need_fp8_gemm(lambda: None)
    with pytest.raises(Broken, match="no kernel named like Adam"):
        checks.need_kernel(lambda: None, "Adam")
    checks.need_kernel(lambda: None, "elementwise")
    rows.append({"kernel": "nvjet_sm90_qqtst_128x256"})
    checks.need_fp8_gemm(lambda: None)
    rows.clear()
    with pytest.raises(Missing, match="profiler sees no kernels"):
        checks.need_fp8_gemm(lambda: None)


def test_the_reference_of_a_whole_layer_is_torchs_own_layer():
    torch.manual_seed(0)
    width, heads = 64, 4
    torchs = nn.TransformerEncoderLayer(
        width, heads, 4 * width, 0.0, lambda x: F.gelu(x, approximate="tanh"), batch_first=True, norm_first=True
    )
    names = {
        "norm1.": "self_attention.layernorm_qkv.layer_norm_",
        "self_attn.in_proj_": "self_attention.layernorm_qkv.",
        "self_attn.out_proj.": "self_attention.proj.",
        "norm2.": "layernorm_mlp.layer_norm_",
        "linear1.": "layernorm_mlp.fc1_",
        "linear2.": "layernorm_mlp.fc2_",
    }

    class Layer:
        def named_parameters(self):
            for name, parameter in torchs.named_parameters():
                beginning = next(old for old in names if name.startswith(old))
                yield (
                    name.replace(beginning, names[beginning]),
                    nn.Parameter(parameter + 0.1 * torch.randn_like(parameter)),
                )

    layer = dict(Layer().named_parameters())
    with torch.no_grad():
        for (name, parameter), changed in zip(torchs.named_parameters(), layer.values(), strict=True):
            assert parameter.shape == changed.shape, name
            parameter.copy_(changed)
    layer_like = type("Layer", (), {"named_parameters": lambda self: layer.items()})()
    inputs = torch.randn(2, 16, width)
    torch.testing.assert_close(_layer_in_torch(layer_like, inputs, heads), torchs(inputs))


def in_half(model, optimizer):
    """As apex.amp's O2 trains: the model in fp16, its masters in fp32, the loss scaled by 128."""
    half = nn.Linear(*reversed(model.weight.shape), bias=False).half()

    def copy_in(*_):
        with torch.no_grad():
            half.weight.copy_(model.weight)

    def backward(loss):
        (loss * 128).backward()
        model.weight.grad = half.weight.grad.float() / 128
        half.weight.grad = None

    copy_in()
    optimizer.register_step_post_hook(copy_in)
    model.forward = lambda inputs: half(inputs.half()).float()
    return model, optimizer, backward


def test_amps_probe_takes_fp32_for_o0_and_fp16_for_o2_and_neither_for_the_other():
    exact = weights_change(torch.float64, plain_training, "cpu")
    fp32 = checks.relative_error(weights_change(torch.float32, plain_training, "cpu"), exact)
    fp16 = checks.relative_error(weights_change(torch.float32, in_half, "cpu"), exact)
    need_between({"O0": fp32, "O2": fp16}, AMP_ERRORS)
    for swapped in {"O2": fp32}, {"O0": fp16}:
        with pytest.raises(Broken):
            need_between(swapped, AMP_ERRORS)


def test_amps_probe_rejects_steps_that_change_nothing():
    def stuck(model, optimizer):
        return model, torch.optim.SGD(model.parameters(), lr=0.0), lambda loss: loss.backward()

    still = weights_change(torch.float64, stuck, "cpu")
    assert still.norm() == 0
    exact = weights_change(torch.float64, plain_training, "cpu")
    with pytest.raises(Broken):
        need_between({"O0": checks.relative_error(still, exact)}, AMP_ERRORS)
