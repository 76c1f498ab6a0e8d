"""What a recipe needs of the machine and its libraries: there, or the run is `unsupported` with a sentence."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

from halfstep.errors import Unsupported
from halfstep.system import libraries


def require_gpu(device: torch.device, what: str) -> None:
    """Raises: Unsupported, on a CPU."""
    if device.type != "cuda":
        raise Unsupported(f"{what} needs an NVIDIA GPU; this run is on the CPU")


def require_compute_capability(device: torch.device, needed: tuple[int, int], what: str) -> None:
    """Raises: Unsupported, on a GPU older than `needed`; a CPU passes."""
    if device.type == "cuda" and torch.cuda.get_device_capability(device) < needed:
        raise Unsupported(f"{what} needs compute capability {needed[0]}.{needed[1]} or newer")


def load(module: str) -> Any:
    """The imported module of an optional library.

    Raises:
        Unsupported: it is not there or does not work; with the reason and the remedy.
    """
    return _loaded(lambda: libraries.load(module))


def load_apex_amp() -> Any:
    """The package `apex.amp` of Apex 25.05.

    Raises:
        Unsupported: as `load`.
    """
    return _loaded(libraries.load_apex_amp)


def _loaded(importing: Callable[[], ModuleType]) -> ModuleType:
    try:
        return importing()
    except libraries.LibraryError as error:
        raise Unsupported("; ".join(filter(None, (error.detail, error.remedy)))) from error
