"""The linear layers of a workload's model and the rows that one sample is in each."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from halfstep.recipes.linears import LinearUse


def linears_of(workload: Any, scale: str) -> list[LinearUse]:
    """Every `nn.Linear` that the forward pass uses, in the model's order.

    Found by running one sample on the `meta` device, where nothing is computed and no memory is taken.
    """
    size = workload.sizes[scale]
    with torch.device("meta"):
        model = workload.build(nn.LayerNorm, **size)
    rows: dict[nn.Module, int] = {}

    def note(module: nn.Module, arguments: tuple[torch.Tensor, ...]) -> None:
        rows[module] = rows.get(module, 0) + arguments[0].numel() // arguments[0].shape[-1]

    linears = {name: module for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    for module in linears.values():
        module.register_forward_pre_hook(note)
    inputs, targets = (tensor.to("meta") for tensor in workload.batch(1, 0, torch.Generator(), **size))
    workload.loss(model, inputs, targets)
    return [
        LinearUse(name, module.in_features, module.out_features, rows[module])
        for name, module in linears.items()
        if module in rows
    ]
