"""Small blocks, with and without FP8, and a step of them."""

from __future__ import annotations

from typing import Any

import torch
from timm.models.vision_transformer import Block as TimmBlock
from torch import nn

from halfstep.fp8.fuse import fuse
from halfstep.fp8.linear import convert
from halfstep.recipes.norms import layernorm
from halfstep.recipes.precision.native_delayed import LM_BLOCK, TIMM_BLOCK
from halfstep.workloads.lm import Block as LmBlock

BATCH, TOKENS, WIDTH, HEADS = 2, 24, 64, 4
KINDS = [TIMM_BLOCK, LM_BLOCK]
LAYERS = {
    "timm": ("norm1", "attn.qkv", "attn.proj", "norm2", "mlp.fc1", "mlp.fc2"),
    "lm": ("norm1", "attention.qkv", "attention.out", "norm2", "feed_forward.0", "feed_forward.2"),
}


def block(kind: str, **settings: Any) -> nn.Sequential:
    """A model of one block, none of whose parameters is a 0 or a 1."""
    torch.manual_seed(0)
    made = (
        LmBlock(WIDTH, HEADS, layernorm) if kind == "lm" else TimmBlock(WIDTH, HEADS, **{"qkv_bias": True, **settings})
    )
    for parameter in made.parameters():
        nn.init.normal_(parameter, std=0.1) if parameter.dim() > 1 else parameter.data.add_(
            torch.randn_like(parameter) / 4
        )
    return nn.Sequential(made)


def fused(kind: str, dtype: torch.dtype = torch.float32, **flags: Any) -> nn.Sequential:
    model = block(kind).to(dtype)
    convert(model, lambda *_: True, emulate=True, **flags)
    assert fuse(model, KINDS) == (["0"], {})
    return model


def data(dtype: torch.dtype = torch.float32, spread: float = 1.0) -> tuple[torch.Tensor, torch.Tensor]:
    """x and the gradient of the output."""
    generator = torch.Generator().manual_seed(1)
    x, grad = (torch.randn(BATCH, TOKENS, WIDTH, generator=generator) for _ in range(2))
    return (spread * x).to(dtype), (1e-3 * spread * grad).to(dtype)


def step(model: nn.Module, x: torch.Tensor, grad: torch.Tensor, autocast: bool = False) -> dict[str, torch.Tensor]:
    """Output and all gradients by their names."""
    model.zero_grad()
    x = x.clone().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        out = model(x)
    out.backward(grad)
    return {"out": out.detach(), "x": x.grad, **{name: p.grad.clone() for name, p in model.named_parameters()}}


def off(actual: torch.Tensor, exact: torch.Tensor) -> float:
    return float((actual.double() - exact.double()).norm() / exact.double().norm())
