"""The files of a run: written whole or not at all, read back as they were, refused where they are not right."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from halfstep import records
from halfstep.records import (
    FORMAT,
    KERNELS_COLUMNS,
    RUN_FILES,
    STATUSES,
    STEPS_COLUMNS,
    SUMMARY_COLUMNS,
    RecordError,
    read_csv,
    read_record,
    write_csv,
    write_json,
    write_run,
    write_text,
)

SUMMARY = {"comparison": "c", "variant": "a", "replicate": 1, "status": "ok", "step_ms_median": 12.345678901}
STEPS = [{"step": 0, "phase": "window", "step_ms": 1.5, "wall_ms": 1e-7, "loss": float("nan"), "skipped": 0}]
KERNEL = 'void f<int, "a">(x)\nline two'


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "runs" / "c" / "a" / "rep1"
    kernels = [{"kind": "GEMM", "kernel": KERNEL, "calls_per_step": 2.0, "ms_per_step": 0.1}]
    write_run(folder, {"status": "ok"}, [SUMMARY], STEPS, kernels)
    return folder


def test_a_run_is_read_back_as_it_was_written(run: Path) -> None:
    assert sorted(path.name for path in run.iterdir()) == sorted(RUN_FILES)
    (summary,) = read_csv(run / "summary.csv", SUMMARY_COLUMNS)
    assert list(summary) == list(SUMMARY_COLUMNS)
    assert summary["variant"] == "a"
    assert summary["step_ms_median"] == "12.34568"
    (step,) = read_csv(run / "steps.csv", STEPS_COLUMNS)
    assert (step["step_ms"], step["wall_ms"], step["loss"]) == ("1.5", "1e-07", "nan")
    (kernel,) = read_csv(run / "kernels.csv", KERNELS_COLUMNS)
    assert kernel["kernel"] == KERNEL
    assert read_record(run) == {"format": FORMAT, "status": "ok"}


def test_what_was_not_measured_is_empty_and_not_zero(run: Path) -> None:
    (summary,) = read_csv(run / "summary.csv", SUMMARY_COLUMNS)
    assert {summary[column] for column in SUMMARY_COLUMNS if column not in SUMMARY} == {""}
    write_csv(run / "steps.csv", STEPS_COLUMNS, [{"step": 0, "loss": None, "skipped": 0}])
    (step,) = read_csv(run / "steps.csv", STEPS_COLUMNS)
    assert (step["loss"], step["skipped"]) == ("", "0")


def test_a_cell_that_is_read_and_written_again_keeps_its_text(run: Path) -> None:
    for value in (1 / 3, 1e-12, 123456789.0, 5e8, 0.1 + 0.2):
        write_csv(run / "x.csv", ["x"], [{"x": value}])
        (row,) = read_csv(run / "x.csv", {"x": ""})
        write_csv(run / "y.csv", ["x"], [{"x": float(row["x"])}])
        assert (run / "x.csv").read_bytes() == (run / "y.csv").read_bytes()


def test_a_column_that_the_schema_does_not_know_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="speed"):
        write_csv(tmp_path / "x.csv", STEPS_COLUMNS, [{"speed": 1}])
    assert list(tmp_path.iterdir()) == []


def test_json_has_no_nan_and_no_order_of_its_own(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="JSON"):
        write_json(tmp_path / "x.json", {"x": float("nan")})
    assert list(tmp_path.iterdir()) == []
    write_json(tmp_path / "x.json", {"b": 1, "a": 2})
    write_json(tmp_path / "y.json", {"a": 2, "b": 1})
    assert (tmp_path / "x.json").read_bytes() == (tmp_path / "y.json").read_bytes()


def replace_first(old: str, new: str) -> Callable[[str], str]:
    return lambda text: text.replace(old, new, 1)


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda text: None, "steps.csv cannot be read"),
        (lambda text: text[:-1], "steps.csv is cut off: its last line does not end"),
        (lambda text: "", "steps.csv is cut off"),
        (replace_first("step_ms", "step_s"), "steps.csv does not have the columns of this version"),
        (replace_first("step,phase", "phase,step"), "steps.csv does not have the columns of this version"),
        (lambda text: text + "1,window\n", "steps.csv has a row of another length than its heading"),
        (lambda text: text + "\n", "steps.csv has a row of another length than its heading"),
    ],
)
def test_a_damaged_csv_is_refused_with_its_name_and_why(
    run: Path, damage: Callable[[str], str | None], sentence: str
) -> None:
    path = run / "steps.csv"
    text = damage(path.read_text())
    path.unlink()
    if text is not None:
        path.write_text(text)
    with pytest.raises(RecordError, match=sentence):
        read_csv(path, STEPS_COLUMNS)


def test_bytes_that_are_no_text_are_refused(run: Path) -> None:
    (run / "steps.csv").write_bytes(b"\xff\xfe\n")
    with pytest.raises(RecordError, match=r"steps\.csv cannot be read"):
        read_csv(run / "steps.csv", STEPS_COLUMNS)
    (run / "record.json").write_bytes(b"\xff")
    with pytest.raises(RecordError, match=r"record\.json cannot be read"):
        read_record(run)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (None, "record.json cannot be read"),
        ('{"format": 1, "status":', "record.json is not whole JSON"),
        ("", "record.json is not whole JSON"),
        ("[1]", f"record.json is not of format {FORMAT}"),
        ("{}", f"record.json is not of format {FORMAT}"),
        (json.dumps({"format": FORMAT + 1}), f"record.json is not of format {FORMAT}"),
    ],
)
def test_a_record_that_is_not_whole_or_of_another_format_is_refused(run: Path, text: str | None, sentence: str) -> None:
    (run / "record.json").unlink()
    if text is not None:
        (run / "record.json").write_text(text)
    with pytest.raises(RecordError, match=sentence):
        read_record(run)


@pytest.mark.parametrize("broken", ["fsync", "replace"])
def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    path = tmp_path / "x.txt"
    write_text(path, "old")

    def fail(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(*((os, "fsync") if broken == "fsync" else (Path, "replace")), fail)
    with pytest.raises(OSError, match="No space left"):
        write_text(path, "new")
    assert [(found.name, found.read_text()) for found in tmp_path.iterdir()] == [("x.txt", "old")]


def test_the_record_is_written_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = []
    really = records.write_text
    monkeypatch.setattr(records, "write_text", lambda path, text: (written.append(path.name), really(path, text)))
    write_run(tmp_path, {}, [SUMMARY], STEPS, [])
    assert written == list(RUN_FILES)
    assert written[-1] == "record.json"


def test_a_record_that_cannot_be_written_leaves_no_whole_run(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="JSON"):
        write_run(tmp_path, {"telemetry": float("inf")}, [SUMMARY], STEPS, [])
    with pytest.raises(RecordError):
        read_record(tmp_path)


def test_others_may_read_what_was_written(tmp_path: Path) -> None:
    write_text(tmp_path / "x", "text")
    assert (tmp_path / "x").stat().st_mode & 0o777 == 0o644


def test_every_status_is_explained() -> None:
    assert set(STATUSES) == {"ok", "unsupported", "out_of_memory", "timeout", "failed", "invalid", "disturbed"}
