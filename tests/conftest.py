from __future__ import annotations

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
