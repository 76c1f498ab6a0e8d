"""fp32 storage, matrix products and convolutions in TF32."""

from typing import ClassVar

import torch

from halfstep.recipes.precision.precision import Precision, set_tf32
from halfstep.recipes.requirements import require_compute_capability, require_gpu


class Tf32(Precision):
    gemm: ClassVar[str] = "tf32"

    def __init__(self, device: torch.device, weights: torch.dtype) -> None:
        super().__init__(device, weights)
        require_gpu(device, "tf32")
        require_compute_capability(device, (8, 0), "tf32")
        set_tf32(True)
