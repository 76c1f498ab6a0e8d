from __future__ import annotations

import os
from collections.abc import Iterator

import pytest


@pytest.fixture
def keep_switches() -> Iterator[None]:
    """Whatever a recipe of the test sets of TF32 is undone."""
    import torch  # here, since most tests of the workflow need none

    matmul, cudnn = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    yield
    torch.set_float32_matmul_precision(matmul)
    torch.backends.cudnn.allow_tf32 = cudnn


@pytest.fixture
def one_thread(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The measuring code's, in this process: of tiny models, beside other work, two would wait for each other."""
    import torch

    threads, core = torch.get_num_threads(), min(os.sched_getaffinity(0))
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {core})
    yield
    torch.set_num_threads(threads)
