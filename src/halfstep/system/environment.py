"""What a measurement was made with: versions, driver and device. No ratio is printed across two environments."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import platform
import re
from collections.abc import Mapping
from pathlib import Path

from halfstep.system.gpu import visible_gpu

# Name here: the distributions that may provide it. Their versions are read without importing them.
PACKAGES: dict[str, tuple[str, ...]] = {
    "apex": ("apex",),
    "liger_kernel": ("liger-kernel",),
    "timm": ("timm",),
    "torchao": ("torchao",),
    "torchvision": ("torchvision",),
    "transformer_engine": ("transformer-engine", "transformer-engine-cu13", "transformer-engine-cu12"),
    "triton": ("triton",),
}


def environment() -> dict[str, str]:
    """Versions of all that can change a measurement; what is not installed is left out.

    The kernel's build is left out too: a cluster's nodes differ in it, and it is not what is compared. To
    measure on the CPU of a machine with a GPU, the caller hides the GPU with an empty CUDA_VISIBLE_DEVICES.

    Raises:
        GpuError: CUDA_VISIBLE_DEVICES names a GPU that is not here.
    """
    found = {
        "python": platform.python_version(),
        "platform": "-".join([platform.system(), platform.machine(), *filter(None, platform.libc_ver())]),
        **torch_versions(),
    }
    for name, distributions in PACKAGES.items():
        version = next(filter(None, map(_version, distributions)), None)
        if version is not None:
            found[name] = version
    gpu = visible_gpu()
    if gpu is None:
        found["cpu"] = cpu_model()
    else:
        found["gpu"] = gpu.name
        if gpu.driver is not None:
            found["driver"] = gpu.driver
    return found


def fingerprint(environment: Mapping[str, str]) -> str:
    """16 hexadecimal digits that are the same for the same environment."""
    text = json.dumps(dict(environment), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def image() -> str:
    """The digest of the container image we run in, which the rules hand over in HALFSTEP_IMAGE, or `host`."""
    return os.environ.get("HALFSTEP_IMAGE") or "host"


def torch_versions() -> dict[str, str]:
    """`torch`, `cuda` and `cudnn`, from torch itself: its package's version does not say what it was built with."""
    try:
        import torch
    except (ImportError, OSError):  # OSError: a shared library that it needs is missing
        return {}
    found = {"torch": str(torch.__version__)}
    if torch.version.cuda:
        found["cuda"] = torch.version.cuda
    try:
        cudnn = torch.backends.cudnn.version()
    except RuntimeError:  # another cuDNN than torch's was found first
        cudnn = None
    if cudnn:  # 91900 is 9.19.0, and before 9 it was 8902 for 8.9.2
        thousands = 10000 if cudnn >= 90000 else 1000
        found["cudnn"] = f"{cudnn // thousands}.{cudnn % thousands // 100}.{cudnn % 100}"
    return found


def cpu_model() -> str:
    """The CPU's name as Linux gives it; on ARM, which gives none, the architecture."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    name = re.search(r"^model name\s*:\s*(\S.*)$", text, re.MULTILINE)
    return name[1].strip() if name else platform.machine()


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None
