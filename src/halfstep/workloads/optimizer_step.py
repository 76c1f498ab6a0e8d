"""One step of an optimizer over many parameters: many equal linear layers, and ViT-Huge's parameters.

Parameters, gradients and state are fp32. A step of Adam or AdamW has to read parameter, gradient and both moments
and to write parameter and moments: 7 times 4 bytes per parameter, which is what GB/s count.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from halfstep.workloads.operator import GB, Case, Operator, Work
from halfstep.workloads.vit import VIT_HUGE

BYTES_PER_PARAMETER = 28
CHECKED_STEPS = 3


def cases(device: torch.device, recipes: Mapping[str, Any], *, linears: tuple[int, int], vit: str) -> Iterator[Case]:
    """`linears`: how many, and how wide; `vit`: the scale of ViT-Huge whose parameters to take."""
    count, width = linears
    make = recipes["optimizer"]
    shapes = [shape for _ in range(count) for shape in ((width, width), (width,))]
    yield Case(f"linears {count}x{width}", partial(prepare, make, device, shapes))
    yield Case("vit_huge", lambda: prepare(make, device, vit_shapes(vit)), profiled=True)


def vit_shapes(scale: str) -> list[tuple[int, ...]]:
    with torch.device("meta"):
        model = VIT_HUGE.build(nn.LayerNorm, **VIT_HUGE.sizes[scale])
    return [tuple(parameter.shape) for parameter in model.parameters()]


def prepare(make: Any, device: torch.device, shapes: Sequence[tuple[int, ...]]) -> Work:
    """Random parameters and gradients, the same in every call; the first steps against a float64 reference."""
    parameters = [nn.Parameter(0.02 * torch.randn(shape, device=device)) for shape in shapes]
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    before = [parameter.detach().clone() for parameter in parameters]
    optimizer = make(parameters, False)
    for _ in range(CHECKED_STEPS):
        optimizer.step()
    decay = optimizer.param_groups[0]["weight_decay"]
    error = max(difference(*pair, decay) for pair in zip(before, parameters, strict=True))
    size = sum(parameter.numel() for parameter in parameters)
    return Work(optimizer.step, gb=BYTES_PER_PARAMETER * size / GB, max_abs_error=error)


def difference(before: torch.Tensor, after: nn.Parameter, weight_decay: float) -> float:
    """The largest difference between a parameter after the first steps and what float64 makes of it.

    AdamW without weight decay is Adam.
    """
    assert after.grad is not None
    reference = nn.Parameter(before.double())
    reference.grad = after.grad.double()
    optimizer = torch.optim.AdamW([reference], weight_decay=weight_decay, foreach=False)
    for _ in range(CHECKED_STEPS):
        optimizer.step()
    return (after.detach().double() - reference.detach()).abs().max().item()


OPTIMIZER_STEP = Operator(
    sizes={"full": {"linears": (96, 1024), "vit": "full"}, "smoke": {"linears": (4, 64), "vit": "smoke"}}, cases=cases
)
