"""Which scope this is: decided once, by the process that people start."""

from __future__ import annotations

from halfstep.runs import Scope
from halfstep.study import Study
from halfstep.system.absence import why_driver_is_silent
from halfstep.system.gpu import GpuError, visible_gpu


def decide_scope(study: Study, image: bool) -> Scope:
    """The study's device and scale, with `auto` filled in from the GPU that is visible here.

    Raises:
        GpuError: CUDA_VISIBLE_DEVICES names a GPU that is not here, or a driver is loaded and does not answer: that
            there is no GPU would be a guess, and a smoke run on the CPU not what was asked for.
    """
    device = study.device
    if device == "auto":
        gpu = visible_gpu()
        if gpu is None and (silent := why_driver_is_silent()):
            reason, remedy = silent
            raise GpuError(f"device is auto, and {reason}: {remedy}. `device: cpu` measures on the CPU all the same.")
        device = gpu.slug if gpu else "cpu"
    scale = study.scale
    if scale == "auto":
        scale = "smoke" if device == "cpu" else "full"
    return Scope(device, scale, image)
