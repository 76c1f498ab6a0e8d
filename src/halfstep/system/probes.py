"""Probes in a process of their own: `python -m halfstep.system.probes bf16 fp16`.

The doctor starts these, since what they find out may crash or hang. Each prints a line of JSON, its outcome.
"""

from __future__ import annotations

import json
import re
import signal
import sys
import traceback
from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn

from halfstep.system.capabilities import PROBES
from halfstep.system.environment import torch_versions
from halfstep.system.gpu import GIB
from halfstep.system.libraries import SETUP, LibraryError
from halfstep.system.probing import Probe, ProbeError

TIME_LIMIT_S = 180  # for each; importing torch from a cold network file system takes a minute
ALARM_S = TIME_LIMIT_S + 30  # ends a probe whose doctor was killed

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


def run(probe: Probe) -> str:
    """How the capability was proved."""
    probe.require()
    return probe.prove()


def outcome(probe: Callable[[], Any]) -> dict[str, Any]:
    """{status, detail, remedy} of a probe, whatever it does short of ending the process."""
    try:
        return {"status": "available", "detail": probe(), "remedy": None}
    except (ProbeError, LibraryError) as error:
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
    """Print the outcomes of the probes that are named, up to a broken one: it may have spoilt the GPU's context."""
    probes: dict[str, Callable[[], Any]] = {"facts": facts}
    probes |= {name: partial(run, probe) for name, probe in PROBES.items()}
    if not arguments or not set(arguments) <= set(probes):
        sys.exit(f"usage: python -m halfstep.system.probes {'|'.join(probes)} ...")
    for name in arguments:
        signal.alarm(ALARM_S)
        found = outcome(probes[name])
        print(json.dumps({"name": name, **found}), flush=True)
        if found["status"] == "broken":
            break
    sys.exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
