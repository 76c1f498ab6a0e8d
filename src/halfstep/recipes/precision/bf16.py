"""bf16 autocast over fp32 weights."""

from contextlib import AbstractContextManager
from typing import Any, ClassVar

import torch

from halfstep.errors import Unsupported
from halfstep.recipes.precision.precision import Precision


def require_bf16(device: torch.device) -> None:
    """Raises: Unsupported, on a GPU without bf16 matrix units, where torch would emulate it."""
    if device.type == "cuda" and torch.cuda.get_device_capability(device) < (8, 0):
        raise Unsupported("bf16 needs compute capability 8.0 or newer")


class Bf16Autocast(Precision):
    gemm: ClassVar[str] = "bf16"

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        require_bf16(device)

    def autocast(self) -> AbstractContextManager[Any]:
        return torch.autocast(self.device.type, torch.bfloat16)
