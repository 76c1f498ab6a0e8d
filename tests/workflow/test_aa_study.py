"""The study of docs/methodology.md that measures one variant against itself, beside the one in config.yaml."""

from __future__ import annotations

import shutil
from pathlib import Path

from tree import CONFIG, PROJECT, Tree, runs


def test_its_runs_are_added_and_measured_alone(tmp_path: Path) -> None:
    tree = Tree.make(tmp_path / "tree", {**CONFIG, "device": "h200"}, stand_in=True)
    shutil.copy(PROJECT / "tests/gpu/aa.yaml", tree.root)
    records = [f"results/h200/runs/aa/bf16/rep{n}/record.json" for n in range(1, 13)]
    study = ("--configfile", "aa.yaml")
    assert tree.plan(*records, *study) == runs("aa/bf16", replicates=12)
    assert tree.plan(*study) - tree.plan() == runs("aa/bf16", replicates=12)
