"""What a precision recipe does to a training step; the base class is strict fp32."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar

import torch
from torch import nn

from halfstep.errors import Unsupported
from halfstep.recipes.linears import LinearUse


def set_tf32(allowed: bool) -> None:
    """Let fp32 matrix products and convolutions round their inputs to TF32, or not.

    torch's default differs between the two (cuDNN's convolutions may, matrix products may not).
    """
    torch.set_float32_matmul_precision("high" if allowed else "highest")
    torch.backends.cudnn.allow_tf32 = allowed


class Precision:
    """A recipe checks the device when it is made, prepares the model once, then takes part in every step.

    In this order: the constructor, `plan`, `prepare`, `join`; then in each step `autocast` with
    `cast_inputs` inside, `backward`, `update`.
    """

    gemm: ClassVar[str] = "fp32"
    """the precision of the matrix products, for the vendor's stated peak"""
    autocast_dtype: ClassVar[torch.dtype | None] = None
    """what autocast computes in over fp32 weights; None without autocast"""

    def __init__(self, device: torch.device, weights: torch.dtype) -> None:
        """Take fp32 `weights`, or bf16 ones where autocast would compute in bf16 anyway.

        Raises:
            Unsupported: the device, the environment or these weights cannot do it; with the reason.
        """
        self.device, self.weights = device, weights
        if weights != torch.float32 and weights != self.autocast_dtype:
            raise Unsupported(f"weights: bf16 goes with a precision that computes in bf16; this one's is {self.gemm}")
        set_tf32(False)

    def plan(self, linears: Sequence[LinearUse], batch: int) -> None:
        """Decide which linear layers to convert, before any of the model is built.

        Raises:
            Unsupported: a layer cannot take this batch; with the nearest batch that works.
            Invalid: there is nothing to convert.
        """

    def prepare(self, model: nn.Module) -> dict[str, Any]:
        """Change the model in place, whose weights have their type already; say what was really applied."""
        return {}

    def join(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Change model and optimizer together, once."""

    def autocast(self) -> AbstractContextManager[Any]:
        """The context of the forward pass with its loss. With bf16 weights there is nothing to cast."""
        if self.autocast_dtype is None or self.weights != torch.float32:
            return nullcontext()
        return torch.autocast(self.device.type, self.autocast_dtype)

    def cast_inputs(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs.to(self.weights) if inputs.is_floating_point() else inputs

    def backward(self, loss: torch.Tensor) -> None:
        loss.backward()

    def update(self, optimizer: torch.optim.Optimizer) -> None:
        optimizer.step()

    def loss_scale(self) -> torch.Tensor | float | None:
        """The dynamic loss scale, or None without one; asking does not wait for the GPU. It falls at a skipped step."""
        return None
