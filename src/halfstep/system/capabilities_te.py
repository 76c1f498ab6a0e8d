"""Transformer Engine: its linear under each scaling recipe, its whole layer, its optimizer and its norms."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from halfstep.system.libraries import load
from halfstep.system.probing import Missing, Probe

if TYPE_CHECKING:
    import torch
    from torch import nn

MODULE = "transformer_engine.pytorch"


def linear_delayed() -> str:
    """te.Linear in FP8 with delayed scaling, forward and backward, against float64."""
    return _linear("DelayedScaling", "is_fp8_available")


def linear_current() -> str:
    """te.Linear in FP8 with scales of the tensors at hand, forward and backward, against float64."""
    return _linear("Float8CurrentScaling", "is_fp8_available")


def linear_block() -> str:
    """te.Linear in FP8 with a scale per block, forward and backward, against float64."""
    return _linear("Float8BlockScaling", "is_fp8_block_scaling_available")


def linear_mxfp8() -> str:
    """te.Linear in MXFP8, forward and backward, against float64."""
    return _linear("MXFP8BlockScaling", "is_mxfp8_available")


def linear_nvfp4() -> str:
    """te.Linear in NVFP4, forward and backward, against float64."""
    return _linear("NVFP4BlockScaling", "is_nvfp4_available")


def layer() -> str:
    """te.TransformerLayer in FP8 with delayed scaling, forward and backward, against the layer written in torch."""
    import torch

    from halfstep.system.checks import need_between, need_fp8_gemm, percent, relative_error

    te = load(MODULE)
    torch.manual_seed(0)
    width, heads = 1024, 8
    module = te.TransformerLayer(
        width,
        4 * width,
        heads,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        self_attn_mask_type="no_mask",
        fuse_qkv_params=True,
        qkv_weight_interleaved=False,
        attn_input_format="bshd",
        params_dtype=torch.bfloat16,
    )
    with torch.no_grad():
        module.self_attention.layernorm_qkv.weight.mul_(2)  # else the softmax is flat, and attention hardly counts
    inputs = torch.randn(8, 128, width, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    gradient = torch.randn_like(inputs)

    def step() -> torch.Tensor:
        inputs.grad = None
        with _autocast(te, "DelayedScaling"):
            out = module(inputs)
        out.backward(gradient)
        return out

    step()
    out = step()  # with scales from the first
    exact_inputs = inputs.detach().float().requires_grad_()
    exact = _layer_in_torch(module, exact_inputs, heads)
    exact.backward(gradient.float())
    assert inputs.grad is not None and exact_inputs.grad is not None
    # both without the residual, which would hide what the layer adds to it
    errors = {
        "output": relative_error(out.detach().float() - inputs.float(), exact.detach() - exact_inputs.detach()),
        "input's gradient": relative_error(inputs.grad.float() - gradient.float(), exact_inputs.grad - gradient),
    }
    need_between(errors, dict.fromkeys(errors, (0.01, 0.25)))
    need_fp8_gemm(step)
    return f"forward and backward with FP8 kernels, relative errors {percent(errors)}"


def fused_adam() -> str:
    """Steps of Transformer Engine's FusedAdam, against torch's AdamW in float64."""
    from halfstep.system.checks import prove_adamw

    load(MODULE)
    return prove_adamw(load(f"{MODULE}.optimizers").FusedAdam)


def norms() -> str:
    """Transformer Engine's LayerNorm and RMSNorm, forward and backward, against float64."""
    from halfstep.system.checks import prove_norm

    te = load(MODULE)
    kernel = "(?i)transformer_engine|cudnn"
    layernorm = prove_norm(lambda width, eps: te.LayerNorm(width, eps=eps, device="cuda"), kernel)
    rmsnorm = prove_norm(lambda width, eps: te.RMSNorm(width, eps=eps, device="cuda"), kernel)
    return f"LayerNorm: {layernorm}; RMSNorm: {rmsnorm}"


def _autocast(te: Any, recipe: str) -> AbstractContextManager[object]:
    return te.autocast(enabled=True, recipe=getattr(load("transformer_engine.common.recipe"), recipe)())


def _linear(recipe: str, asked: str) -> str:
    """Prove a recipe, after asking Transformer Engine itself by its function `asked`."""
    import torch

    from halfstep.system.checks import FP4, prove_linear

    te = load(MODULE)
    able, why_not = getattr(te, asked)(return_reason=True)
    if not able:
        raise Missing(f"Transformer Engine refuses: {why_not.rstrip('.')}", "use another scaling recipe")

    def quantized(linear: nn.Linear) -> nn.Module:
        module = te.Linear(linear.in_features, linear.out_features, params_dtype=torch.bfloat16)
        with torch.no_grad():
            module.weight.copy_(linear.weight)
            module.bias.copy_(linear.bias)
        return module

    if recipe == "NVFP4BlockScaling":
        return prove_linear(quantized, lambda: _autocast(te, recipe), bounds=FP4)
    return prove_linear(quantized, lambda: _autocast(te, recipe))


def _layer_in_torch(module: Any, inputs: torch.Tensor, heads: int) -> torch.Tensor:
    """The pre-norm layer with the weights of a te.TransformerLayer, in float32."""
    from torch.nn import functional as F

    weights = {name: parameter.detach().float() for name, parameter in module.named_parameters()}

    def norm(x: torch.Tensor, at: str) -> torch.Tensor:
        weight, bias = weights[f"{at}.layer_norm_weight"], weights[f"{at}.layer_norm_bias"]
        return F.layer_norm(x, (x.shape[-1],), weight, bias, 1e-5)

    def linear(x: torch.Tensor, at: str) -> torch.Tensor:
        return F.linear(x, weights[f"{at}weight"], weights[f"{at}bias"])

    batch, length, width = inputs.shape
    qkv = linear(norm(inputs, "self_attention.layernorm_qkv"), "self_attention.layernorm_qkv.")
    q, k, v = qkv.view(batch, length, 3, heads, width // heads).permute(2, 0, 3, 1, 4)
    attended = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(batch, length, width)
    hidden = inputs + linear(attended, "self_attention.proj.")
    widened = linear(norm(hidden, "layernorm_mlp"), "layernorm_mlp.fc1_")
    return hidden + linear(F.gelu(widened, approximate="tanh"), "layernorm_mlp.fc2_")


PROBES = {
    "te_linear_delayed": Probe(linear_delayed, "te", compute_capability=(8, 9), library=MODULE),
    "te_linear_current": Probe(linear_current, "te", compute_capability=(8, 9), library=MODULE),
    "te_linear_block": Probe(linear_block, "te", compute_capability=(9, 0), library=MODULE),
    "te_linear_mxfp8": Probe(linear_mxfp8, "te", compute_capability=(10, 0), library=MODULE),
    "te_linear_nvfp4": Probe(linear_nvfp4, "te", compute_capability=(10, 0), library=MODULE),
    "te_layer": Probe(layer, "te", compute_capability=(8, 9), library=MODULE),
    "te_fused_adam": Probe(fused_adam, "te", library=MODULE),
    "te_norms": Probe(norms, "te", library=MODULE),
}
