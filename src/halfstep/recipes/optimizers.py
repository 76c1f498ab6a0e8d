"""Optimizers with torch's default hyperparameters.

Each is a function of the parameters and of `capturable`: whether its state must live on the GPU, so
that a CUDA graph can hold the step.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import nn
from torch.optim import Adam, AdamW, Optimizer

from halfstep.recipes.requirements import load, require_gpu

Parameters = Iterable[nn.Parameter]
ADAMW_WEIGHT_DECAY = 0.01
"""torch.optim.AdamW's default; the fused ones default to none"""


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


def apex_adam(parameters: Parameters, capturable: bool) -> Optimizer:
    return _apex_fused_adam(parameters, capturable, adam_w_mode=False, weight_decay=0.0)


def apex_adamw(parameters: Parameters, capturable: bool) -> Optimizer:
    return _apex_fused_adam(parameters, capturable, adam_w_mode=True, weight_decay=ADAMW_WEIGHT_DECAY)


def te_adam(parameters: Parameters, capturable: bool) -> Optimizer:
    return _te_fused_adam(parameters, capturable, adam_w_mode=False, weight_decay=0.0)


def te_adamw(parameters: Parameters, capturable: bool) -> Optimizer:
    return _te_fused_adam(parameters, capturable, adam_w_mode=True, weight_decay=ADAMW_WEIGHT_DECAY)


def _apex_fused_adam(parameters: Parameters, capturable: bool, **settings: Any) -> Optimizer:
    parameters = list(parameters)
    require_gpu(parameters[0].device, "Apex")
    load("amp_C")
    return load("apex.optimizers").FusedAdam(parameters, capturable=capturable, **settings)


def _te_fused_adam(parameters: Parameters, capturable: bool, **settings: Any) -> Optimizer:
    parameters = list(parameters)
    require_gpu(parameters[0].device, "Transformer Engine")
    return load("transformer_engine.pytorch.optimizers").FusedAdam(parameters, capturable=capturable, **settings)
