"""Optimizers with torch's default hyperparameters.

Each is a function of the parameters and of `capturable`: whether its state must live on the GPU, so
that a CUDA graph can hold the step.
"""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn
from torch.optim import Adam, AdamW, Optimizer

Parameters = Iterable[nn.Parameter]


def adam_forloop(parameters: Parameters, capturable: bool) -> Optimizer:
    return Adam(parameters, foreach=False, fused=False, capturable=capturable)


def adam_foreach(parameters: Parameters, capturable: bool) -> Optimizer:
    return Adam(parameters, foreach=True, capturable=capturable)


def adam_fused(parameters: Parameters, capturable: bool) -> Optimizer:
    return Adam(parameters, fused=True, capturable=capturable)


def adamw_forloop(parameters: Parameters, capturable: bool) -> Optimizer:
    return AdamW(parameters, foreach=False, fused=False, capturable=capturable)


def adamw_foreach(parameters: Parameters, capturable: bool) -> Optimizer:
    return AdamW(parameters, foreach=True, capturable=capturable)


def adamw_fused(parameters: Parameters, capturable: bool) -> Optimizer:
    return AdamW(parameters, fused=True, capturable=capturable)
