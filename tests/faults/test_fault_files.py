"""What can have become of a run's files: no such run puts a number in a table, and the report says why.

One study with a variant per fault, each planted in the files of its run, and one call of the real command.
"""

from __future__ import annotations

import csv
import json
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from made_up import BEHAVIOUR, write_fixture_run
from tree import report_line

from halfstep.records import RESULT_COLUMNS, TABLE_STATUSES
from halfstep.report import snapshot
from halfstep.report.markdown import prose
from halfstep.runs import Scope
from halfstep.study import validate

Edit = Callable[[Path], Any]


def cut(name: str) -> Edit:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:-3])


def write(name: str, data: bytes) -> Edit:
    return lambda folder: (folder / name).write_bytes(data)


def replace(name: str, old: str, new: str) -> Edit:
    def edit(folder: Path) -> None:
        text = (folder / name).read_text(encoding="utf-8")
        assert old in text
        (folder / name).write_text(text.replace(old, new), encoding="utf-8")

    return edit


def record(**changes: Any) -> Edit:
    def edit(folder: Path) -> None:
        path = folder / "record.json"
        path.write_text(json.dumps({**json.loads(path.read_text(encoding="utf-8")), **changes}), encoding="utf-8")

    return edit


def saved(name: str, change: Callable[[str], str] = str, **dialect: Any) -> Edit:
    """Opened and saved by a program of another locale."""

    def edit(folder: Path) -> None:
        rows = list(csv.reader((folder / name).read_text(encoding="utf-8").splitlines()))
        with (folder / name).open("w", encoding="utf-8", newline="") as stream:
            csv.writer(stream, **{"lineterminator": "\n", **dialect}).writerows([map(change, row) for row in rows])

    return edit


def decimal_comma(cell: str) -> str:
    return cell.replace(".", ",") if cell.replace(".", "").isdigit() else cell


def cell(name: str, column: str, value: str) -> Edit:
    """Another value in the first row."""

    def edit(folder: Path) -> None:
        with (folder / name).open(encoding="utf-8", newline="") as stream:
            rows = list(csv.reader(stream))
        rows[1][rows[0].index(column)] = value
        with (folder / name).open("w", encoding="utf-8", newline="") as stream:
            csv.writer(stream, lineterminator="\n").writerows(rows)

    return edit


def heading_alone(name: str) -> Edit:
    return lambda folder: (folder / name).write_text((folder / name).read_text(encoding="utf-8").splitlines()[0] + "\n")


def twice(folder: Path) -> None:
    heading, line = (folder / "summary.csv").read_text(encoding="utf-8").splitlines()
    (folder / "summary.csv").write_text(f"{heading}\n{line}\n{line}\n", encoding="utf-8")


def of_another(name: str) -> Edit:
    """Copied over from the healthy run."""
    return lambda folder: shutil.copy(folder.parents[1] / "healthy" / "rep1" / name, folder / name)


def a_folder(name: str) -> Edit:
    def edit(folder: Path) -> None:
        (folder / name).unlink()
        (folder / name).mkdir()

    return edit


