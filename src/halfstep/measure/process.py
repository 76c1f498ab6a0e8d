"""What every measuring process needs, whatever it measures: what its run names, its device, the compiler's counters."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from typing import Any

import torch

from halfstep.errors import Unsupported

GIB = 2**30
Emit = Callable[..., None]
Result = dict[str, Any]


def look_up(reference: str) -> Any:
    """What a `module:attribute` of the run names."""
    module, _, attribute = reference.partition(":")
    return getattr(importlib.import_module(module), attribute)


def open_device(run: dict[str, Any]) -> torch.device:
    """The device that was asked for, with its threads and its memory cap set; never another.

    Raises:
        Unsupported: there is no such device, or the cap cannot be applied to it.
    """
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    if run["device"] == "cpu":
        if run["memory_cap_gib"] is not None:
            raise Unsupported("memory_cap_gib caps torch's allocator on a GPU; this run is on the CPU")
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise Unsupported("torch sees no CUDA GPU; `halfstep doctor` says why")
    device = torch.device("cuda", 0)
    if run["memory_cap_gib"] is not None:
        fraction = run["memory_cap_gib"] * GIB / torch.cuda.get_device_properties(device).total_memory
        if fraction > 1:
            raise Unsupported(f"memory_cap_gib = {run['memory_cap_gib']} is more than this GPU has")
        torch.cuda.set_per_process_memory_fraction(fraction, device)
    return device


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def compiler_counters() -> Result:
    """What torch.compile did so far. Imports torch._dynamo here, which takes seconds that an eager run need not pay."""
    from torch._dynamo.utils import calculate_time_spent, counters

    return {
        "compile_s": calculate_time_spent()["total_wall_time"],
        "graph_breaks": sum(counters["graph_break"].values()),
        "graphs": counters["stats"]["unique_graphs"],
    }
