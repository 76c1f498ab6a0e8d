"""Where the kernels of FP8 are tested: their definition on the CPU, Triton's interpreter, a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch


class Place:
    """The calls under test, and the device of their tensors."""

    def __init__(self, calls: Any, device: str) -> None:
        self.calls, self.device = calls, torch.device(device)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.calls, name)


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


@pytest.fixture(
    params=[
        "cpu",
        pytest.param("interpreter", marks=pytest.mark.interpreter),
        pytest.param("gpu", marks=pytest.mark.gpu),
    ]
)
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    from halfstep.fp8 import operators

    if request.param == "interpreter":
        from halfstep.fp8 import launch

        rounded_by_torch(monkeypatch)
        yield Place(launch, "cpu")
    elif request.param == "gpu" and not torch.cuda.is_available():
        pytest.skip("torch sees no CUDA GPU")
    else:
        yield Place(operators, {"cpu": "cpu", "gpu": "cuda"}[request.param])
