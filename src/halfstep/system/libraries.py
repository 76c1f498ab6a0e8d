"""Provisional."""

import importlib
from types import ModuleType


class LibraryError(Exception):
    def __init__(self, status: str, detail: str, remedy: str | None = None) -> None:
        super().__init__(detail)
        self.status, self.detail, self.remedy = status, detail, remedy


def load(module: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise LibraryError("missing", f"{module} cannot be imported: {error}") from error


def load_apex_amp() -> ModuleType:
    return load("apex.amp")
