"""What recipes share that replace `nn.Linear` by an FP8 layer, under bf16 autocast or over bf16 weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import nn

from halfstep.errors import Invalid
from halfstep.recipes.linears import LinearUse, Plan, plan_linears
from halfstep.recipes.precision.bf16 import Bf16
from halfstep.recipes.requirements import require_compute_capability


class Fp8Linears(Bf16):
    """Plans by the rule of 16 and says what was converted; `convert` is the recipe's own part."""

    gemm: ClassVar[str] = "fp8"
    needs: ClassVar[tuple[int, int]] = (8, 9)
    """compute capability of the oldest GPU that can do it"""

    def __init__(self, device: torch.device, weights: torch.dtype) -> None:
        super().__init__(device, weights)
        require_compute_capability(device, self.needs, "FP8")
        self.planned = Plan((), {})

    def plan(self, linears: Sequence[LinearUse], batch: int) -> None:
        self.planned = plan_linears(linears, batch)

    def prepare(self, model: nn.Module) -> dict[str, Any]:
        before = {name: module for name, module in model.named_modules() if isinstance(module, nn.Linear)}
        self.convert(model, frozenset(self.planned.convert))
        after = dict(model.named_modules())
        left = [name for name in self.planned.convert if after[name] is before[name]]
        if left:
            raise Invalid(f"{len(left)} linear layers were left in bf16 that should be FP8, such as {left[0]!r}")
        return {"linears_converted": list(self.planned.convert), "linears_skipped": self.planned.skip}

    def convert(self, model: nn.Module, names: frozenset[str]) -> None:
        """Replace these linear layers of the model, each by one with the same parameters."""
        raise NotImplementedError


def replace(model: nn.Module, name: str, module: nn.Module) -> None:
    """Put `module` where `name` stands in the model."""
    parent, _, child = name.rpartition(".")
    setattr(model.get_submodule(parent), child, module)
