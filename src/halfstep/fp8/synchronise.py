"""Delayed scaling's one step for the whole model: what the last steps saw becomes the scales of the next."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import distributed, nn

from halfstep.fp8.linear import FORMATS, TENSORS, Float8Linear
from halfstep.fp8.scaling import new_scale


class Synchroniser:
    """Call it once per step, between backward and optimizer (float8_experimental's sync_float8_amax_and_scale_history).

    A scale is format's largest / max(amax of the last `history_length` steps) / 2^margin: Transformer Engine's
    DelayedScaling with amax_compute_algo="max". The length of 16 is float8_experimental's (Transformer Engine: 1024).
    Some ten operations however many layers there are, all in place and without a wait for the GPU, so a
    CUDA graph can hold it.

    Where torch.distributed is initialised an amax is the largest of all ranks, so all of them have the same scales;
    each has to call it in each step. One all-reduce is added, of 4 bytes a tensor.

    What it knows is in its own `state_dict`, to be saved beside the optimizer's; the model's stays that of a plain one.
    """

    def __init__(
        self,
        model: nn.Module,
        history_length: int = 16,
        margin: int = 0,
        group: distributed.ProcessGroup | None = None,
    ) -> None:
        """Make it before DistributedDataParallel wraps the model. It follows the model to another device.

        Args:
            model: has the layers, all on one device.
            history_length: how many steps a peak counts, 1 or more.
            margin: how many powers of two stay free above it, 0 or more.
            group: the ranks that train this model on other data; the default group, if left out.

        Raises:
            ValueError: the model has no Float8Linear or has them on several devices, or a number is not as above.
        """
        for what, number, least in (("history_length", history_length, 1), ("margin", margin, 0)):
            if type(number) is not int or number < least:
                raise ValueError(f"{what} has to be a whole number, {least} or more; it is {number!r}")
        layers = {name: module for name, module in model.named_modules() if isinstance(module, Float8Linear)}
        if not layers:
            raise ValueError("the model has no Float8Linear whose scales could be synchronised")
        self.names, self.linears = list(layers), list(layers.values())
        self.margin, self.group = margin, group
        self._start(history_length, self._device())

    def _start(self, history_length: int, device: torch.device) -> None:
        with torch.inference_mode(False):  # whose tensors no training could write
            largest = [torch.finfo(FORMATS[tensor]).max for tensor in TENSORS]
            self.largest = torch.tensor(largest * len(self.linears), device=device)
            """of each tensor's format: fp32 [tensors], the layers' x, w and g in turn"""
            self.history = torch.zeros(history_length, len(self.largest), device=device)
            """amaxes, fp32 [steps, tensors], the last step's first; 0 before the first step"""

    def _device(self) -> torch.device:
        devices = {linear.scale_x.device for linear in self.linears}
        if len(devices) > 1:
            raise ValueError(
                f"the FP8 layers are on {' and '.join(sorted(map(str, devices)))}, and a Synchroniser is for one "
                "device: make one of each part of the model"
            )
        return devices.pop()

    def _follow(self) -> None:
        """The model to the device where it is now."""
        if (device := self._device()) == self.history.device:
            return
        if self.history.is_meta:
            self._start(len(self.history), device)
        self.history, self.largest = self.history.to(device), self.largest.to(device)

    @torch.no_grad()
    def __call__(self) -> None:
        """Amaxes into the history, scales from it, amaxes back to 0.

        Raises:
            ValueError: the model was spread over several devices.
        """
        self._follow()
        amaxes = self._buffers("amax")
        scales = self._buffers("scale")
        seen = torch.cat(amaxes)
        if distributed.is_available() and distributed.is_initialized():
            # as integers, whose order is that of numbers without a sign, with NaN above infinity: of floats a
            # maximum may lose a NaN, as Gloo's does by the order of the ranks
            bits = seen.abs().view(torch.int32)
            distributed.all_reduce(bits, distributed.ReduceOp.MAX, self.group)
            seen = bits.view(torch.float32)
        self.history.copy_(self.history.roll(1, dims=0))
        self.history[0].copy_(seen)
        new = new_scale(self.history.amax(dim=0), self.largest, torch.cat(scales), self.margin)
        torch._foreach_copy_(scales, new.split(1))
        left = {linear: linear.first_steps_left() for linear in self.linears if any(linear.first_step.values())}
        torch._foreach_zero_(amaxes)
        for linear in self.linears:
            linear.synchronised = True
        for linear, first_step in left.items():
            linear.begin_step(first_step)

    @torch.no_grad()
    def state_dict(self) -> dict[str, Any]:
        """Copies of history and scales, by which a training goes on with the same bits. Between two steps.

        It holds tensors, names and a flag: torch.load reads it with weights_only=True, and torch.distributed.checkpoint
        takes a Synchroniser as it is.
        """
        self._follow()
        return {
            "layers": list(self.names),
            "history": self.history.clone(),
            "scale": torch.cat(self._buffers("scale")),
            "first_step": [linear.first_step[tensor] for linear in self.linears for tensor in TENSORS],
        }

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over a state, in place. Of another history's length: the latest steps, as many as fit.

        Raises:
            ValueError: it is a state of other layers, or of an older form; nothing is changed then.
        """
        if not isinstance(state.get("first_step"), list):
            raise ValueError(
                "this is no state of a Synchroniser, or one of an older form, which had a single first step for all "
                "layers: start without it, as a fresh model does"
            )
        if (theirs := list(state["layers"])) != self.names:
            other = next(iter([name for name in theirs if name not in self.names] or theirs), "none")
            mine = next(iter([name for name in self.names if name not in theirs] or self.names))
            raise ValueError(
                f"the state is of {len(theirs)} FP8 layers, with {other!r} among them, and this model has "
                f"{len(self.names)}, with {mine!r}: load it into a Synchroniser of the same model"
            )
        self._follow()
        steps = min(len(self.history), len(state["history"]))
        self.history.zero_()
        self.history[:steps].copy_(state["history"][:steps])
        torch._foreach_copy_(self._buffers("scale"), state["scale"].to(self.history.device).split(1))
        torch._foreach_zero_(self._buffers("amax"))
        flags = iter(state["first_step"])
        for linear in self.linears:
            linear.begin_step({tensor: next(flags) for tensor in TENSORS})

    def _buffers(self, kind: str) -> list[torch.Tensor]:
        # looked up each time, since moving a model gives its buffers new tensors
        return [getattr(linear, f"{kind}_{tensor}") for linear in self.linears for tensor in TENSORS]
