"""fp32 storage, matrix products and convolutions in TF32."""

from typing import ClassVar

import torch

from halfstep.errors import Unsupported
from halfstep.recipes.precision.precision import Precision, set_tf32


class Tf32(Precision):
    gemm: ClassVar[str] = "tf32"

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        if device.type != "cuda":
            raise Unsupported("tf32 needs an NVIDIA GPU; this run is on the CPU")
        if torch.cuda.get_device_capability(device) < (8, 0):
            raise Unsupported("tf32 needs compute capability 8.0 or newer")
        set_tf32(True)
