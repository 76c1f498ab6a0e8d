"""Optional libraries: each is imported, or it is said exactly what is wrong with it.

`locate` answers what can be known without importing anything; `load` imports. Both the doctor's probes and
the measuring recipes ask here, so that the one's table and the other's `unsupported` say the same.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import sys
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

SETUP = "install the versions of requirements-train.lock: make setup"
APEX_AMP_FOLDER = "HALFSTEP_APEX_AMP"


class LibraryError(Exception):
    """A library is not usable: missing, broken, python-only, unrelated or removed; as text, a whole sentence."""

    def __init__(self, status: str, detail: str, remedy: str) -> None:
        super().__init__(f"{detail}; {remedy}")
        self.status = status
        self.detail = detail
        self.remedy = remedy


@dataclass(frozen=True)
class Library:
    name: str
    install: str


APEX = Library(
    "NVIDIA Apex",
    "build NVIDIA Apex from source with its extensions: APEX_CPP_EXT=1 APEX_CUDA_EXT=1 pip install -v "
    "--no-build-isolation git+https://github.com/NVIDIA/apex",
)
TRANSFORMER_ENGINE = Library(
    "Transformer Engine", "pip install --no-build-isolation 'transformer_engine[core_cu13,pytorch]'"
)
# by the first part of a module's name
LIBRARIES = {
    "apex": APEX,
    "amp_C": APEX,
    "fused_layer_norm_cuda": APEX,
    "transformer_engine": TRANSFORMER_ENGINE,
    "torchao": Library("torchao", SETUP),
    "liger_kernel": Library("Liger", SETUP),
}
INSTEAD_OF_AMP = (
    f"use torch.amp (precision: fp16); for apex.amp itself, set {APEX_AMP_FOLDER} to a folder that holds the `apex` "
    "package of Apex 25.05, the last with it"
)

TORCH_SYMBOL = re.compile(r"_Z(?:T[ISV])?N?K?(?:3c10|2at|5torch)|THP|aoti_torch")
CUDA_LIBRARY = re.compile(r"lib(?:cudart|cublas\w*|nvrtc|cusparse|cusolver)\.so\.(\d+)\S* cannot open")
NOT_IN_TORCH = re.compile(r"cannot import name '(\w+)' from 'torch|module 'torch[\w.]*' has no attribute '(\w+)'")
NO_KERNELS = re.compile(r"Could not find shared object file|empty `transformer-engine` meta package")


def locate(module: str) -> None:
    """Look for `module` of one of LIBRARIES without importing it, or torch.

    Raises:
        LibraryError: it is missing, python-only, unrelated or removed.
    """
    top, _, inner = module.partition(".")
    library = LIBRARIES[top]
    if module == "apex.amp" and APEX_AMP_FOLDER in os.environ:
        if not _amp_folder().joinpath("apex", "amp", "__init__.py").is_file():
            raise LibraryError("missing", f"{APEX_AMP_FOLDER} names a folder without apex/amp", INSTEAD_OF_AMP)
        return
    spec = importlib.util.find_spec(top)
    if spec is not None and top == "apex":
        _tell_apexes_apart(spec, inner)
    if spec is not None:
        return
    if module == "apex.amp":
        raise LibraryError("missing", "NVIDIA Apex is not installed, and has no amp since 2025-05-08", INSTEAD_OF_AMP)
    if library is APEX and top != "apex":
        locate("apex")
        raise LibraryError("python-only", f"NVIDIA Apex is installed without its kernels: no {top}", APEX.install)
    raise LibraryError("missing", f"{library.name} is not installed", library.install)


def load(module: str) -> ModuleType:
    """Import `module` of one of LIBRARIES, and torch before it: Transformer Engine finds NCCL through torch.

    `apex.optimizers` and `apex.normalization` load without their kernels: load `amp_C` and
    `fused_layer_norm_cuda` too. `apex.amp` is taken from the folder that HALFSTEP_APEX_AMP names, if it does.

    Raises:
        LibraryError: it is missing, broken, python-only, unrelated or removed.
    """
    locate(module)
    if module == "apex.amp" and APEX_AMP_FOLDER in os.environ:
        _put_amp_first()
    _load_torch()
    try:
        return importlib.import_module(module)
    except Exception as error:  # what an import can raise is anything
        raise _explained(module, error) from error


def load_apex_amp() -> ModuleType:
    """Legacy `apex.amp`: of the folder in HALFSTEP_APEX_AMP, or of the Apex that is installed.

    With the folder, all of `apex` comes from there, so nothing may have imported another Apex before.

    Raises:
        LibraryError: removed (since 2025-05-08), missing, unrelated or broken.
    """
    return load("apex.amp")


def _tell_apexes_apart(spec: ModuleSpec, inner: str) -> None:
    """Raises: LibraryError, where it is not NVIDIA's, or no longer has amp."""
    parts = {path.stem for folder in spec.submodule_search_locations or () for path in Path(folder).glob("*")}
    if spec.origin is None or not parts & {"optimizers", "normalization"}:
        found = "a folder called `apex`" if spec.origin is None else "a package called `apex`"
        raise LibraryError(
            "unrelated",
            f"{found} is found, and it is not NVIDIA's: it has no apex.optimizers (PyPI's `apex` is a web toolkit)",
            f"pip uninstall apex, or rename the folder; then {APEX.install}",
        )
    if inner == "amp" and "amp" not in parts:
        raise LibraryError("removed", "NVIDIA Apex has no apex.amp since 2025-05-08", INSTEAD_OF_AMP)


