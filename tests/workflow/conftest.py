from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from tree import REPORTING, Tree, runs

# at full scale settings count as they are written: at smoke scale batch and replicates are fixed
CONFIG: dict[str, Any] = {
    "title": "A study",
    "scale": "full",
    "replicates": 2,
    "comparisons": {
        "lm": {
            "workload": "lm",
            "baseline": "fp32",
            "variants": {
                "fp32": {"precision": "fp32", "batch": 16},
                "bf16": {"precision": "bf16", "batch": 16},
                "tf32": {"precision": "tf32", "batch": 16},
            },
        },
        "vit": {
            "workload": "vit_huge",
            "baseline": "fp32",
            "variants": {
                "fp32": {"precision": "fp32", "compile": "blocks", "batch": 16},
                "bf16": {"precision": "bf16", "compile": "blocks", "batch": 16},
            },
        },
    },
}


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
