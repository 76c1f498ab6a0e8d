"""Noticing that the Snakemake above us is gone.

A parent-death signal reaches only a direct child, and between Snakemake and us there may be a shell or
a container's starter that survives it. So the supervisor holds a pidfd of the Snakemake process itself.
"""

from __future__ import annotations

import os
from pathlib import PurePath

import psutil


def snakemake_pidfd() -> int | None:
    """A file descriptor that becomes readable when the nearest Snakemake above this process ends, or None."""
    for process in psutil.Process().parents():
        try:
            if any(PurePath(part).name == "snakemake" for part in process.cmdline()[:4]):
                return os.pidfd_open(process.pid)
        except (psutil.Error, OSError):
            continue
    return None