def _amp_folder() -> Path:
    return Path(os.environ[APEX_AMP_FOLDER]).resolve()


def _put_amp_first() -> None:
    """Raises: LibraryError, where another Apex is imported already."""
    folder = _amp_folder()
    imported = sys.modules.get("apex")
    if imported is not None and not (imported.__file__ and Path(imported.__file__).resolve().is_relative_to(folder)):
        raise LibraryError(
            "broken", "another Apex was imported before apex.amp", "load apex.amp first, in a process of its own"
        )
    if sys.path[0] != str(folder):
        sys.path.insert(0, str(folder))


def _load_torch() -> None:
    try:
        importlib.import_module("torch")
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and error.name == "torch":
            raise LibraryError("missing", "PyTorch is not installed", SETUP) from error
        raise LibraryError("broken", f"PyTorch does not load: {_first_line(error)}", SETUP) from error


def _explained(module: str, error: Exception) -> LibraryError:
    """What an exception from importing `module` means."""
    import torch

    top = module.partition(".")[0]
    library, text = LIBRARIES[top], str(error)
    again = f"for the installed torch {torch.__version__}, {library.install}"
    if symbol := re.search(r"undefined symbol: (\w+)", text):
        other = "another torch" if TORCH_SYMBOL.match(symbol[1]) else "other versions of the libraries under it"
        return LibraryError(
            "broken", f"{module} does not load: undefined symbol {symbol[1]}, so it was built for {other}", again
        )
    if (cuda := CUDA_LIBRARY.search(text)) and torch.version.cuda and torch.version.cuda.split(".")[0] != cuda[1]:
        brings = f"torch {torch.__version__} brings CUDA {torch.version.cuda}"
        return LibraryError("broken", f"{module} does not load: built for CUDA {cuda[1]}, and {brings}", again)
    if "libcuda.so.1" in text:
        return LibraryError(
            "missing",
            f"{module} needs the NVIDIA driver's libcuda.so.1, and there is none",
            "run it on a machine with an NVIDIA GPU and its driver",
        )
    if NO_KERNELS.search(text):
        return LibraryError("python-only", f"{library.name} is installed without its kernels for PyTorch", again)
    if isinstance(error, ModuleNotFoundError) and error.name and error.name.partition(".")[0] != top:
        what = f"{library.name} needs the module {error.name}, which is not installed"
        return LibraryError("missing", what, f"install it, or {library.install}")
    if name := NOT_IN_TORCH.search(text):
        lacks = f"it asks torch for {name[1] or name[2]}, which torch {torch.__version__} does not have"
        return LibraryError("broken", f"{module} does not load: {lacks}", again)
    return LibraryError("broken", f"{module} does not load: {_first_line(error)}", again)


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
