"""Delayed scaling's one step for the whole model: what the last steps saw becomes the scales of the next."""

from __future__ import annotations

import torch
from torch import nn

from halfstep.fp8.linear import FORMATS, TENSORS, Float8Linear
from halfstep.fp8.scaling import new_scale


class Synchroniser:
    """Call it once per step, between backward and optimizer (float8_experimental's sync_float8_amax_and_scale_history).

    A scale is format's largest / max(amax of the last `history_length` steps) / 2^margin: Transformer Engine's
    DelayedScaling with amax_compute_algo="max". The length of 16 is float8_experimental's (Transformer Engine: 1024).
    Some ten operations however many layers there are, all in place and without a wait for the GPU, so a
    CUDA graph can hold it.
    """

    def __init__(self, model: nn.Module, history_length: int = 16, margin: int = 0) -> None:
        """Make it when the model is on the device on which it will train.

        Raises:
            ValueError: the model has no Float8Linear.
        """
        self.linears = [module for module in model.modules() if isinstance(module, Float8Linear)]
        if not self.linears:
            raise ValueError("the model has no Float8Linear whose scales could be synchronised")
        self.margin = margin
        device = self.linears[0].weight.device
        largest = [torch.finfo(FORMATS[tensor]).max for tensor in TENSORS]
        self.largest = torch.tensor(largest * len(self.linears), device=device)
        """of each tensor's format: fp32 [tensors], the layers' x, w and g in turn"""
        self.history = torch.zeros(history_length, len(self.largest), device=device)
        """amaxes, fp32 [steps, tensors], the last step's first; 0 before the first step"""

    @torch.no_grad()
    def __call__(self) -> None:
        """Amaxes into the history, scales from it, amaxes back to 0."""
        amaxes = self._buffers("amax")
        scales = self._buffers("scale")
        self.history.copy_(self.history.roll(1, dims=0))
        self.history[0].copy_(torch.cat(amaxes))
        new = new_scale(self.history.amax(dim=0), self.largest, torch.cat(scales), self.margin)
        torch._foreach_copy_(scales, new.split(1))
        torch._foreach_zero_(amaxes)
        for linear in self.linears:
            linear.first_step = False
            linear.synchronised = True

    def _buffers(self, kind: str) -> list[torch.Tensor]:
        # looked up each time, since moving a model gives its buffers new tensors
        return [getattr(linear, f"{kind}_{tensor}") for linear in self.linears for tensor in TENSORS]
