"""Whether we run in a container, and whether it was given the GPU."""

from __future__ import annotations

import os
from pathlib import Path

REMEDY = "give --nv to Apptainer, as profiles/default does: snakemake --use-singularity --singularity-args='--nv …'"
DRIVER = Path("/proc/driver/nvidia/version")  # of the host's kernel, which a container shares
PASSED_IN = Path("/.singularity.d/libs")  # where --nv puts the driver's libraries


def container() -> str:
    """`apptainer`, `docker`, `podman`, or `host`."""
    if os.environ.get("APPTAINER_CONTAINER") or os.environ.get("SINGULARITY_CONTAINER"):
        return "apptainer"
    if Path("/.dockerenv").exists():
        return "docker"
    return "podman" if Path("/run/.containerenv").exists() else "host"


def why_no_gpu_inside() -> tuple[str, str] | None:
    """Where no GPU is visible: why not and the remedy, if that is Apptainer's doing; None otherwise."""
    if container() != "apptainer" or any(PASSED_IN.glob("libnvidia-ml.so*")):
        return None
    # without a driver --nv passes nothing in and says nothing, so that here it may well have been given
    no_driver = "" if DRIVER.exists() else ", or this machine has no NVIDIA driver loaded"
    return f"no GPU is visible in the container; --nv is missing{no_driver}", REMEDY
