"""Normalisation layers with timm's epsilon for ViT: functions from the width to a module on the default device."""

from typing import Any

import torch
from torch import nn

from halfstep.recipes.requirements import load, require_gpu

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
    return _on_a_gpu("Transformer Engine", "transformer_engine.pytorch").LayerNorm(width, eps=EPSILON)


def te_rmsnorm(width: int) -> nn.Module:
    return _on_a_gpu("Transformer Engine", "transformer_engine.pytorch").RMSNorm(width, eps=EPSILON)


def liger_layernorm(width: int) -> nn.Module:
    return _on_a_gpu("Liger", "liger_kernel.transformers").LigerLayerNorm(width, eps=EPSILON)


def liger_rmsnorm(width: int) -> nn.Module:
    return _on_a_gpu("Liger", "liger_kernel.transformers").LigerRMSNorm(width, eps=EPSILON)


def _apex() -> Any:
    _on_a_gpu("Apex", "fused_layer_norm_cuda")  # without it Apex's modules would silently be torch's
    return load("apex.normalization")


def _on_a_gpu(what: str, module: str) -> Any:
    require_gpu(torch.get_default_device(), what)
    return load(module)
