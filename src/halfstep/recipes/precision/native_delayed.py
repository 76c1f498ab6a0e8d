"""Every linear layer in our own FP8 with delayed scaling, and whole blocks where their activations can be fused."""

from __future__ import annotations

import importlib.util
import os
import shutil
from typing import Any, ClassVar

import torch
from torch import nn

from halfstep.errors import Unsupported
from halfstep.fp8.fuse import BlockKind, fuse
from halfstep.fp8.linear import convert
from halfstep.fp8.synchronise import Synchroniser
from halfstep.recipes.precision.fp8_linears import Fp8Linears

TIMM_BLOCK = BlockKind(
    types={
        "": "timm.models.vision_transformer.Block",
        "attn": "timm.layers.attention.Attention",
        "mlp": "timm.layers.mlp.Mlp",
    },
    norm1="norm1", qkv="attn.qkv", out="attn.proj", norm2="norm2", up="mlp.fc1", gelu="mlp.act", down="mlp.fc2",
    heads="attn.num_heads",
    causal=False,
)  # fmt: skip
# by its name, for recipes do not import workloads
LM_BLOCK = BlockKind(
    types={
        "": "halfstep.workloads.lm.Block",
        "attention": "halfstep.workloads.lm.Attention",
        "feed_forward": "torch.nn.modules.container.Sequential",
    },
    norm1="norm1", qkv="attention.qkv", out="attention.out",
    norm2="norm2", up="feed_forward.0", gelu="feed_forward.1", down="feed_forward.2",
    heads="attention.heads",
    causal=True,
)  # fmt: skip


class NativeDelayed(Fp8Linears):
    """With a right first step: until the first synchronisation each tensor's scale comes from the tensor itself."""

    amax_init: ClassVar[bool] = True
    fuse_blocks: ClassVar[bool] = True

    def __init__(self, device: torch.device, weights: torch.dtype) -> None:
        super().__init__(device, weights)
        _require_triton(device)
        self.emulated = device.type == "cpu"  # for smoke runs

    def convert(self, model: nn.Module, names: frozenset[str]) -> None:
        convert(model, lambda name, _: name in names, amax_init=self.amax_init, emulate=self.emulated)

    def prepare(self, model: nn.Module) -> dict[str, Any]:
        applied = {**super().prepare(model), "emulated": self.emulated}
        if self.fuse_blocks:
            applied["blocks_fused"], applied["blocks_not_fused"] = fuse(model, [TIMM_BLOCK, LM_BLOCK])
        self.synchronise = Synchroniser(model)
        return applied

    def update(self, optimizer: torch.optim.Optimizer) -> None:
        self.synchronise()
        super().update(optimizer)


class NativeDelayedLinears(NativeDelayed):
    """Linear layers one by one: what is left when nothing around them is fused."""

    fuse_blocks: ClassVar[bool] = False


class NativeDelayedNoInit(NativeDelayedLinears):
    """As the article ran it (`enable_amax_init=False`): linear layers, and the first step casts with the scale 1."""

    amax_init: ClassVar[bool] = False


def _require_triton(device: torch.device) -> None:
    """Raises: Unsupported, on a GPU without Triton or the C compiler it builds its launcher with; a CPU passes."""
    if device.type != "cuda":
        return
    what = "our FP8 on a GPU"
    if importlib.util.find_spec("triton") is None:
        raise Unsupported(f"{what} needs Triton, which comes with torch for Linux and CUDA, and it is not installed")
    # in the order of triton/runtime/build.py
    if not os.environ.get("CC") and not any(map(shutil.which, ("gcc", "clang"))):
        raise Unsupported(f"{what} needs a C compiler such as gcc for Triton, and none is on the PATH")
