"""Copied into a test's tree as src/pynvml.py: NVML of one made-up H200, which goes wrong as the test says.

What goes wrong is the word in NVML_FAULT or, while a run is measured, the name of its variant. Behind it stands the
real module, with its constants and its errors.
"""

import importlib.util
import os
import sys
from importlib.machinery import PathFinder
from pathlib import Path
from types import SimpleNamespace

import psutil

_elsewhere = [entry for entry in sys.path if Path(entry or ".").resolve() != Path(__file__).parent.resolve()]
_origin = PathFinder.find_spec("pynvml", _elsewhere).origin
_spec = importlib.util.spec_from_file_location("pynvml_of_nvidia", _origin)
_real = importlib.util.module_from_spec(_spec)
sys.modules[_spec.name] = _real  # it looks itself up there
_spec.loader.exec_module(_real)
globals().update({name: value for name, value in vars(_real).items() if not name.startswith("__")})

GIB = 2**30
_measured = [Path(word).parent.name for word in sys.orig_argv if word.startswith("results/") and "/runs/" in word]
FAULT = os.environ.get("NVML_FAULT") or (_measured[0] if _measured else "")
asked = 0


def refuse(error):
    raise _real.NVMLError(error)


def _about(name, value):
    def query(*arguments):
        global asked
        if name not in IDENTITY:
            asked += 1
            if FAULT == "gpu-lost" and asked > 4:  # in the first sample of its window
                refuse(_real.NVML_ERROR_GPU_IS_LOST)
            if FAULT == "nvml-refuses":
                refuse(_real.NVML_ERROR_NOT_SUPPORTED)
            if FAULT == "nvml-garbage":
                return 2**32 - 1
        return value(*arguments)

    return query


def _processes(handle):
    ours = [SimpleNamespace(pid=child.pid, usedGpuMemory=50 * GIB) for child in psutil.Process().children()]
    return ours + [SimpleNamespace(pid=1, usedGpuMemory=3.5 * GIB)] * (FAULT == "others")


def nvmlInit():
    if FAULT == "no-nvml":
        refuse(_real.NVML_ERROR_LIBRARY_NOT_FOUND)
    if FAULT == "driver-mismatch":
        refuse(_real.NVML_ERROR_LIB_RM_VERSION_MISMATCH)


def nvmlDeviceGetName(handle):
    if FAULT == "nameless":
        refuse(_real.NVML_ERROR_UNKNOWN)
    return "NVIDIA H200"


IDENTITY = {
    "nvmlDeviceGetUUID", "nvmlDeviceGetMigMode", "nvmlDeviceGetMemoryInfo", "nvmlDeviceGetCudaComputeCapability",
    "nvmlDeviceGetPowerManagementDefaultLimit",
}  # fmt: skip
ANSWERS = {
    "nvmlDeviceGetUUID": lambda handle: Path("uuid").read_text(),
    "nvmlDeviceGetMigMode": lambda handle: [0, 0],
    "nvmlDeviceGetMemoryInfo": lambda handle: SimpleNamespace(total=140 * GIB),
    "nvmlDeviceGetCudaComputeCapability": lambda handle: (9, 0),
    "nvmlDeviceGetPowerManagementDefaultLimit": lambda handle: 700_000,
    "nvmlDeviceGetEnforcedPowerLimit": lambda handle: 500_000 if FAULT == "power-limit" else 700_000,
    "nvmlDeviceGetPowerUsage": lambda handle: 400_000,
    "nvmlDeviceGetTotalEnergyConsumption": lambda handle: 5_000 * asked,
    "nvmlDeviceGetClockInfo": lambda handle, clock: 1980,
    "nvmlDeviceGetTemperature": lambda handle, sensor: 61,
    "nvmlDeviceGetCurrentClocksEventReasons": lambda handle: (
        _real.nvmlClocksEventReasonHwThermalSlowdown if FAULT == "too-hot" else 0
    ),
    "nvmlDeviceGetComputeRunningProcesses_v3": _processes,
}
globals().update({name: _about(name, value) for name, value in ANSWERS.items()})
nvmlShutdown = lambda: None  # noqa: E731
nvmlDeviceGetCount = lambda: 1  # noqa: E731
nvmlDeviceGetHandleByIndex = lambda index: "H200"  # noqa: E731
nvmlDeviceGetHandleByUUID = lambda uuid: "H200"  # noqa: E731
nvmlSystemGetDriverVersion = lambda: "580.159.04"  # noqa: E731
nvmlSystemGetCudaDriverVersion_v2 = lambda: 13000  # noqa: E731
