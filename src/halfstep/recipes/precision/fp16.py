"""fp16 autocast over fp32 weights with torch.amp's dynamic loss scaling."""

from contextlib import AbstractContextManager
from typing import Any, ClassVar

import torch

from halfstep.errors import Unsupported
from halfstep.recipes.precision.precision import Precision


class Fp16GradScaler(Precision):
    gemm: ClassVar[str] = "fp16"

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        if device.type != "cuda":
            raise Unsupported("fp16 with GradScaler needs an NVIDIA GPU; this run is on the CPU")
        self.scaler = torch.amp.GradScaler("cuda")
        # else it makes its scale in the first step, and loss_scale() would not know of that step
        self.scaler.scale(torch.ones((), device=device))

    def autocast(self) -> AbstractContextManager[Any]:
        return torch.autocast("cuda", torch.float16)

    def backward(self, loss: torch.Tensor) -> None:
        self.scaler.scale(loss).backward()

    def update(self, optimizer: torch.optim.Optimizer) -> None:
        self.scaler.step(optimizer)
        self.scaler.update()

    def loss_scale(self) -> torch.Tensor | None:
        # the public get_scale() waits for the GPU, which a timed step must not
        return self.scaler._scale
