"""fp16 autocast over fp32 weights with torch.amp's dynamic loss scaling."""

from typing import ClassVar

import torch

from halfstep.recipes.precision.precision import Precision
from halfstep.recipes.requirements import require_gpu


class Fp16GradScaler(Precision):
    gemm: ClassVar[str] = "fp16"
    autocast_dtype: ClassVar[torch.dtype | None] = torch.float16

    def __init__(self, device: torch.device, weights: torch.dtype) -> None:
        super().__init__(device, weights)
        require_gpu(device, "fp16 with GradScaler")
        self.scaler = torch.amp.GradScaler("cuda")
        # else it makes its scale in the first step, and loss_scale() would not know of that step
        self.scaler.scale(torch.ones((), device=device))

    def backward(self, loss: torch.Tensor) -> None:
        self.scaler.scale(loss).backward()

    def update(self, optimizer: torch.optim.Optimizer) -> None:
        self.scaler.step(optimizer)
        self.scaler.update()

    def loss_scale(self) -> torch.Tensor | float | None:
        # the public get_scale() waits for the GPU, which a timed step must not
        return self.scaler._scale
