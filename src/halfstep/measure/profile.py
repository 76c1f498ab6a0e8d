"""Where the GPU's time goes in a step: its kernels, from profiled steps outside the timed window."""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

STEPS = 2
GPU_CATEGORIES = {"kernel", "gpu_memcpy", "gpu_memset"}


def profile_kernels(step: Callable[[], Any]) -> tuple[list[dict[str, Any]], float]:
    """Profile a few steps on a GPU.

    Returns:
        Rows of kernels.csv but for the kind (per step, longest first), and the union of the kernels' intervals per
        step in ms: kernels that overlap count once, so it is the time in which the GPU did anything.
    """
    step()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for _ in range(STEPS):
            step()
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    kernels = [event for event in events if event.get("cat") in GPU_CATEGORIES]
    return tabulate(kernels), union_ms([(event["ts"], event["ts"] + event["dur"]) for event in kernels])


def tabulate(kernels: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows of kernels.csv, but for the kind, from the trace's events, whose `dur` is in microseconds."""
    calls: Counter[str] = Counter()
    microseconds: Counter[str] = Counter()
    for event in kernels:
        calls[event["name"]] += 1
        microseconds[event["name"]] += event["dur"]
    return [
        {
            "kernel": name,
            "calls_per_step": calls[name] / STEPS,
            "ms_per_step": total / STEPS / 1e3,
        }
        for name, total in sorted(microseconds.items(), key=lambda item: (-item[1], item[0]))
    ]


def union_ms(intervals: list[tuple[float, float]]) -> float:
    """Length of the union of intervals in microseconds, per step, in ms."""
    total, end = 0.0, float("-inf")
    for start, stop in sorted(intervals):
        total += max(0.0, stop - max(start, end))
        end = max(end, stop)
    return total / STEPS / 1e3
