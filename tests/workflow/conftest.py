from __future__ import annotations

import os
import shutil
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from tree import CONFIG, REPORTING, Tree, runs


@pytest.fixture(scope="session")
def base_image() -> str:
    """What the image's tests build on. Who asks for them has what they need: nothing is skipped."""
    missing = [
        tools
        for tools in ("apptainer singularity", "docker podman buildah")
        if not any(map(shutil.which, tools.split()))
    ]
    assert not missing, f"on the PATH is none of: {missing}"
    assert "HALFSTEP_TEST_BASE_IMAGE" in os.environ, "it names a Debian 12 with python3-venv that the builder has"
    return os.environ["HALFSTEP_TEST_BASE_IMAGE"]


@pytest.fixture
def config() -> dict[str, Any]:
    """The study of the finished tree, to change."""
    return deepcopy(CONFIG)


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Tree:
    """A tree after one complete call, measured by the stand-in. Only to be copied."""
    tree = Tree.make(tmp_path_factory.mktemp("finished") / "tree", CONFIG, stand_in=True)
    everything = {*runs("lm/fp32", "lm/bf16", "lm/tf32", "vit/fp32", "vit/bf16"), "probe_system", *REPORTING}
    assert set(tree.run()) == everything
    return tree


@pytest.fixture
def tree(finished: Tree, tmp_path: Path) -> Tree:
    """A copy of the finished tree."""
    return finished.copy(tmp_path / "tree")
