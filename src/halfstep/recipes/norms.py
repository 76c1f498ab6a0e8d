"""Normalisation layers: each a function from the width to a module, with timm's epsilon for ViT."""

from torch import nn

EPSILON = 1e-6


def layernorm(width: int) -> nn.Module:
    return nn.LayerNorm(width, eps=EPSILON)


def rmsnorm(width: int) -> nn.Module:
    return nn.RMSNorm(width, eps=EPSILON)