SUMMARY, STEPS, KERNELS, RECORD = "summary.csv", "steps.csv", "kernels.csv", "record.json"
# fault: the edit, the status that the run gets, and what its reason has to say; most likely first
FAULTS: dict[str, tuple[Edit, str, str]] = {
    "the folder is gone": (shutil.rmtree, "missing", "no record: it has not run, or never ended by itself"),
    "record.json is cut off": (cut(RECORD), "stale", "record.json is not whole JSON"),
    "summary.csv is cut off": (cut(SUMMARY), "stale", "summary.csv is cut off: its last line does not end"),
    "steps.csv is cut off": (cut(STEPS), "stale", "steps.csv is cut off"),
    "kernels.csv is cut off": (cut(KERNELS), "stale", "kernels.csv is cut off"),
    "summary.csv is empty": (write(SUMMARY, b""), "stale", "summary.csv is cut off"),
    "summary.csv is a heading alone": (heading_alone(SUMMARY), "stale", "summary.csv has no row"),
    "steps.csv is a heading alone": (heading_alone(STEPS), "stale", "steps.csv has 0 timed steps"),
    "summary.csv is not there": (lambda f: (f / SUMMARY).unlink(), "stale", "summary.csv cannot be read"),
    "summary.csv is a folder": (a_folder(SUMMARY), "stale", "summary.csv cannot be read"),
    "kernels.csv is no text": (write(KERNELS, b"\xff\xfe\x00"), "stale", "kernels.csv cannot be read"),
    "saved with decimal commas": (saved(SUMMARY, decimal_comma), "stale", "is not a number"),
    "saved with semicolons": (saved(SUMMARY, delimiter=";"), "stale", "does not have the columns of this version"),
    "saved with a byte order mark": (
        replace(SUMMARY, "comparison,", "\ufeffcomparison,"), "stale", "does not have the columns of this version"
    ),
    "saved with Windows' line ends": (saved(STEPS, lineterminator="\r\n"), "ok", ""),
    "a foreign CSV": (write(STEPS, b"time,value\n1,2\n"), "stale", "steps.csv does not have the columns"),
    "columns of another version": (
        replace(SUMMARY, "step_ms_median", "step_us_median"), "stale", "does not have the columns of this version"
    ),
    "a record of another version": (record(format=99), "stale", "record.json is not of format 1"),
    "a record of another configuration": (record(run_hash="0" * 16), "stale", "made by another configuration"),
    "the record of another run": (of_another(RECORD), "stale", "the record is of another run: files/healthy/1"),
    "the summary of another run": (of_another(SUMMARY), "stale", "not of this record: its variant is 'healthy'"),
    "the steps of another run": (of_another(STEPS), "stale", "summary.csv is not of steps.csv"),
    "another sitting": (cell(SUMMARY, "sitting", "s9"), "stale", "its sitting is 's9'"),
    "another environment": (cell(SUMMARY, "environment", "e9"), "stale", "its environment is 'e9'"),
    "another GPU": (cell(SUMMARY, "gpu_uuid", "GPU-9"), "stale", "its gpu_uuid is 'GPU-9'"),
    "another batch": (cell(SUMMARY, "batch", "9"), "stale", "its batch is '9'"),
    "another precision": (cell(SUMMARY, "precision", "fp8"), "stale", "its precision is 'fp8'"),
    "a row twice": (twice, "stale", "summary.csv has a row twice"),
    "steps that became warm-up": (replace(STEPS, "window", "warmup"), "stale", "steps.csv has 0 timed steps"),
    "a median that is not of the steps": (cell(SUMMARY, "step_ms_median", "1.0"), "stale", "contradicts itself"),
    "a mean that is not of the steps": (
        cell(SUMMARY, "step_ms_mean", "1.0"), "stale", "not of steps.csv: its step_ms_mean is 1.0"
    ),
    "a host's mean that is not of the steps": (
        cell(SUMMARY, "host_ms_mean", "1.0"), "stale", "not of steps.csv: its host_ms_mean is 1.0"
    ),
    "a throughput that is not of the median": (
        cell(SUMMARY, "samples_per_s", "99999"), "stale", "contradicts itself: its samples_per_s is 99999"
    ),
    "TFLOP/s that are not of the median": (
        cell(SUMMARY, "model_tflop_per_s", "9999"), "stale", "contradicts itself: its model_tflop_per_s is 9999"
    ),
    "TFLOP/s of nothing": (cell(SUMMARY, "model_tflop_per_step", ""), "stale", "contradicts itself"),
    "a median of NaN": (cell(SUMMARY, "step_ms_median", "nan"), "stale", "step_ms_median is not a number: 'nan'"),
    "no throughput": (cell(SUMMARY, "samples_per_s", ""), "stale", "its samples_per_s is ''"),
    "a throughput of 0": (cell(SUMMARY, "samples_per_s", "0"), "stale", "its samples_per_s is '0'"),
    "TFLOP/s of 0": (cell(SUMMARY, "model_tflop_per_s", "0"), "stale", "its model_tflop_per_s is '0'"),
    "a share of the peak below 0": (cell(SUMMARY, "peak_share", "-1"), "stale", "its peak_share is '-1'"),
    "an energy below 0": (cell(SUMMARY, "energy_j_per_step", "-3"), "stale", "energy_j_per_step is '-3'"),
    "an infinite step": (replace(STEPS, "\n0,window,", "\n0,window,inf"), "stale", "step_ms is not a number"),
    "a step below 0": (cell(STEPS, "step_ms", "-5"), "stale", "steps.csv: step_ms is '-5'"),
    "a step without a time": (cell(STEPS, "step_ms", ""), "stale", "steps.csv: step_ms is ''"),
    "a step without a time on the host's clock": (cell(STEPS, "wall_ms", ""), "stale", "steps.csv: wall_ms is ''"),
    "a step that was skipped perhaps": (cell(STEPS, "skipped", "maybe"), "stale", "steps.csv: skipped is 'maybe'"),
    "a loss in words": (cell(STEPS, "loss", "low"), "stale", "steps.csv: loss is not a number: 'low'"),
    "a kernel without a time": (cell(KERNELS, "ms_per_step", ""), "stale", "kernels.csv: ms_per_step is ''"),
    "a kernel's time below 0": (cell(KERNELS, "ms_per_step", "-1"), "stale", "kernels.csv: ms_per_step is '-1'"),
    "a kernel's time in words": (cell(KERNELS, "ms_per_step", "long"), "stale", "ms_per_step is not a number: 'long'"),
    "graph breaks in fractions": (cell(SUMMARY, "graph_breaks", "2.0"), "ok", ""),
    "a cell without an end": (cell(STEPS, "loss", "1" * 200_000), "stale", "steps.csv is no CSV"),
    "an unknown status": (record(status="fine"), "stale", "unknown status 'fine'"),
    "a status that is a list": (record(status=["ok"]), "stale", "unknown status"),
    "an environment that is a list": (record(environment=[1]), "stale", "environment is [1]"),
    "a GPU that is a word": (record(gpu="H200"), "stale", "gpu is 'H200'"),
    "what was applied is a list": (record(applied=["fp8"]), "stale", "applied is ['fp8']"),
    "a precision that is a list": (record(applied={"gemm": ["fp8"]}), "stale", "applied.gemm is ['fp8']"),
    "a record without a bottom": (write(RECORD, b"[" * 100_000), "stale", "record.json is not whole JSON"),
}  # fmt: skip


