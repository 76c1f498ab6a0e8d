"""What an operator workload is to the code that measures it: cases, each with one call."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from halfstep.errors import Invalid

GB = 1e9


@dataclass(frozen=True)
class Work:
    """A case that is ready to be timed."""

    call: Callable[[], Any] | None = None
    """what is timed; None where the case is a value and takes no time"""
    tflop: float | None = None
    """of one call: a multiply-add is 2"""
    gb: float | None = None
    """decimal GB that one call has to move at least, as the workload counts them"""
    precision: str | None = None
    """of the matrix products, for the vendor's stated peak"""
    max_abs_error: float | None = None
    sqnr_db: float | None = None
    value: str | None = None


@dataclass(frozen=True)
class Case:
    """One row of the result, prepared when its turn comes and freed before the next.

    `prepare` makes the operands, checks the result of a call and returns the work. It raises Unsupported for what
    this variant cannot do and Invalid for a result that is wrong.
    """

    name: str
    prepare: Callable[[], Work]
    profiled: bool = False
    """whether its kernels are those that kernels.csv shows: one case of an operator"""


@dataclass(frozen=True)
class Operator:
    """Cases of one kind of work, at full and at smoke size.

    `sizes` maps a scale to the keyword arguments of `cases(device, recipes, **size)`, which names all cases in
    order, the same for every variant. `recipes` holds what the run's settings name, by key (`gemm`, `norm`,
    `compile`, `optimizer`). `cases` raises Unsupported where the variant can do none of them.
    """

    sizes: Mapping[str, Mapping[str, Any]]
    cases: Callable[..., Iterator[Case]]
    timed: bool = True


def accuracy(got: torch.Tensor, reference: torch.Tensor) -> tuple[float, float | None]:
    """Largest difference and SQNR of a result against its float64 reference.

    SQNR is the reference's power over the difference's, in dB; 6 dB are one bit. None for an exact result.

    Raises:
        Invalid: a value of the result is not finite.
    """
    difference = got.double() - reference
    largest, noise = difference.abs().max().item(), difference.square().sum()
    if not math.isfinite(largest):
        raise Invalid("the result has values that are not finite")
    return largest, (10 * (reference.square().sum() / noise).log10()).item() if noise > 0 else None
