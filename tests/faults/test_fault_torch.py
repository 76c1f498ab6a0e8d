"""What only torch and the real measuring process can show, by recipes that a user adds.

The clock jumps and numbers have decimal commas in all of them.
"""

from __future__ import annotations

import re
import subprocess
from typing import Any

import pytest
from tree import NO_DOCTOR, REPORTING, Tree, jobs_in, report_line, runs

from halfstep.report.markdown import prose

RECIPES = '''
"""Recipes that go wrong, each in its way."""

import locale
import os
import shutil
import time
from pathlib import Path

import torch

from halfstep.recipes.precision.precision import Precision


class Around(Precision):
    """A machine whose clock is set back in every step, and whose numbers have decimal commas."""

    def prepare(self, model):
        locale.setlocale(locale.LC_NUMERIC, "")
        assert locale.str(1.5) == "1,5"
        return {}

    def backward(self, loss):
        now = time.time()
        time.time = lambda: now - 3600
        super().backward(loss)


class NotANumber(Around):
    def prepare(self, model):
        for parameter in model.parameters():
            torch.nn.init.constant_(parameter, float("nan"))
        return super().prepare(model)


class NoCache(Around):
    def prepare(self, model):
        cache = Path(os.environ["TORCHINDUCTOR_CACHE_DIR"])
        shutil.rmtree(cache, ignore_errors=True)
        cache.write_text("")
        return super().prepare(model)
'''
WORKLOAD = '''
"""The language model, tiny at any scale."""

from dataclasses import replace

from halfstep.workloads.lm import LM

TINY = replace(LM, sizes={"full": LM.sizes["smoke"]})
'''
# fault: the variant, its recipe, the status of its run, and its reason
FAULTS: dict[str, tuple[str, str, str, str]] = {
    "the clock is set back in every step": ("around", "Around", "ok", ""),
    "a locale with decimal commas in the measuring process": ("around", "Around", "ok", ""),
    "the loss is no number": ("nan", "NotANumber", "invalid", "the loss was not finite in 3 of 3 timed steps"),
    "the compiler's cache cannot be written": ("nocache", "NoCache", "failed", r"FileExistsError: .*inductor.*"),
}
VARIANTS = {variant: recipe for variant, recipe, *_ in FAULTS.values()}
CONFIG: dict[str, Any] = {
    "scale": "full",
    "replicates": 1,
    "window": {"warmup_steps": 2, "min_steps": 3, "min_seconds": 0.001},
    "comparisons": {
        "faults": {
            "workload": "tiny",
            "baseline": "around",
            "variants": {
                "around": {"precision": "around", "batch": 2},
                "nan": {"precision": "nan", "batch": 2},
                "nocache": {"precision": "nocache", "batch": 2, "compile": "blocks"},
            },
        }
    },
}
Called = tuple[Tree, subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def called(tmp_path_factory: pytest.TempPathFactory, decimal_commas_here: dict[str, str]) -> Called:
    """A tree with these recipes, and what became of its one call. Only to be looked at."""
    tree = Tree.make(tmp_path_factory.mktemp("torch") / "tree", CONFIG, stand_in=False)
    tree.write("src/halfstep/recipes/precision/faults.py", RECIPES)
    tree.write("src/halfstep/workloads/tiny.py", WORKLOAD)
    tree.write("src/sitecustomize.py", NO_DOCTOR)
    lines = [f'    "{name}": "halfstep.recipes.precision.faults:{recipe}",\n' for name, recipe in VARIANTS.items()]
    registry = "src/halfstep/registry.py"
    tree.edit(registry, "PRECISIONS: dict[str, str] = {\n", "PRECISIONS: dict[str, str] = {\n" + "".join(lines))
    tiny = '    "tiny": "halfstep.workloads.tiny:TINY",\n'
    tree.edit(registry, "WORKLOADS: dict[str, str] = {\n", "WORKLOADS: dict[str, str] = {\n" + tiny)
    return tree, tree.snakemake(cores=2, **decimal_commas_here)


def test_the_study_ends_well(called: Called) -> None:
    tree, call = called
    assert call.returncode == 0, call.stderr
    measured = runs(*(f"faults/{name}" for name in VARIANTS), replicates=1)
    assert set(jobs_in(call.stderr)) == measured | {"probe_system"} | REPORTING
    assert call.stderr.splitlines()[-1] == report_line("results/cpu", 3, failed=1, invalid=1)
    assert tree.plan() == set()


@pytest.mark.parametrize("fault", FAULTS)
def test_fault(fault: str, called: Called) -> None:
    tree, _ = called
    name, _, status, reason = FAULTS[fault]
    (row,) = tree.rows(f"results/cpu/runs/faults/{name}/rep1/summary.csv")
    assert row == next(row for row in tree.rows("results/cpu/tables/runs.csv") if row["variant"] == name)
    assert row["status"] == status
    assert re.fullmatch(reason, row["reason"]), row["reason"]
    if status != "ok":
        line = f"| `faults` | `{name}` | 1 | {prose(row['reason'])} |"
        assert line in tree.read("results/cpu/report.md").splitlines()
        return
    assert row["steps"] == "3"
    assert 0 < float(row["step_ms_median"]) < 60_000
    assert 0 < float(row["startup_s"]) < 600 and 0 < float(row["first_step_s"]) < 600
