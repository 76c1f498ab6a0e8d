"""Where FP8 matrix products can run."""

from __future__ import annotations

from functools import cache

import torch

NEEDED = (8, 9)
"""compute capability of the oldest GPU with FP8 tensor cores, Ada's: torch._scaled_mm's check"""


def need_fp8(device: torch.device, emulate: bool) -> None:
    """Raises: RuntimeError, where the device has no FP8 and it is not to be emulated."""
    if not emulate and (reason := _lacks(device)):
        raise RuntimeError(
            f"FP8 matrix products need an NVIDIA GPU of compute capability {NEEDED[0]}.{NEEDED[1]} or newer, and "
            f"{reason}: move the model to such a GPU first, or convert it with emulate=True, which computes the same "
            "in plain torch, for tests"
        )


@cache
def _lacks(device: torch.device) -> str:
    if device.type == "meta":  # nothing is computed there, and nobody knows where it will be
        return ""
    if device.type != "cuda" or torch.version.hip:
        return f"this is on {device}" if device.type != "cuda" else "this is one of AMD"
    found = torch.cuda.get_device_capability(device)
    return f"{torch.cuda.get_device_name(device)} has {found[0]}.{found[1]}" if found < NEEDED else ""
