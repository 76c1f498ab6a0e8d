"""Recipes that are wrong, each in one way. A test puts this file into a tree and names them in its registry."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.optim import AdamW

from halfstep.recipes.precision.precision import Precision


class HalfLearningRate(Precision):
    """Every update is half as long from the second one on."""

    def update(self, optimizer: torch.optim.Optimizer) -> None:
        super().update(optimizer)
        if not hasattr(self, "halved"):
            self.halved = True
            for group in optimizer.param_groups:
                group["lr"] /= 2


class _E4m3Gradient(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient.to(torch.float8_e4m3fn).to(gradient.dtype)


class UnscaledE4m3Gradients(Precision):
    """The gradients of all linear layers' outputs are cast to e4m3 as they are, so that small ones become 0."""

    def prepare(self, model: nn.Module) -> dict[str, Any]:
        for module in model.modules():
            if isinstance(module, nn.Linear):
                module.register_forward_hook(lambda _module, _inputs, output: _E4m3Gradient.apply(output))
        return {}


class DroppedBias(Precision):
    """One linear layer lost its bias when it was converted."""

    def prepare(self, model: nn.Module) -> dict[str, Any]:
        next(module for module in model.modules() if isinstance(module, nn.Linear)).bias = None
        return {}


class OtherData(Precision):
    """The batches of another seed."""

    def __init__(self, device: torch.device, weights: torch.dtype) -> None:
        super().__init__(device, weights)
        from halfstep.measure import parity

        right = parity.batches
        parity.batches = lambda run, *others: right({**run, "data_seed": run["data_seed"] + 1}, *others)


class SkipsEveryStep(AdamW):
    def step(self, closure: Any = None) -> None:
        """Nothing."""


def skips_every_step(parameters: Any, capturable: bool) -> torch.optim.Optimizer:
    return SkipsEveryStep(parameters, lr=1e-3)
