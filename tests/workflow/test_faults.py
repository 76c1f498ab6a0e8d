"""Whatever the measuring process does is a row: the study goes on, and its report lists every fault."""

from __future__ import annotations

import json
import re
import subprocess
from typing import Any

import pytest
from tree import REPORTING, Tree, jobs_in, runs

from halfstep.measure.supervisor import LOG_HEAD, LOG_TAIL
from halfstep.report.markdown import prose

TIMEOUT_S = 20
# what a user adds: a recipe, a workload, and their lines in the registry
RECIPES = '''
"""Recipes that go wrong, each in its way."""

import ctypes
import os
import signal
import subprocess
import sys

import torch

from halfstep.errors import Unsupported
from halfstep.recipes.precision.precision import Precision


class Killed(Precision):
    def prepare(self, model):
        os.kill(os.getpid(), signal.SIGKILL)


class Segfault(Precision):
    def prepare(self, model):
        ctypes.string_at(0)


class Hang(Precision):
    def prepare(self, model):
        subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
        print("started a helper", flush=True)
        signal.pause()


class Exhausted(Precision):
    def prepare(self, model):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.50 GiB.\\nGPU 0 has 79 GiB")


class Raises(Precision):
    def backward(self, loss):
        raise ValueError("the first line | says `it`\\nthe second does not\\n\\tnor the third")


class Refuses(Precision):
    def __init__(self, device, weights):
        raise Unsupported("this recipe needs what no machine has")


class Chatty(Precision):
    def prepare(self, model):
        print("the first line", flush=True)
        for _ in range(200):
            os.write(1, b"x" * 99_999 + b"\\n")
        print("the last line", file=sys.stderr, flush=True)
        return {"printed_mb": 20}


class NotANumber(Precision):
    def prepare(self, model):
        for parameter in model.parameters():
            torch.nn.init.constant_(parameter, float("nan"))
        return {}


class Exits(Precision):
    def prepare(self, model):
        print("leaving early", flush=True)
        os._exit(3)
'''
WORKLOAD = '''
"""The language model, tiny at any scale."""

from dataclasses import replace

from halfstep.workloads.lm import LM

TINY = replace(LM, sizes={"full": LM.sizes["smoke"]})
'''
# variant: recipe, status, what the reason says
FAULTS: dict[str, tuple[str, str, str]] = {
    "killed": ("Killed", "failed", r"the measuring process was killed by SIGKILL .*; it was at: build"),
    "segfault": ("Segfault", "failed", "the measuring process was killed by SIGSEGV; it was at: build"),
    "hang": ("Hang", "timeout", f"did not end within {TIMEOUT_S} s; it was at: build"),
    "exhausted": ("Exhausted", "out_of_memory", r".*CUDA out of memory\. Tried to allocate 2\.50 GiB\."),
    "raises": ("Raises", "failed", r"ValueError: the first line \| says `it`"),
    "refuses": ("Refuses", "unsupported", "this recipe needs what no machine has"),
    "chatty": ("Chatty", "ok", ""),
    "nan": ("NotANumber", "invalid", r"the loss was not finite in 3 of 3 timed steps"),
    "exits": ("Exits", "failed", "the measuring process ended with exit code 3 and no result: leaving early"),
}
CONFIG: dict[str, Any] = {
    "scale": "full",
    "replicates": 1,
    "timeout_s": TIMEOUT_S,
    "window": {"warmup_steps": 2, "min_steps": 3, "min_seconds": 0.001},
    "comparisons": {
        "faults": {
            "workload": "tiny",
            "baseline": "healthy",
            "variants": {"healthy": {"batch": 2}, **{name: {"precision": name, "batch": 2} for name in FAULTS}},
        }
    },
}


