"""Normalisation layers: each a function from the width to a module, with timm's epsilon for ViT."""

from typing import Any

from torch import nn

from halfstep.recipes.libraries import load

EPSILON = 1e-6


def layernorm(width: int) -> nn.Module:
    return nn.LayerNorm(width, eps=EPSILON)


def rmsnorm(width: int) -> nn.Module:
    return nn.RMSNorm(width, eps=EPSILON)


def apex_layernorm(width: int) -> nn.Module:
    return _apex().FusedLayerNorm(width, eps=EPSILON)


def apex_rmsnorm(width: int) -> nn.Module:
    return _apex().FusedRMSNorm(width, eps=EPSILON)


def te_layernorm(width: int) -> nn.Module:
    return load("transformer_engine.pytorch").LayerNorm(width, eps=EPSILON)


def te_rmsnorm(width: int) -> nn.Module:
    return load("transformer_engine.pytorch").RMSNorm(width, eps=EPSILON)


def liger_layernorm(width: int) -> nn.Module:
    return load("liger_kernel.transformers").LigerLayerNorm(width, eps=EPSILON)


def liger_rmsnorm(width: int) -> nn.Module:
    return load("liger_kernel.transformers").LigerRMSNorm(width, eps=EPSILON)


def _apex() -> Any:
    load("fused_layer_norm_cuda")  # without it Apex's modules would silently be torch's
    return load("apex.normalization")
