"""What parity runs train on: a workload with data that can be learnt, made from what is installed anyway."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from halfstep.workloads.workload import Workload


@dataclass(frozen=True)
class Learnable(Workload):
    """A workload whose `batch` draws from a source.

    `source()` is the SHA-256 of that source, which differs where another version of it is installed. Nothing that
    `batch` computes may depend on switches that recipes set, such as TF32: all recipes must see the same bits.
    """

    source: Callable[[], str]


def checksum(inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """A scalar int64 of a batch's bits and their places: sums of whole numbers modulo 2^64, exact in any order."""
    total = torch.zeros((), dtype=torch.int64, device=inputs.device)
    for tensor in (inputs, targets):
        bits = tensor.contiguous().view(torch.int32).flatten().to(torch.int64)
        total = 31 * total + (bits * torch.arange(1, bits.numel() + 1, device=bits.device)).sum()
    return total
