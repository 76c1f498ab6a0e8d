"""`halfstep doctor`: which machine this is, and what it can do, each capability proved by executing it.

No torch here: it is asked in child processes, which may crash or hang without taking the doctor along.
The result names no user, no host and no folder of theirs, and is the same on the same machine.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from halfstep.system.absence import why_no_cuda, why_no_gpu
from halfstep.system.capabilities import CAPABILITIES, PROBES
from halfstep.system.children import outcome, run_probes
from halfstep.system.container import container, why_no_gpu_inside
from halfstep.system.environment import cpu_model
from halfstep.system.gpu import Gpu, GpuError, hidden, visible_gpu
from halfstep.system.libraries import SETUP, LibraryError, locate
from halfstep.system.probes import TIME_LIMIT_S
from halfstep.system.probing import ALARMS, Probe


def examine() -> dict[str, Any]:
    """{"machine": {...}, "capabilities": [{name, status, detail, remedy}, ...]}; what is not known is None.

    `status` is one of probing.STATUSES. `remedy` says what to do, or what to use instead of what was removed, and
    is None for what is available.
    """
    gpu, no_gpu = _gpu_or_reason()
    facts, no_torch = _torch_or_reason()
    no_cuda = None
    if no_torch is None and "gpu" not in facts:  # where torch has a GPU, it may be that NVML does not answer
        no_cuda = no_gpu or _named("no CUDA GPU is visible", why_no_cuda(gpu, facts, SETUP))

    known: dict[str, dict[str, Any]] = {}
    for name, probe in PROBES.items():
        if name == "nvml":
            if no_gpu is not None:
                known[name] = outcome("missing", *no_gpu)
        elif no_torch is not None:
            known[name] = no_torch
        elif (unusable := _library_or_reason(probe)) is not None:
            known[name] = unusable
        elif probe.cuda and no_cuda is not None:
            known[name] = outcome("missing", *no_cuda)

    children: dict[str, list[str]] = {}
    for name, probe in PROBES.items():
        if name not in known:
            children.setdefault(probe.child, []).append(name)
    # the one that compiles takes longest, so it goes first
    order = sorted(children, key=lambda child: child != "torch_compile")
    with ThreadPoolExecutor(min(8, _cores())) as pool:  # nothing is timed, so they may run side by side
        for found in pool.map(prove, [children[child] for child in order]):
            known |= found
    return {"machine": _machine(gpu, facts), "capabilities": [{"name": name, **known[name]} for name in CAPABILITIES]}


def prove(names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """{status, detail, remedy} by name, of probes that run one after the other in a child process."""
    found = run_probes([sys.executable, "-m", "halfstep.system.probes"], names, TIME_LIMIT_S)
    for name, told in found.items():
        if told["status"] != "available" and told["remedy"] is None:
            told["remedy"] = f"see the whole error with `python -m halfstep.system.probes {name}`, and {SETUP}"
    return found


def print_table(result: Mapping[str, Any]) -> None:
    """Print what `examine` returned: a table on a terminal, aligned plain text elsewhere."""
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 160)
    machine = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for key, value in result["machine"].items():
        machine.add_row(Text(key, style="bold"), Text("-" if value is None else str(value)))
    console.print(machine)
    console.print()
    table = Table(box=box.SIMPLE_HEAD if console.is_terminal else None, padding=(0, 2, 0, 0))
    for heading in ("capability", "status", "how it was proved, or why not", "what to do"):
        table.add_column(heading, no_wrap=heading in ("capability", "status"))
    styles = {"available": "green", "removed": "dim", **dict.fromkeys(ALARMS, "red")}
    for row in result["capabilities"]:
        # Text, since a message may hold what rich would take for its markup
        status = Text(row["status"], style=styles.get(row["status"], "yellow"))
        table.add_row(Text(row["name"]), status, Text(row["detail"]), Text(row["remedy"] or ""))
    console.print(table)


def _gpu_or_reason() -> tuple[Gpu | None, tuple[str, str] | None]:
    """The GPU; or why there is none, and the remedy."""
    try:
        gpu = visible_gpu()
    except GpuError as error:
        return None, _named("no GPU is visible", (str(error).rstrip("."), "name a GPU that `nvidia-smi -L` lists"))
    if gpu is not None:
        return gpu, None
    inside = None if hidden() else why_no_gpu_inside()
    return None, inside or _named("no GPU is visible", why_no_gpu())


def _named(what: str, reason: tuple[str, str]) -> tuple[str, str]:
    return f"{what}: {reason[0]}", reason[1]


def _torch_or_reason() -> tuple[dict[str, Any], dict[str, Any] | None]:
    """What torch says of itself, or the outcome of every capability that needs it."""
    if importlib.util.find_spec("torch") is None:
        return {}, outcome("missing", "PyTorch is not installed", SETUP)
    found = prove(["facts"])["facts"]
    if found["status"] != "available":
        return {}, {**found, "detail": f"PyTorch does not load: {found['detail']}"}
    return found["detail"], None


def _library_or_reason(probe: Probe) -> dict[str, Any] | None:
    """The outcome of a probe whose library is not usable, as far as that is seen without importing it."""
    if probe.library is None:
        return None
    try:
        locate(probe.library)
    except LibraryError as error:
        return outcome(error.status, error.detail, error.remedy)
    return None


def _cores() -> int:
    return len(os.sched_getaffinity(0))


def _machine(gpu: Gpu | None, facts: Mapping[str, Any]) -> dict[str, Any]:
    """NVML knows the GPU best; what torch says stands in where NVML does not answer."""
    capability = facts.get("compute_capability") if gpu is None else gpu.compute_capability
    memory = facts.get("memory_gib") if gpu is None else gpu.memory_total_gib
    return {
        "gpu": facts.get("gpu") if gpu is None else gpu.name,
        "device": None if gpu is None else gpu.slug,
        "compute_capability": None if capability is None else ".".join(map(str, capability)),
        "memory_gib": None if memory is None else round(memory, 1),
        "power_limit_w": None if gpu is None else gpu.power_limit_w,
        "power_limit_default_w": None if gpu is None else gpu.power_limit_default_w,
        "driver": None if gpu is None else gpu.driver,
        "driver_cuda": None if gpu is None else gpu.cuda_driver,
        "cuda": facts.get("cuda"),
        "cudnn": facts.get("cudnn"),
        "torch": facts.get("torch"),
        "python": platform.python_version(),
        "container": container(),
        "cpu": cpu_model(),
        "cores": _cores(),
    }
