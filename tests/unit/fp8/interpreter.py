"""Triton's interpreter, made right where it is not."""

from __future__ import annotations

from typing import Any

import pytest
import torch


def made_right(monkeypatch: pytest.MonkeyPatch) -> None:
    rounded_by_torch(monkeypatch)
    with_tensors_as_bounds(monkeypatch)


def with_tensors_as_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton 3.6's interpreter holds a scalar in an array of one number; numpy 2.4 makes no bound of a loop of that."""
    from triton.runtime import interpreter

    real = interpreter._patch_lang_tensor

    def patch(tensor: Any, scope: Any) -> None:
        real(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())

    monkeypatch.setattr(interpreter, "_patch_lang_tensor", patch)


def rounded_by_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton 3.6's interpreter truncates fp32 on its way to bf16 and FP8, and makes a number of NaN: torch's casts."""
    from triton.runtime import interpreter

    real = interpreter._convert_float
    e4m3, e5m2, byte = torch.float8_e4m3fn, torch.float8_e5m2, torch.uint8
    formats = {"fp8e4nv": (e4m3, byte), "fp8e5": (e5m2, byte), "bf16": (torch.bfloat16, torch.uint16)}

    def convert(values: Any, source: Any, target: Any, rounding: Any) -> Any:
        if source.name != "fp32" or target.name not in formats:
            return real(values, source, target, rounding)
        dtype, bits = formats[target.name]
        return torch.tensor(values).to(dtype).view(bits).numpy()

    monkeypatch.setattr(interpreter, "_convert_float", convert)
