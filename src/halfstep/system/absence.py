"""Why there is no GPU, and what to do about it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import pynvml

from halfstep.system.gpu import Gpu, hidden, nvml

# The oldest driver branch that serves a CUDA major version ("CUDA Compatibility", minor version compatibility).
DRIVERS = {"11": "450", "12": "525", "13": "580"}
PASS_THE_GPU_IN = "in a container, pass the GPU in (--nv with Apptainer, --gpus all with Docker)"


def why_no_cuda(gpu: Gpu | None, facts: Mapping[str, Any], setup: str) -> tuple[str, str]:
    """Why torch can use no GPU, and the remedy: `gpu` is what NVML sees, `facts` what torch said.

    `setup` says how to install the torch that the lock names.
    """
    if gpu is None:
        return why_no_gpu()
    cuda = facts.get("cuda")
    if cuda is None:
        return f"torch {facts['torch']} is a build for the CPU", setup
    major = cuda.split(".")[0]
    if gpu.cuda_driver is not None and int(gpu.cuda_driver.split(".")[0]) < int(major):
        return (
            f"driver {gpu.driver} serves CUDA {gpu.cuda_driver} at most, and torch {facts['torch']} needs CUDA {cuda}",
            f"install an NVIDIA driver of at least {DRIVERS.get(major, f'CUDA {major}')}",
        )
    return (
        f"NVML sees {gpu.name} and torch does not: {facts.get('problem')}",
        f"see whether nvidia-smi answers and /dev/nvidia-uvm is there; {PASS_THE_GPU_IN}",
    )


def why_no_gpu() -> tuple[str, str]:
    """Why NVML gives no GPU, and the remedy."""
    if hidden():
        value = os.environ["CUDA_VISIBLE_DEVICES"]
        return f"CUDA_VISIBLE_DEVICES={value!r} hides them all", "unset CUDA_VISIBLE_DEVICES, or name a GPU in it"
    install = f"install an NVIDIA driver of at least {DRIVERS['13']}"
    try:
        with nvml():
            return (
                "the NVIDIA driver lists no GPU",
                "see `nvidia-smi -L`; in a Slurm job, ask for a GPU with --gpus=1 or --gres=gpu:1",
            )
    except pynvml.NVMLError_LibraryNotFound:
        return "there is no NVIDIA driver", f"on a machine with an NVIDIA GPU, {install}; {PASS_THE_GPU_IN}"
    except pynvml.NVMLError_DriverNotLoaded:
        return "the NVIDIA driver is not loaded", f"reboot, or {install}"
    except pynvml.NVMLError_LibRmVersionMismatch:
        return "the loaded NVIDIA driver and its library differ in version", "reboot, so that the new driver is loaded"
    except (pynvml.NVMLError, OSError) as error:
        return f"the NVIDIA driver does not answer: {error}", "see what nvidia-smi says"


def why_driver_is_silent() -> tuple[str, str] | None:
    """Where a driver is loaded and does not answer: why not, and the remedy; None otherwise."""
    try:
        with nvml():
            return None
    except (pynvml.NVMLError_LibraryNotFound, pynvml.NVMLError_DriverNotLoaded):
        return None  # so there is no GPU that could be used, as on many a login node
    except (pynvml.NVMLError, OSError):
        return None if hidden() else why_no_gpu()
