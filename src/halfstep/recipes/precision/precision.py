"""What a precision recipe does to a training step; the base class is strict fp32."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar

import torch
from torch import nn


def set_tf32(allowed: bool) -> None:
    """Let fp32 matrix products and convolutions round their inputs to TF32, or not.

    torch's default differs between the two (cuDNN's convolutions may, matrix products may not).
    """
    torch.set_float32_matmul_precision("high" if allowed else "highest")
    torch.backends.cudnn.allow_tf32 = allowed


class Precision:
    """A recipe checks the device when it is made, prepares the model once, then takes part in every step."""

    gemm: ClassVar[str] = "fp32"
    """the precision of the matrix products, for the vendor's stated peak"""

    def __init__(self, device: torch.device) -> None:
        """Raises: Unsupported, with the reason, where the device cannot do it."""
        self.device = device
        set_tf32(False)

    def prepare(self, model: nn.Module) -> dict[str, Any]:
        """Change the model in place; say what was really applied."""
        return {}

    def autocast(self) -> AbstractContextManager[Any]:
        """The context of the forward pass with its loss."""
        return nullcontext()

    def cast_inputs(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs

    def backward(self, loss: torch.Tensor) -> None:
        loss.backward()

    def update(self, optimizer: torch.optim.Optimizer) -> None:
        optimizer.step()

    def loss_scale(self) -> torch.Tensor | None:
        """The dynamic loss scale, a scalar on the device, or None without one. It falls when a step is skipped."""
        return None
