"""torchao's float8 training: dynamic scaling, tensor by tensor or row by row.

Recipes as torchao 0.17 names them (torchao.float8.Float8LinearConfig.from_recipe_name). It dropped delayed
scaling on 2025-02-22; native_delayed is that.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import nn

from halfstep.recipes.precision.fp8_linears import Fp8Linears
from halfstep.recipes.requirements import load, require_gpu


class TorchaoTensorwise(Fp8Linears):
    recipe: ClassVar[str] = "tensorwise"

    def __init__(self, device: torch.device, weights: torch.dtype) -> None:
        super().__init__(device, weights)
        self.torchao = load("torchao.float8")

    def convert(self, model: nn.Module, names: frozenset[str]) -> None:
        config = self.torchao.Float8LinearConfig.from_recipe_name(self.recipe)
        self.torchao.convert_to_float8_training(model, config=config, module_filter_fn=lambda _, name: name in names)


class TorchaoRowwise(TorchaoTensorwise):
    recipe: ClassVar[str] = "rowwise"

    def __init__(self, device: torch.device, weights: torch.dtype) -> None:
        require_gpu(device, "a row-wise scaled FP8 product")
        super().__init__(device, weights)


class TorchaoRowwiseWithGwHp(TorchaoRowwise):
    """Row by row, with the weight's gradient computed in bf16."""

    recipe: ClassVar[str] = "rowwise_with_gw_hp"
