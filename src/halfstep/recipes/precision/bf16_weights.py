"""Weights, gradients and optimizer state in bf16, no autocast."""

from typing import Any, ClassVar

import torch
from torch import nn

from halfstep.recipes.precision.bf16 import require_bf16
from halfstep.recipes.precision.precision import Precision


class Bf16Weights(Precision):
    gemm: ClassVar[str] = "bf16"

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        require_bf16(device)

    def prepare(self, model: nn.Module) -> dict[str, Any]:
        model.to(torch.bfloat16)
        return {"parameters_bf16": sum(parameter.numel() for parameter in model.parameters())}

    def cast_inputs(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs.to(torch.bfloat16) if inputs.is_floating_point() else inputs
