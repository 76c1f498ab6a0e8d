"""Normalisation over the last dimension of hidden states [rows, width]: forward, and forward with backward.

Bytes that have to move: forward reads x and writes y; backward reads x and dy and writes dx. The affine parameters,
their gradients and the rows' statistics are not counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from halfstep.workloads.operator import GB, Case, Operator, Work, accuracy

TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
EPSILON = 1e-6


class Alone(nn.Module):
    """The norm inside a module of ours: torch.compile does not look at a module of torch's own by itself."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x)


def cases(device: torch.device, recipes: Mapping[str, Any], *, rows: int, widths: Sequence[int]) -> Iterator[Case]:
    recipes["compile"].check(device)
    with torch.device(device):
        recipes["norm"](widths[0])  # whether its library is there at all
    for width in widths:
        for name, dtype in TYPES.items():
            work = partial(prepare, recipes, device, rows, width, dtype)
            yield Case(f"{width} {name} forward", partial(work, backward=False))
            both = partial(work, backward=True)
            yield Case(f"{width} {name} forward+backward", both, profiled=width == max(widths) and name == "bf16")


def prepare(
    recipes: Mapping[str, Any], device: torch.device, rows: int, width: int, dtype: torch.dtype, *, backward: bool
) -> Work:
    """Random input and affine parameters in `dtype`, the same for every norm of that width.

    What is checked is the output, or with backward the gradient of the input.
    """
    with torch.device(device):
        module = Alone(recipes["norm"](width)).to(dtype)
    generator = torch.Generator(device).manual_seed(torch.initial_seed())
    parameters = list(module.parameters())
    with torch.no_grad():
        for parameter in parameters:
            parameter.normal_(generator=generator)
    x, dy = (torch.randn(rows, width, device=device, dtype=dtype, generator=generator) for _ in range(2))
    x.requires_grad_()
    recipes["compile"].apply(module, [])

    def forward() -> torch.Tensor:
        return module(x)

    def forward_and_backward() -> tuple[torch.Tensor, ...]:
        # not backward(), whose gradients would add up in the parameters from call to call
        return torch.autograd.grad(module(x), [x, *parameters], dy)

    y, dx = reference(module.norm, x, dy)
    error, sqnr = accuracy(forward_and_backward()[0], dx) if backward else accuracy(forward().detach(), y)
    return Work(
        forward_and_backward if backward else forward,
        gb=(5 if backward else 2) * rows * width * x.element_size() / GB,
        max_abs_error=error,
        sqnr_db=sqnr,
    )


def reference(norm: nn.Module, x: torch.Tensor, dy: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Output and gradient of the input [rows, width] in float64, of the norm's kind: with a bias it is a LayerNorm."""
    exact = x.detach().double().requires_grad_()
    shape = x.shape[-1:]
    affine = {name: parameter.detach().double() for name, parameter in norm.named_parameters()}
    if "bias" in affine:
        y = functional.layer_norm(exact, shape, affine["weight"], affine["bias"], EPSILON)
    else:
        y = functional.rms_norm(exact, shape, affine["weight"], EPSILON)
    (dx,) = torch.autograd.grad(y, exact, dy.double())
    return y.detach(), dx


NORM = Operator(
    sizes={
        "full": {"rows": 16384, "widths": (1024, 4096, 8192)},
        "smoke": {"rows": 64, "widths": (64,)},
    },
    cases=cases,
)
