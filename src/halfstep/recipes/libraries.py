"""Optional libraries, as recipes need them: there and whole, or the run is `unsupported`."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import halfstep.system.libraries as libraries
from halfstep.errors import Unsupported


def load(module: str) -> Any:
    """The imported module.

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
