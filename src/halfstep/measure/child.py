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

from halfstep.errors import classify


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
