"""What can go wrong while a run is measured: it is a row with its reason, and the others go on.

One study on a made-up H200 through the real Snakemake and the real supervisor, with a variant per fault. The measuring
process is a stand-in; what only torch and the real one can do is in test_fault_torch.py.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from tree import REPORTING, STAND_IN, Tree, jobs_in, report_line, runs

from halfstep.measure.row import TELEMETRY_COLUMNS
from halfstep.measure.supervisor import LOG_HEAD, LOG_TAIL
from halfstep.records import TABLE_STATUSES
from halfstep.report.markdown import prose
from halfstep.system.gpu_lock import FOLDER as LOCKS

HERE = Path(__file__).parent
TIMEOUT_S = 20  # of the run that hangs; others may import torch for their error
SEEN = "energy_j_per_step", *TELEMETRY_COLUMNS
DIED = "the measuring process"
# fault: the variant by whose name it happens, the status of its run, and its reason; most likely first
FAULTS: dict[str, tuple[str, str, str]] = {
    "the GPU's memory does not suffice": (
        "exhausted", "out_of_memory", r"OutOfMemoryError: CUDA out of memory\. Tried to allocate 2\.50 GiB\."
    ),
    "another process on the GPU": ("others", "disturbed", r"Other processes held 3\.50 GiB of the GPU's memory\."),
    "a recipe refuses": ("refuses", "unsupported", "this recipe needs what no machine has"),
    "the measuring process is killed, as when memory runs out": (
        "killed", "failed", rf"{DIED} was killed by SIGKILL \(.*memory runs out\); it was at: window"
    ),
    "the measuring process crashes": ("crash", "failed", f"{DIED} was killed by SIGSEGV; it was at: window"),
    "the measuring process hangs": ("hang", "timeout", f"did not end within {TIMEOUT_S} s; it was at: window"),
    "the measuring process ends without a result": (
        "exits", "failed", f"{DIED} ended with exit code 3 and no result: leaving early"
    ),
    "the disk is full": ("full-disk", "missing", "no record: it has not run, or never ended by itself"),
    "the GPU is lost in the window": ("gpu-lost", "failed", "RuntimeError: CUDA error: unspecified launch failure"),
    "the GPU slows down for its heat": (
        "too-hot", "disturbed", r"The GPU was slowed down in 100% of the samples \(hw_thermal_slowdown\)\."
    ),
    "a lowered power limit": (
        "power-limit", "disturbed", r"The power limit was 500 W, below the default of 700 W\."
    ),
    "the step time drifts": (
        "drift", "disturbed", "it drifted: the last third of the window ran 10% slower than the first"
    ),
    "the optimizer skips every step": ("stands-still", "invalid", "no update reached the weights: .*"),
    "NVML is gone": ("no-nvml", "unsupported", "asked to measure on 'h200', and no NVIDIA GPU is visible here"),
    "the GPU does not say its name": (
        "nameless", "unsupported", r"GPU 0 does not answer NVML's question for its name or UUID\."
    ),
    "NVML refuses every question": ("nvml-refuses", "ok", ""),
    "NVML answers that there is no answer": ("nvml-garbage", "ok", ""),
    "the compile cache cannot be made": (
        "no-cache", "failed", "the run could not be measured: .*/cache/faults/no-cache: File exists"
    ),
    "no room for the result in TMPDIR": (
        "full-tmp", "failed", f"{DIED} ended with exit code 1 and no result: OSError: .* File too large"
    ),
    "no file descriptor left in the measuring process": (
        "no-descriptors", "failed", f"{DIED} ended with exit code 1 and no result: .*"
    ),
    "no file descriptor left in the supervisor": (
        "few-descriptors", "failed", "the run could not be measured: .*Too many open files.*"
    ),
    "the median is no number": ("no-number", "stale", "summary.csv: step_ms_median is not a number: 'nan'"),
    "endless output": ("endless-output", "ok", ""),
    "the clock is set back": ("clock", "ok", ""),
}  # fmt: skip
NAMES = [name for name, *_ in FAULTS.values()]
CONFIG: dict[str, Any] = {
    "parity": "never",
    "replicates": 1,
    "timeout_s": TIMEOUT_S,
    "comparisons": {
        "faults": {
            "workload": "lm",
            "baseline": "healthy",
            "variants": {name: {"batch": 16} for name in ("healthy", *NAMES)},
        }
    },
}
Called = tuple[Tree, subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def called(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Called]:
    """A tree in which every variant but one goes wrong, and its one call. Only to be looked at."""
    tree = Tree.make(tmp_path_factory.mktemp("runs") / "tree", CONFIG, stand_in=False)
    for module, source in {
        "stand_in": STAND_IN,
        "sitecustomize": HERE / "went_wrong.py",
        "pynvml": HERE / "made_up_nvml.py",
    }.items():
        shutil.copy(source, tree.root / "src" / f"{module}.py")
    uuid = f"GPU-{uuid4()}"
    tree.write("uuid", uuid)
    cache = tree.root / "results/h200/cache/faults/no-cache"
    cache.parent.mkdir(parents=True)
    cache.touch()
    yield tree, tree.snakemake(cores=2, CUDA_VISIBLE_DEVICES="0")
    (LOCKS / f"{uuid}.lock").unlink()


def test_the_study_goes_on_to_its_report(called: Called) -> None:
    """A disk that is full is the one thing that leaves no row; Snakemake then ends with 1, and knows what to repeat."""
    tree, call = called
    assert call.returncode == 1
    every = runs("faults/healthy", *(f"faults/{name}" for name in NAMES), replicates=1)
    assert set(jobs_in(call.stderr)) == every | {"probe_system"}
    found = Counter(status for _, status, _ in FAULTS.values())
    without = {status: found[status] for status in TABLE_STATUSES if status != "ok" and found[status]}
    assert report_line("results/h200", len(FAULTS) + 1, **without) in call.stderr.splitlines()
    assert "results/h200/runs/faults/full-disk/rep1/summary.csv: File too large" in call.stderr.splitlines()
    assert len(call.stdout + call.stderr) < 100_000
    done = tree.snakemake("--dry-run", CUDA_VISIBLE_DEVICES="0")
    assert set(jobs_in(done.stdout + done.stderr)) == {"measure_variant faults/full-disk/1"} | REPORTING


def test_no_process_is_left(called: Called) -> None:
    tree, _ = called
    assert "started a helper" in tree.read("results/h200/runs/faults/hang/rep1/log.txt")
    assert tree.processes() == []


def row_of(tree: Tree, table: str, name: str) -> dict[str, str]:
    return next(row for row in tree.rows(f"results/h200/tables/{table}.csv") if row["variant"] == name)


@pytest.mark.parametrize("fault", FAULTS)
def test_fault(fault: str, called: Called) -> None:
    tree, _ = called
    name, status, reason = FAULTS[fault]
    row, variant, speedup = (row_of(tree, table, name) for table in ("runs", "variants", "speedups"))
    assert row["status"] == variant["status"] == status, row["reason"]
    assert re.fullmatch(reason, row["reason"]), row["reason"]
    assert bool(speedup["speedup"]) == bool(variant["step_ms"]) == (status == "ok")
    assert bool(row["step_ms_median"]) == (status in ("ok", "disturbed", "invalid"))
    record = tree.root / f"results/h200/runs/faults/{name}/rep1/record.json"
    assert record.exists() == (status != "missing")
    if status != "ok":
        line = f"| `faults` | `{name}` | 1 | {prose(row['reason'])} |"
        assert line in tree.read("results/h200/report.md").splitlines()


@pytest.mark.parametrize(("name", "seen"), [("healthy", True), ("nvml-refuses", False), ("nvml-garbage", False)])
def test_what_nvml_did_not_say_is_empty(name: str, seen: bool, called: Called) -> None:
    row = row_of(called[0], "runs", name)
    assert row["status"] == "ok", row["reason"]
    assert {bool(row[column]) for column in SEEN} == {seen}, {column: row[column] for column in SEEN}


def test_a_whole_error_is_in_the_log(called: Called) -> None:
    log = called[0].read("results/h200/runs/faults/gpu-lost/rep1/log.txt")
    assert "Traceback" in log and "in go_wrong" in log and log.endswith("Compile with `TORCH_USE_CUDA_DSA` | or not\n")


def test_a_long_log_keeps_both_ends(called: Called) -> None:
    log = called[0].read("results/h200/runs/faults/endless-output/rep1/log.txt")
    assert "the first line\n" in log[:10_000]
    assert "\nthe last line\n" in log[-1000:]
    assert LOG_HEAD + LOG_TAIL <= len(log) <= LOG_HEAD + LOG_TAIL + 100
    assert re.search(r"\[\.\.\. \d+ bytes left out \.\.\.\]", log)
