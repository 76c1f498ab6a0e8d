"""Every linear layer in our own FP8 with delayed scaling."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import nn

from halfstep.fp8.linear import convert
from halfstep.fp8.synchronise import Synchroniser
from halfstep.recipes.precision.fp8_linears import Fp8Linears


class NativeDelayed(Fp8Linears):
    """With a right first step: until the first synchronisation each tensor's scale comes from the tensor itself."""

    amax_init: ClassVar[bool] = True

    def convert(self, model: nn.Module, names: frozenset[str]) -> None:
        convert(model, lambda name, _: name in names, amax_init=self.amax_init)

    def prepare(self, model: nn.Module) -> dict[str, Any]:
        applied = super().prepare(model)
        self.synchronise = Synchroniser(model)
        return applied

    def update(self, optimizer: torch.optim.Optimizer) -> None:
        self.synchronise()
        super().update(optimizer)


class NativeDelayedNoInit(NativeDelayed):
    """As the article ran it (`enable_amax_init=False`): the first step casts with the scale 1."""

    amax_init: ClassVar[bool] = False
