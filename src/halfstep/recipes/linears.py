"""Which linear layers a low-precision recipe can take: known before the model is built."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd, lcm

from halfstep.errors import Invalid, Unsupported

MULTIPLE = 16
"""FP8 matrix products want every dimension a multiple of 16 (torch._scaled_mm's check; 16-byte rows in cuBLAS's
documentation of cublasLtMatmul): in forward and backward pass each of a layer's three is contracted once."""


@dataclass(frozen=True)
class LinearUse:
    """An `nn.Linear` of a model, and how many rows of it one sample is."""

    name: str
    in_features: int
    out_features: int
    rows_per_sample: int


@dataclass(frozen=True)
class Plan:
    """Names of the layers to convert, and of the others with the reason."""

    convert: tuple[str, ...]
    skip: dict[str, str]


def plan_linears(linears: Sequence[LinearUse], batch: int) -> Plan:
    """Convert each linear layer whose features divide by 16; a batch that does not fit them is an error.

    Raises:
        Unsupported: batch times rows of such a layer does not divide by 16; names the nearest batch that works.
        Invalid: no layer can be converted.
    """
    skip = {
        use.name: f"{use.in_features} to {use.out_features} features do not both divide by {MULTIPLE}"
        for use in linears
        if use.in_features % MULTIPLE or use.out_features % MULTIPLE
    }
    fitting = [use for use in linears if use.name not in skip]
    if not fitting:
        why = "; ".join(f"{name}: {reason}" for name, reason in list(skip.items())[:3]) or "it has no nn.Linear"
        raise Invalid(f"not one linear layer of the model can be converted to FP8: {why}")
    broken = [use for use in fitting if batch * use.rows_per_sample % MULTIPLE]
    if broken:
        grain = lcm(*(MULTIPLE // gcd(MULTIPLE, use.rows_per_sample) for use in fitting))
        nearest = max(grain, (batch + grain // 2) // grain * grain)
        raise Unsupported(
            f"batch {batch} makes {batch * broken[0].rows_per_sample} rows in the layer {broken[0].name!r}, and FP8 "
            f"products need a multiple of {MULTIPLE}: the nearest batch that works is {nearest}"
        )
    return Plan(tuple(use.name for use in fitting), skip)
