"""timm's Vision Transformer as ViT-Huge: 632 M parameters, mean pooling, 256x256 images in 256 patches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from timm.models.vision_transformer import VisionTransformer
from torch import nn
from torch.nn import functional

from halfstep.workloads.workload import Batch, NormFactory, Workload


def build(norm: NormFactory, **size: Any) -> nn.Module:
    def norm_layer(width: int, **_: Any) -> nn.Module:
        # timm adds device= and dtype=, which the surrounding torch.device already says
        return norm(width)

    return VisionTransformer(class_token=False, global_pool="avg", norm_layer=norm_layer, **size)


def blocks(model: nn.Module) -> Sequence[nn.Module]:
    return list(cast(nn.Sequential, model.blocks))


def batch(n: int, index: int, generator: torch.Generator, *, img_size: int, num_classes: int, **_: Any) -> Batch:
    """Random images [n, 3, img_size, img_size] fp32 and labels [n] int64: the sample's number mod the classes."""
    images = torch.randn(n, 3, img_size, img_size, generator=generator, device=generator.device)
    labels = (torch.arange(n, device=generator.device) + n * index) % num_classes
    return images, labels


def loss(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Cross-entropy, in fp32 as autocast does it."""
    return functional.cross_entropy(model(images).float(), labels)


def samples(n: int, **_: Any) -> int:
    return n


VIT_HUGE = Workload(
    unit="images",
    sizes={
        "full": {"img_size": 256, "embed_dim": 1280, "num_classes": 1024, "depth": 32, "num_heads": 16},
        "smoke": {"img_size": 64, "embed_dim": 64, "num_classes": 16, "depth": 2, "num_heads": 2},
    },
    build=build,
    blocks=blocks,
    batch=batch,
    loss=loss,
    samples=samples,
)
