"""Which GPU this machine gives us, asked through NVML, without torch.

NVML may refuse any single question (not supported, no permission, GPU lost). Such a value is None.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pynvml

GIB = 2**30


class GpuError(Exception):
    """CUDA_VISIBLE_DEVICES names a GPU that is not here; the message says so in a sentence."""


@dataclass(frozen=True)
class Gpu:
    """One GPU, or one MIG instance of a GPU; None where NVML does not answer."""

    index: int  # among the GPUs this process may open, in order of the PCI bus; a MIG instance has its GPU's
    uuid: str
    name: str
    slug: str
    memory_total_gib: float | None
    compute_capability: tuple[int, int] | None
    driver: str | None
    cuda_driver: str | None  # the newest CUDA version that the driver serves, such as "13.0"
    power_limit_w: float | None  # enforced now
    power_limit_default_w: float | None


@dataclass(frozen=True)
class _Device:
    index: int
    handle: Any
    parent: Any  # the whole GPU: the handle itself, but for a MIG instance


def ask(query: Callable[..., Any], *arguments: Any) -> Any:
    """NVML's answer, or None where it refuses: every caller has to take None as "not measured"."""
    try:
        return query(*arguments)
    except (pynvml.NVMLError, OSError, ValueError):  # ValueError: a name that is not UTF-8
        return None


def scaled(value: float | None, factor: float) -> float | None:
    """The value in another unit; not measured stays not measured."""
    return None if value is None else value * factor


@contextmanager
def nvml() -> Iterator[None]:
    """NVML opened, and closed again.

    Raises:
        pynvml.NVMLError: there is no driver, or it does not answer.
    """
    pynvml.nvmlInit()
    try:
        yield
    finally:
        ask(pynvml.nvmlShutdown)


def hidden() -> bool:
    """Whether CUDA_VISIBLE_DEVICES hides every GPU. Slurm writes NoDevFiles for a job without GPUs."""
    first = _first_named()
    return first is not None and (first in ("", "NoDevFiles") or first.startswith("-"))


def visible_gpu() -> Gpu | None:
    """The GPU that CUDA programs started from here see first; None without a driver or a GPU, or if all are hidden.

    CUDA_VISIBLE_DEVICES may name it by index, by UUID (the beginning of one suffices) or by a MIG
    instance's UUID; unset means the first. NVML counts in the order of the PCI bus and CUDA, by default,
    with the fastest first. So on a machine with different GPUs an index means the same to both only
    where CUDA_DEVICE_ORDER=PCI_BUS_ID: the caller sets that for the processes it starts.

    Raises:
        GpuError: CUDA_VISIBLE_DEVICES names a GPU that is not here, or the GPU does not say what it is.
    """
    if hidden():
        return None
    try:
        with nvml():
            gpus = _openable_gpus()
            return _identify(_choose(gpus, _first_named())) if gpus else None
    except (pynvml.NVMLError, OSError):
        return None


def slug(name: str) -> str:
    """The GPU's short name for folders and config.yaml: "NVIDIA H200" is h200.

    It is a valid `study.NAME`, and no scope's suffix, folder under results/ or other value of `device`.
    """
    short = re.sub(r"[^a-z0-9._]+", "-", name.lower().removeprefix("nvidia ")).strip("-._")
    if short in ("", "auto", "cpu", "image", "latest") or short.endswith(("-smoke", "-image")):
        short = f"{short}-gpu".strip("-")
    return short


def _first_named() -> str | None:
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    return None if named is None else named.split(",")[0].strip()


def _openable_gpus() -> list[_Device]:
    """The GPUs that this process may open. NVML counts a cgroup's forbidden ones as well, CUDA does not."""
    handles = (ask(pynvml.nvmlDeviceGetHandleByIndex, index) for index in range(ask(pynvml.nvmlDeviceGetCount) or 0))
    openable = [handle for handle in handles if handle is not None]
    return [_Device(index, handle, handle) for index, handle in enumerate(openable)]


def _mig_instances(gpu: _Device) -> list[_Device] | None:
    """A GPU's MIG instances; None where it is not split that way."""
    mode = ask(pynvml.nvmlDeviceGetMigMode, gpu.handle)
    if mode is None or mode[0] != pynvml.NVML_DEVICE_MIG_ENABLE:
        return None
    places = range(ask(pynvml.nvmlDeviceGetMaxMigDeviceCount, gpu.handle) or 0)
    handles = (ask(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, gpu.handle, place) for place in places)
    return [_Device(gpu.index, handle, gpu.handle) for handle in handles if handle is not None]


def _choose(gpus: list[_Device], named: str | None) -> _Device:
    if named is None:
        return _usable_part(gpus[0])
    if named.isdigit():
        if int(named) >= len(gpus):
            raise GpuError(f"CUDA_VISIBLE_DEVICES names GPU {named}, and this machine has {len(gpus)}, from 0.")
        return _usable_part(gpus[int(named)])
    known = {str(ask(pynvml.nvmlDeviceGetUUID, gpu.handle)): gpu for gpu in gpus}
    if named.startswith("MIG-"):
        instances = [instance for gpu in gpus for instance in _mig_instances(gpu) or []]
        known = {str(ask(pynvml.nvmlDeviceGetUUID, instance.handle)): instance for instance in instances}
    found = [device for uuid, device in known.items() if uuid.lower().startswith(named.lower())]
    if len(found) != 1:
        which = "several GPUs begin with" if found else "no GPU here has"
        raise GpuError(f"CUDA_VISIBLE_DEVICES is {named!r}, and {which} that UUID: {', '.join(known) or 'none'}.")
    return _usable_part(found[0])


def _usable_part(device: _Device) -> _Device:
    """A GPU split by MIG runs nothing as a whole: CUDA then takes its first instance."""
    if device.handle is not device.parent:
        return device
    instances = _mig_instances(device)
    if instances is None:
        return device
    if not instances:
        raise GpuError(f"GPU {device.index} is in MIG mode and has no instance.")
    return instances[0]


def _identify(device: _Device) -> Gpu:
    uuid = ask(pynvml.nvmlDeviceGetUUID, device.handle)
    name = ask(pynvml.nvmlDeviceGetName, device.handle)
    if not uuid or not name:
        raise GpuError(f"GPU {device.index} does not answer NVML's question for its name or UUID.")
    memory = ask(pynvml.nvmlDeviceGetMemoryInfo, device.handle)
    cuda = ask(pynvml.nvmlSystemGetCudaDriverVersion_v2)
    # Limits are the whole board's: a MIG instance refuses the question, and None is then right.
    return Gpu(
        index=device.index,
        uuid=uuid,
        name=name,
        slug=slug(name),
        memory_total_gib=None if memory is None else memory.total / GIB,
        compute_capability=ask(pynvml.nvmlDeviceGetCudaComputeCapability, device.parent),
        driver=ask(pynvml.nvmlSystemGetDriverVersion),
        cuda_driver=None if cuda is None else f"{cuda // 1000}.{cuda % 1000 // 10}",
        power_limit_w=scaled(ask(pynvml.nvmlDeviceGetEnforcedPowerLimit, device.handle), 1e-3),
        power_limit_default_w=scaled(ask(pynvml.nvmlDeviceGetPowerManagementDefaultLimit, device.handle), 1e-3),
    )
