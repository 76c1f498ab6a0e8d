"""Runs probes in child processes, and has an outcome of each whatever the children do."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil

from halfstep.system.switches import without_switches

POLL_S = 1.0


def outcome(status: str, detail: str, remedy: str | None = None) -> dict[str, Any]:
    """What is known of a capability, as the doctor reports it."""
    return {"status": status, "detail": detail, "remedy": remedy}


def run_probes(command: Sequence[str], names: Sequence[str], time_limit_s: float) -> dict[str, dict[str, Any]]:
    """{status, detail, remedy} by name, from the lines of JSON that `command`, called with the names, prints.

    The one that it was at when it died, hung for `time_limit_s` or ended without a word is broken, and those after
    it get a process of their own. No text in an outcome holds the paths of this user.
    """
    found: dict[str, dict[str, Any]] = {}
    while left := [name for name in names if name not in found]:
        told, end = _run([*command, *left], time_limit_s)
        found |= {name: told[name] for name in left if name in told}
        unfinished = [name for name in left if name not in told]
        if any(found[name]["status"] == "broken" for name in left if name in told):
            continue  # it went no further, however it ended
        if end is not None:
            found[unfinished[0] if unfinished else left[-1]] = end
        elif unfinished == left:
            found[left[0]] = outcome("broken", "exit code 0, no outcome")
    return found


def _run(command: Sequence[str], time_limit_s: float) -> tuple[dict[str, dict[str, Any]], dict[str, Any] | None]:
    """The outcomes that `command` tells, by name, and how it ended where it did not end well.

    It compiles into empty caches of its own.
    """
    with tempfile.TemporaryDirectory(prefix="halfstep-", ignore_cleanup_errors=True) as folder:
        environment = {
            **without_switches(os.environ),
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",  # so that CUDA's first GPU is NVML's
            "OMP_NUM_THREADS": "1",
            "TMPDIR": folder,
            "TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor",
            "TORCHINDUCTOR_COMPILE_THREADS": "1",
            "TRITON_CACHE_DIR": f"{folder}/triton",
        }
        out, err = Path(folder, "stdout"), Path(folder, "stderr")
        # Files, not pipes: a compiler that outlives its probe would hold a pipe open.
        with out.open("wb") as stdout, err.open("wb") as stderr:
            child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, env=environment)
            try:
                code = _wait(child, out, time_limit_s)
            finally:
                _end(child)
        if code is None:
            end: dict[str, Any] | None = outcome("broken", f"did not end within {time_limit_s:g} s, and was killed")
        else:
            end = _bad_end(code, err.read_text(errors="replace"))
        return _scrub(_told(out), folder), _scrub(end, folder)


def _wait(child: subprocess.Popen[bytes], out: Path, time_limit_s: float) -> int | None:
    """The child's exit code; None if it told nothing new for `time_limit_s`."""
    told, deadline = 0, time.monotonic() + time_limit_s
    while True:
        try:
            return child.wait(min(POLL_S, max(0.0, deadline - time.monotonic())))
        except subprocess.TimeoutExpired:
            now = len(_told(out))
        if now > told:
            told, deadline = now, time.monotonic() + time_limit_s
        elif time.monotonic() >= deadline:
            return None


def _told(out: Path) -> dict[str, dict[str, Any]]:
    """The outcomes among all that was printed."""
    found = {}
    for line in out.read_text(errors="replace").splitlines():
        with contextlib.suppress(KeyError, TypeError, ValueError):
            told = json.loads(line)
            found[told["name"]] = outcome(told["status"], told["detail"], told["remedy"])
    return found


def _bad_end(code: int, stderr: str) -> dict[str, Any] | None:
    if code == 0:
        return None
    if code > 0:
        said = [line.strip() for line in stderr.splitlines() if line.strip()]
        return outcome("broken", f"exit code {code}, no outcome" + (f": {said[-1]}" if said else ""))
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return outcome("broken", f"died of {name}")


def _end(child: subprocess.Popen[bytes]) -> None:
    """Kill a child that still runs, and the compilers that it started."""
    if child.poll() is not None:
        return
    processes: list[psutil.Process] = []
    with contextlib.suppress(psutil.Error):
        processes = psutil.Process(child.pid).children(recursive=True)
    child.kill()
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.kill()
    # one that hangs inside the driver is reached by no signal: go on without it
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(5)


def _scrub(value: Any, folder: str) -> Any:
    """The value without the paths that say who or where we are, or that are new ones each time."""
    if isinstance(value, dict):
        return {key: _scrub(inner, folder) for key, inner in value.items()}
    if not isinstance(value, str):
        return value
    home = Path(os.environ.get("HOME", "/"))
    names = {folder: "<tmp>", str(Path.cwd()): ".", str(home): "~", f"/{home.name}/": "/<user>/"}
    if sys.prefix != sys.base_prefix:
        names[sys.prefix] = "<venv>"
    for path in sorted(names, key=len, reverse=True):
        if path.strip("/"):
            value = value.replace(path, names[path])
    return value
