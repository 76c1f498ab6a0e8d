"""What a probe is: how a capability is proved, what has to be there first, and the ways in which it is not there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from halfstep.system.libraries import locate

STATUSES: dict[str, str] = {
    "available": "it was done here, and the result is right",
    "missing": "something that it needs is not there: a GPU, a compiler, a library",
    "broken": "all that it needs is there, and it fails; an undefined symbol or a clash of versions is named",
    "python-only": "the library is installed, and lacks its kernels",
    "unrelated": "another package of the library's name is installed",
    "removed": "the library no longer has it; there is nothing to repair, and the remedy is what to use instead",
    "too old": "this GPU's generation cannot do it",
}
ALARMS = ("broken", "python-only", "unrelated")  # what is installed is not what it seems to be
# the compute capability that brought it
GENERATIONS: dict[tuple[int, int], str] = {
    (8, 0): "bf16 and TF32 matrix units",
    (8, 9): "FP8 matrix units",
    (9, 0): "FP8 matrix products with a scale per block",
    (10, 0): "MXFP8 and NVFP4 matrix units",
}


class ProbeError(Exception):
    """The capability is not there; says why, and what to do about it."""

    status = "broken"

    def __init__(self, detail: str, remedy: str | None = None) -> None:
        super().__init__(detail)
        self.detail = detail
        self.remedy = remedy


class Broken(ProbeError):
    """All that it needs is there, and yet it does not work."""


class Missing(ProbeError):
    """Something that it needs is not there."""

    status = "missing"


class Removed(ProbeError):
    """The library no longer has it; the remedy is what to use instead."""

    status = "removed"


class TooOld(ProbeError):
    """The GPU's generation cannot do it."""

    status = "too old"


@dataclass(frozen=True)
class Probe:
    """How a capability is proved, and what has to be there before that is worth trying."""

    prove: Callable[[], str]
    """does it, and returns how it was proved"""
    child: str
    """probes of one name share a process, as they share their imports"""
    cuda: bool = True
    """needs a GPU; else the CPU does where there is none"""
    compute_capability: tuple[int, int] | None = None
    """the oldest GPU that can, one of GENERATIONS"""
    library: str | None = None
    """module of an optional library"""

    def require(self) -> None:
        """Check what has to be there; imports torch only to ask for the GPU.

        Raises:
            LibraryError: the library is not usable, as far as that is seen without importing it.
            Missing: there is no GPU.
            TooOld: the GPU is.
        """
        if self.library is not None:
            locate(self.library)
        if not self.cuda and self.compute_capability is None:
            return
        import torch

        if torch.cuda.is_available():
            has, needs = torch.cuda.get_device_capability(), self.compute_capability
            if needs is not None and has < needs:
                raise TooOld(
                    f"a GPU of compute capability {has[0]}.{has[1]} has no {GENERATIONS[needs]}",
                    f"use a GPU of compute capability {needs[0]}.{needs[1]} or newer",
                )
        elif self.cuda:
            raise Missing("no CUDA GPU is visible")
