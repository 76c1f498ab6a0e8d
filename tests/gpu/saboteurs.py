"""Recipes that are not what their names say. A run names them by `modules`, as if they stood in the registry."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from halfstep.recipes.precision.bf16 import Bf16
from halfstep.recipes.precision.native_delayed import NativeDelayed


def identity(width: int) -> nn.Module:
    """A norm that does nothing, and so is faster than any."""
    return nn.Identity()


class SkipsEveryStep(torch.optim.Adam):
    def step(self, closure: Any = None) -> None:
        """Nothing."""


def skips_every_step(parameters: Iterable[nn.Parameter], capturable: bool) -> torch.optim.Optimizer:
    return SkipsEveryStep(parameters, fused=True)


def moves_nothing(parameters: Iterable[nn.Parameter], capturable: bool) -> torch.optim.Optimizer:
    """Launches the kernels of fused Adam for nothing."""
    return torch.optim.Adam(parameters, lr=0.0, fused=True)


class StaysInBf16(Bf16):
    """Says FP8 and converts nothing."""

    gemm = "fp8"


class BrokenScales(NativeDelayed):
    """Delayed scaling without its guard: an amax that was set back to 0 before it was read makes a scale infinite."""

    def update(self, optimizer: torch.optim.Optimizer) -> None:
        super().update(optimizer)
        for linear in self.synchronise.linears:
            linear.scale_x.fill_(torch.inf)