def name_of(fault: str) -> str:
    """A variant's name."""
    return "".join(c if c.isalnum() else "-" for c in fault)


CONFIG: dict[str, Any] = {
    "replicates": 1,
    "comparisons": {
        "files": {
            "workload": "vit_huge",
            "baseline": "healthy",
            "variants": {name: {"precision": "bf16", "batch": 128} for name in ("healthy", *map(name_of, FAULTS))},
        }
    },
}


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A scope with a fault in each run but the baseline's, collected by the real command. Only to be looked at."""
    scope_dir = tmp_path_factory.mktemp("files") / "h200"
    study, scope = validate(CONFIG), Scope("h200", "full")
    for variant in CONFIG["comparisons"]["files"]["variants"]:
        write_fixture_run(scope_dir, study, ("files", variant, 1), BEHAVIOUR["eager"])
    snapshot.write(scope_dir, scope, study)
    for fault, (edit, *_) in FAULTS.items():
        edit(scope_dir / "runs" / "files" / name_of(fault) / "rep1")
    command = [sys.executable, "-m", "halfstep", "report", str(scope_dir)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found = Counter(status for _, status, _ in FAULTS.values())
    without = {status: found[status] for status in TABLE_STATUSES if status != "ok" and found[status]}
    assert (done.returncode, done.stderr) == (0, f"{report_line(scope_dir, len(FAULTS) + 1, **without)}\n")
    return scope_dir


def table(scope_dir: Path, name: str) -> dict[str, dict[str, str]]:
    """Rows by variant."""
    with (scope_dir / "tables" / f"{name}.csv").open(encoding="utf-8", newline="") as stream:
        return {row["variant"]: row for row in csv.DictReader(stream)}


@pytest.mark.parametrize("fault", FAULTS)
def test_fault(fault: str, damaged: Path) -> None:
    _, status, reason = FAULTS[fault]
    name = name_of(fault)
    run, variant, speedup = (table(damaged, which)[name] for which in ("runs", "variants", "speedups"))
    assert (run["status"], variant["status"]) == (status, status), run["reason"]
    assert reason in run["reason"]
    assert bool(speedup["speedup"]) == bool(run["step_ms_median"]) == bool(variant["step_ms"]) == (status == "ok")
    if status == "ok":
        return
    assert not any(run[column] for column in RESULT_COLUMNS)
    assert name not in {*table(damaged, "kernels"), *table(damaged, "proofs")}
    line = f"| `files` | `{name}` | 1 | {prose(run['reason'])} |"
    assert line in (damaged / "report.md").read_text(encoding="utf-8").splitlines()


def test_the_healthy_run_beside_them_counts(damaged: Path) -> None:
    assert table(damaged, "runs")["healthy"]["status"] == "ok"
    good = 1 + sum(status == "ok" for _, status, _ in FAULTS.values())
    assert f"{good} of {len(FAULTS) + 1} runs are ok." in (damaged / "report.md").read_text(encoding="utf-8")
