"""NVIDIA Apex's legacy mixed precision, `apex.amp`, at its opt levels O0 (fp32), O1 (casts functions), O2 (fp16 model).

Apex dropped it on 2025-05-08 (commit cb65b8ed). Here it is the Python part of release 25.05 over today's kernels.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import nn

from halfstep.recipes.precision.precision import Precision
from halfstep.recipes.requirements import load_apex_amp, require_gpu


class ApexAmpO0(Precision):
    opt_level: ClassVar[str] = "O0"

    def __init__(self, device: torch.device, weights: torch.dtype) -> None:
        super().__init__(device, weights)
        require_gpu(device, "apex.amp")
        self.amp = load_apex_amp()
        self.optimizer: torch.optim.Optimizer | None = None

    def prepare(self, model: nn.Module) -> dict[str, Any]:
        return {"opt_level": self.opt_level}

    def join(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        joined, self.optimizer = self.amp.initialize(model, optimizer, opt_level=self.opt_level, verbosity=0)
        assert joined is model, "apex.amp changes the model in place"

    def backward(self, loss: torch.Tensor) -> None:
        with self.amp.scale_loss(loss, self.optimizer) as scaled:
            scaled.backward()

    def loss_scale(self) -> torch.Tensor | float | None:
        """A number of the host: apex.amp itself waits for the GPU in every step, to see whether it overflowed."""
        scalers = self.amp._amp_state.loss_scalers if self.optimizer else []
        return scalers[0].loss_scale() if scalers else 1.0


class ApexAmpO1(ApexAmpO0):
    gemm: ClassVar[str] = "fp16"
    opt_level: ClassVar[str] = "O1"


class ApexAmpO2(ApexAmpO0):
    gemm: ClassVar[str] = "fp16"
    opt_level: ClassVar[str] = "O2"