@pytest.fixture(scope="module")
def faults(tmp_path_factory: pytest.TempPathFactory) -> tuple[Tree, subprocess.CompletedProcess[str]]:
    """A tree with a fault in each variant, and what became of its one call. Only to be looked at."""
    tree = Tree.make(tmp_path_factory.mktemp("faults") / "tree", CONFIG, stand_in=False)
    tree.write("src/halfstep/recipes/precision/faults.py", RECIPES)
    tree.write("src/halfstep/workloads/tiny.py", WORKLOAD)
    lines = [f'    "{name}": "halfstep.recipes.precision.faults:{recipe}",\n' for name, (recipe, *_) in FAULTS.items()]
    registry = "src/halfstep/registry.py"
    tree.edit(registry, "PRECISIONS: dict[str, str] = {\n", "PRECISIONS: dict[str, str] = {\n" + "".join(lines))
    tiny = '    "tiny": "halfstep.workloads.tiny:TINY",\n'
    tree.edit(registry, "WORKLOADS: dict[str, str] = {\n", "WORKLOADS: dict[str, str] = {\n" + tiny)
    return tree, tree.snakemake(cores=2)


def test_the_study_ends_well(faults: tuple[Tree, subprocess.CompletedProcess[str]]) -> None:
    tree, call = faults
    assert call.returncode == 0, call.stderr
    measured = runs("faults/healthy", *(f"faults/{name}" for name in FAULTS), replicates=1)
    assert set(jobs_in(call.stderr)) == measured | {"probe_system"} | REPORTING
    assert len(call.stdout + call.stderr) < 100_000
    assert call.stderr.splitlines()[-1] == "report: results/cpu/report.md"
    assert tree.plan() == set()


def test_no_process_is_left(faults: tuple[Tree, subprocess.CompletedProcess[str]]) -> None:
    tree, _ = faults
    assert "started a helper" in tree.read("results/cpu/runs/faults/hang/rep1/log.txt")
    assert tree.processes() == []


def test_the_healthy_one_is_measured(faults: tuple[Tree, subprocess.CompletedProcess[str]]) -> None:
    tree, _ = faults
    row = next(row for row in tree.rows("results/cpu/tables/runs.csv") if row["variant"] == "healthy")
    assert (row["status"], row["reason"], row["steps"]) == ("ok", "", "3")
    assert float(row["step_ms_median"]) > 0


@pytest.mark.parametrize("fault", FAULTS)
def test_fault(fault: str, faults: tuple[Tree, subprocess.CompletedProcess[str]]) -> None:
    tree, _ = faults
    _, status, reason = FAULTS[fault]
    folder = f"results/cpu/runs/faults/{fault}/rep1"
    record = json.loads(tree.read(f"{folder}/record.json"))
    assert record["status"] == status
    assert re.fullmatch(reason, record["reason"])
    assert record["environment"]["torch"]
    (row,) = tree.rows(f"{folder}/summary.csv")
    (collected,) = (row for row in tree.rows("results/cpu/tables/runs.csv") if row["variant"] == fault)
    assert row == collected
    assert (row["status"], row["reason"]) == (status, record["reason"])
    if status != "ok":
        line = f"| `faults` | `{fault}` | 1 | {prose(record['reason'])} |"
        assert line in tree.read("results/cpu/report.md").splitlines()


def test_a_whole_error_is_in_the_log(faults: tuple[Tree, subprocess.CompletedProcess[str]]) -> None:
    tree, _ = faults
    log = tree.read("results/cpu/runs/faults/raises/rep1/log.txt")
    assert "Traceback" in log and "in backward" in log and log.endswith("\tnor the third\n")


def test_a_long_log_keeps_both_ends(faults: tuple[Tree, subprocess.CompletedProcess[str]]) -> None:
    tree, _ = faults
    log = tree.read("results/cpu/runs/faults/chatty/rep1/log.txt")
    assert "the first line\n" in log[:1000]
    assert "\nthe last line\n" in log[-1000:]
    assert LOG_HEAD + LOG_TAIL <= len(log) <= LOG_HEAD + LOG_TAIL + 100
    assert re.search(r"\[\.\.\. \d+ bytes left out \.\.\.\]", log)
