"""One probe in a process of its own: `python -m halfstep.system.probes bf16`.

The doctor starts these, since what they find out may crash or hang. The last line printed is the outcome as JSON.
"""

from __future__ import annotations

import json
import re
import signal
import sys
import traceback
from collections.abc import Callable
from typing import Any, NoReturn

from halfstep.system.capabilities import PROBES, ProbeError
from halfstep.system.environment import torch_versions
from halfstep.system.gpu import GIB

TIME_LIMIT_S = 180  # importing torch from a cold network file system takes a minute
ALARM_S = TIME_LIMIT_S + 30  # ends a probe whose doctor was killed

SETUP = "install the versions of requirements-train.lock: make setup"
# What the message of an exception says is missing, and what to do about it.
KNOWN_FAILURES: tuple[tuple[str, str], ...] = (
    (r"InvalidCxxCompiler|Failed to find C compiler", "install a C++ compiler: apt install g++"),
    (r"Python\.h", "install Python's headers: apt install python3-dev"),
    (r"TritonMissing|working triton installation|No module named '(triton|setuptools|distutils)", SETUP),
)


def facts() -> dict[str, Any]:
    """What torch says of itself and of the GPU; not a capability, but what the others stand on."""
    import torch

    try:
        torch.cuda.init()
        problem = None
    except Exception as error:  # torch raises AssertionError, RuntimeError or AcceleratorError here
        problem = headline(error)
    found: dict[str, Any] = {**torch_versions(), "problem": problem}
    if problem is None and torch.cuda.device_count():
        properties = torch.cuda.get_device_properties(0)
        found["gpu"] = properties.name
        found["compute_capability"] = [properties.major, properties.minor]
        found["memory_gib"] = round(properties.total_memory / GIB, 1)
    return found


def outcome(probe: Callable[[], Any]) -> dict[str, Any]:
    """{status, detail, remedy} of a probe, whatever it does short of ending the process."""
    try:
        return {"status": "available", "detail": probe(), "remedy": None}
    except ProbeError as error:
        return {"status": error.status, "detail": error.detail, "remedy": error.remedy}
    except Exception as error:
        traceback.print_exc()
        text = f"{type(error).__name__}: {error}"
        for pattern, remedy in KNOWN_FAILURES:
            if re.search(pattern, text):
                return {"status": "missing", "detail": headline(error), "remedy": remedy}
        return {"status": "broken", "detail": headline(error), "remedy": None}


def headline(error: Exception) -> str:
    """The one line of an exception's message that says most: a compiler's first error, or else its beginning."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    said = next((line for line in lines if "error:" in line), lines[0] if lines else "")
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


def main(arguments: list[str]) -> NoReturn:
    """Run the probe that is named, and print its outcome."""
    signal.alarm(ALARM_S)
    probes = {**PROBES, "facts": facts}
    if len(arguments) != 1 or arguments[0] not in probes:
        sys.exit(f"usage: python -m halfstep.system.probes {'|'.join(probes)}")
    print(json.dumps(outcome(probes[arguments[0]])), flush=True)
    sys.exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
