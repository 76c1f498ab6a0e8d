"""Transformer Engine's `te.Linear` in place of every `nn.Linear`, the weights carried over.

The scaling recipe is always pinned: Transformer Engine's own default depends on the GPU.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack
from typing import Any, ClassVar

import torch
from torch import nn

from halfstep.recipes.precision.fp8_linears import Fp8Linears, replace
from halfstep.recipes.requirements import load, require_gpu


class TransformerEngine(Fp8Linears):
    """What every recipe of Transformer Engine does: its FP8 autocast inside the bf16 autocast."""

    def __init__(self, device: torch.device, weights: torch.dtype) -> None:
        require_gpu(device, "Transformer Engine")
        super().__init__(device, weights)
        self.te = load("transformer_engine.pytorch")
        self.scaling = self.make_scaling(load("transformer_engine.common.recipe"))

    def make_scaling(self, recipes: Any) -> Any:
        """The scaling recipe, out of the module transformer_engine.common.recipe."""
        raise NotImplementedError

    def autocast(self) -> AbstractContextManager[Any]:
        both = ExitStack()
        both.enter_context(super().autocast())
        both.enter_context(self.te.autocast(enabled=True, recipe=self.scaling))
        return both


class TeLinears(TransformerEngine):
    def convert(self, model: nn.Module, names: frozenset[str]) -> None:
        for name in names:
            linear = model.get_submodule(name)
            assert isinstance(linear, nn.Linear)
            twin = self.te.Linear(
                linear.in_features,
                linear.out_features,
                bias=linear.bias is not None,
                params_dtype=self.weights,
                device=self.device,
            )
            with torch.no_grad():
                twin.weight.copy_(linear.weight)
                if linear.bias is not None:
                    twin.bias.copy_(linear.bias)
            replace(model, name, twin)


def delayed_scaling(recipes: Any) -> Any:
    """What `DelayedScaling()` stands for in Transformer Engine 2.20, written out: e4m3 forward, e5m2 gradients."""
    return recipes.DelayedScaling(
        margin=0, fp8_format=recipes.Format.HYBRID, amax_history_len=1024, amax_compute_algo="max"
    )


class TeLinearsDelayed(TeLinears):
    def make_scaling(self, recipes: Any) -> Any:
        return delayed_scaling(recipes)


class TeLinearsCurrent(TeLinears):
    """The scale of each tensor from itself."""

    def make_scaling(self, recipes: Any) -> Any:
        return recipes.Float8CurrentScaling(fp8_format=recipes.Format.HYBRID)


class TeLinearsBlock(TeLinears):
    """A scale for each 1x128 of the activations and 128x128 of the weights, all of it e4m3 (Hopper and newer)."""

    needs: ClassVar[tuple[int, int]] = (9, 0)

    def make_scaling(self, recipes: Any) -> Any:
        return recipes.Float8BlockScaling(fp8_format=recipes.Format.E4M3)
