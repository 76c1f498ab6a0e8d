"""The measuring process: `python -m halfstep.measure.child RUN_JSON RESULT_FILE`.

It is told everything by the resolved run, tells its supervisor how far it is through a pipe
(HALFSTEP_EVENTS, a file descriptor; one JSON object per line), and writes its result as JSON.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import Any


def die_with_parent() -> None:
    """Have the kernel kill this process when its supervisor dies (Linux: prctl(2), PR_SET_PDEATHSIG = 1)."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    if os.environ.get("HALFSTEP_SUPERVISOR") not in (None, str(os.getppid())):
        sys.exit("the supervisor is gone")  # it died before we asked


class Events:
    """Messages to the supervisor; without one (a run by hand) they go nowhere."""

    def __init__(self) -> None:
        self.descriptor = int(os.environ.get("HALFSTEP_EVENTS", "-1"))

    def __call__(self, event: str, **details: Any) -> None:
        if self.descriptor >= 0:
            os.write(self.descriptor, json.dumps({"event": event, **details}).encode() + b"\n")


def describe(error: BaseException) -> str:
    """The first line of an error, with its type where that says more."""
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0]}"[:500]


def classify(error: Exception) -> tuple[str, str]:
    """The status and reason of a run that ended with this error."""
    import torch

    from halfstep.errors import Invalid, Unsupported

    text = str(error)
    if isinstance(error, Unsupported):
        return "unsupported", text
    if isinstance(error, Invalid):
        return "invalid", text
    if isinstance(error, MemoryError):
        return "out_of_memory", "the host's memory did not suffice"
    exhausted = "out of memory" in text.lower() or "CUBLAS_STATUS_ALLOC_FAILED" in text
    if isinstance(error, torch.OutOfMemoryError) or (isinstance(error, RuntimeError) and exhausted):
        return "out_of_memory", describe(error)
    return "failed", describe(error)


def main() -> None:
    die_with_parent()
    run, result_file = json.loads(sys.argv[1]), Path(sys.argv[2])
    emit = Events()
    emit("phase", phase="import torch")
    try:
        module, _, function = run["modules"]["measure"].partition(":")
        result = getattr(importlib.import_module(module), function)(run, emit)
    except Exception as error:
        traceback.print_exc()
        status, reason = classify(error)
        result = {"status": status, "reason": reason}
    result_file.write_text(json.dumps(result), encoding="utf-8")


if __name__ == "__main__":
    main()
