"""bf16 autocast whose linear layers run in our own FP8 with delayed scaling."""

from typing import Any, ClassVar

import torch
from torch import nn

from halfstep.errors import Unsupported
from halfstep.fp8.linear import MULTIPLE, convert
from halfstep.fp8.synchronise import Synchroniser
from halfstep.recipes.precision.bf16 import Bf16Autocast


class NativeDelayed(Bf16Autocast):
    gemm: ClassVar[str] = "fp8"

    def __init__(self, device: torch.device, *, amax_init: bool = True, pre_and_post_forward: bool = False) -> None:
        """The two flags are Float8Linear's.

        Raises: Unsupported, on a GPU without FP8 matrix units. A CPU multiplies the decoded values.
        """
        super().__init__(device)
        if device.type == "cuda" and torch.cuda.get_device_capability(device) < (8, 9):
            raise Unsupported("native_delayed needs FP8 matrix units: compute capability 8.9 or newer")
        self.amax_init = amax_init
        self.pre_and_post_forward = pre_and_post_forward

    def prepare(self, model: nn.Module) -> dict[str, Any]:
        """Convert every linear layer whose features divide by 16."""
        linears = [name for name, module in model.named_modules() if type(module) is nn.Linear]
        converted = convert(
            model,
            lambda _, linear: not (linear.in_features % MULTIPLE or linear.out_features % MULTIPLE),
            amax_init=self.amax_init,
            pre_and_post_forward=self.pre_and_post_forward,
        )
        self.synchronise = Synchroniser(model)
        return {"fp8_linears": converted, "bf16_linears": [name for name in linears if name not in converted]}

    def update(self, optimizer: torch.optim.Optimizer) -> None:
        self.synchronise()
        optimizer.step()
