"""bf16 autocast over fp32 weights; or weights, gradients and optimizer state in bf16, without autocast."""

from typing import ClassVar

import torch

from halfstep.recipes.precision.precision import Precision
from halfstep.recipes.requirements import require_compute_capability


class Bf16(Precision):
    gemm: ClassVar[str] = "bf16"
    autocast_dtype: ClassVar[torch.dtype | None] = torch.bfloat16

    def __init__(self, device: torch.device, weights: torch.dtype) -> None:
        super().__init__(device, weights)
        require_compute_capability(device, (8, 0), "bf16")  # an older GPU has no bf16 matrix units: torch would emulate
