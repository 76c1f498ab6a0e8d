"""Runs a probe in a child process, and has an outcome whatever the child does."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil

from halfstep.system.switches import without_switches


def outcome(status: str, detail: str, remedy: str | None = None) -> dict[str, Any]:
    """What is known of a capability, as the doctor reports it."""
    return {"status": status, "detail": detail, "remedy": remedy}


def run_probe(command: Sequence[str], time_limit_s: float) -> dict[str, Any]:
    """{status, detail, remedy}: JSON on the last line that `command` prints; broken if it dies, hangs or prints none.

    It compiles into empty caches of its own, and no text in the outcome holds the paths of this user.
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
                code = child.wait(time_limit_s)
            except subprocess.TimeoutExpired:
                return outcome("broken", f"did not end within {time_limit_s:g} s, and was killed")
            finally:
                _end(child)
        found = _read(code, out.read_text(errors="replace"), err.read_text(errors="replace"))
        return {key: _scrub(value, folder) for key, value in found.items()}


def _read(code: int, stdout: str, stderr: str) -> dict[str, Any]:
    if code < 0:
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = f"signal {-code}"
        return outcome("broken", f"died of {name}")
    try:
        found = json.loads(stdout.splitlines()[-1])
        return {key: found[key] for key in ("status", "detail", "remedy")}
    except (IndexError, KeyError, TypeError, ValueError):
        said = [line.strip() for line in stderr.splitlines() if line.strip()]
        return outcome("broken", f"exit code {code}, no outcome" + (f": {said[-1]}" if said else ""))


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
