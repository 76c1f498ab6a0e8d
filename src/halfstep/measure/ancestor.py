"""Noticing that the Snakemake above us is gone.

A parent-death signal reaches only a direct child, and between Snakemake and us there may be a shell or
a container's starter that survives it. So the supervisor holds a pidfd of the Snakemake process itself.
"""

from __future__ import annotations

import os
from pathlib import Path, PurePath

import psutil


def this_process() -> str:
    """This process, for those that it starts: its number, and the namespace in which that number counts."""
    return f"{os.getpid()}@{_namespace()}"


def _namespace() -> str:
    return str(Path("/proc/self/ns/pid").readlink())


def snakemake_pidfd() -> int | None:
    """A file descriptor that becomes readable when the Snakemake that started us ends; None without one.

    Raises:
        ProcessLookupError: it ended before we looked.
    """
    pid, _, namespace = os.environ.get("HALFSTEP_SNAKEMAKE", "").partition("@")
    if pid and namespace == _namespace():
        return os.pidfd_open(int(pid))
    # by hand, or in a container that numbers its processes anew
    for process in psutil.Process().parents():
        try:
            if any(PurePath(part).name == "snakemake" for part in process.cmdline()[:4]):
                return os.pidfd_open(process.pid)
        except (psutil.Error, OSError):
            continue
    return None
