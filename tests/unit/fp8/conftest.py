"""Where the kernels of FP8 are tested: their definition on the CPU, Triton's interpreter, a GPU."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
from interpreter import made_right


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if os.environ.get("TRITON_INTERPRET") != "1":
        elsewhere = pytest.mark.skip(reason="runs with TRITON_INTERPRET=1 alone, as test_fp8_interpreter.py runs it")
        for item in items:
            if item.get_closest_marker("interpreter"):
                item.add_marker(elsewhere)


class Place:
    """The calls under test, and the device of their tensors."""

    def __init__(self, calls: Any, device: str) -> None:
        self.calls, self.device = calls, torch.device(device)

    @property
    def runs_kernels(self) -> bool:
        return self.calls.__name__ == "halfstep.fp8.launch" or self.device.type == "cuda"

    def __getattr__(self, name: str) -> Any:
        call, emulate = getattr(self.calls, name), self.calls.__name__ == "halfstep.fp8.operators"
        return partial(call, emulate=True) if emulate and self.device.type == "cpu" else call


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

        made_right(monkeypatch)
        yield Place(launch, "cpu")
    elif request.param == "gpu" and not torch.cuda.is_available():
        pytest.skip("torch sees no CUDA GPU")
    else:
        yield Place(operators, {"cpu": "cpu", "gpu": "cuda"}[request.param])
