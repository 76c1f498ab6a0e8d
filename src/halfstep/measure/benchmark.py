"""The one way in which an operator is timed."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

WARMUP_MS, WINDOW_MS = 50, 200
"""of `do_bench`: for how long a call is repeated before its window and in it"""
CPU_WINDOW_S = 0.02


@dataclass(frozen=True)
class Timing:
    """Times of one call in ms; on a CPU a sample is the mean over a block of calls."""

    median: float
    mean: float
    p05: float
    p95: float
    samples: int


def benchmark(
    call: Callable[[], Any], device: torch.device, *, grad_to_none: Sequence[torch.Tensor] | None = None
) -> Timing:
    """Time `call` by a library's own fixed window, which does not depend on what is seen in it.

    On a GPU `triton.testing.do_bench`: CUDA events around each call, and before each the L2 cache overwritten, so
    that operands come from memory. On a CPU `torch.utils.benchmark`: blocks of calls, caches warm.

    Args:
        call: what to time. Nothing it returns is kept.
        device: where it runs.
        grad_to_none: tensors whose `.grad` is dropped before each call, outside its time; for a call that uses
            `backward()`, whose gradients would else accumulate. A GPU's window only.

    Raises:
        ValueError: `grad_to_none` on a CPU, where the drop could not be kept out of the time.
        Whatever `call` raises.
    """
    if device.type == "cuda":
        from triton.testing import do_bench

        times = do_bench(call, warmup=WARMUP_MS, rep=WINDOW_MS, grad_to_none=grad_to_none, return_mode="all")
    elif grad_to_none is not None:
        raise ValueError("gradients cannot be dropped outside a call's time on a CPU")
    else:
        from torch.utils.benchmark import Timer

        timer = Timer("call()", globals={"call": call}, num_threads=torch.get_num_threads())
        times = [seconds * 1e3 for seconds in timer.blocked_autorange(min_run_time=CPU_WINDOW_S).times]
    cuts = statistics.quantiles(times, n=20, method="inclusive") if len(times) > 1 else times
    return Timing(statistics.median(times), statistics.fmean(times), cuts[0], cuts[-1], len(times))
