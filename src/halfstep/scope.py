"""Which scope this is: decided once, by the process that people start."""

from __future__ import annotations

from halfstep.runs import Scope
from halfstep.study import Study
from halfstep.system.gpu import visible_gpu


def decide_scope(study: Study, image: bool) -> Scope:
    """The study's device and scale, with `auto` filled in from the GPU that is visible here."""
    device = study.device
    if device == "auto":
        gpu = visible_gpu()
        device = gpu.slug if gpu else "cpu"
    scale = study.scale
    if scale == "auto":
        scale = "smoke" if device == "cpu" else "full"
    return Scope(device, scale, image)
