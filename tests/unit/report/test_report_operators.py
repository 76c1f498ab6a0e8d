"""Operator comparisons from the runs' files to tables, figures and the report."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from operator_runs import CONFIG, make_operators, write_operator_run

from halfstep.cli import app
from halfstep.records import SUMMARY_COLUMNS, one_per_run, read_csv, write_csv
from halfstep.report.collect import collect, collect_run
from halfstep.report.figures import plot
from halfstep.report.markdown import render
from halfstep.report.operators import gemm_case, notes, tables
from halfstep.report.results import OperatorResult, load
from halfstep.report.tables import SPEEDUPS_COLUMNS
from halfstep.runs import Scope, resolve
from halfstep.study import validate

GEMM = ("gemm", "tensorwise", 1)
SQUARE = "16384x16384x16384"


@pytest.fixture
def scope(tmp_path: Path) -> Path:
    make_operators(tmp_path / "h200")
    return tmp_path / "h200"


def operator(scope: Path, name: str) -> OperatorResult:
    return next(found for found in load(scope).operators if found.name == name)


def speedups(scope: Path) -> dict[tuple[str, str, str], dict[str, str]]:
    rows = read_csv(scope / "tables" / "speedups.csv", SPEEDUPS_COLUMNS)
    return {(row["comparison"], row["variant"], row["case"]): row for row in rows}


# collect


def test_a_case_is_compared_with_the_same_case_of_the_baseline(scope: Path) -> None:
    found = speedups(scope)
    assert float(found["gemm", "tensorwise", SQUARE]["speedup"]) == pytest.approx(1354 / 678, rel=0.02)
    assert float(found["gemm", "tensorwise", "1024x1024x1024"]["speedup"]) == pytest.approx(278 / 244, rel=0.02)
    assert found["gemm", "tensorwise", SQUARE]["pairs"] == "3"


def test_a_case_that_the_baseline_cannot_do_has_no_ratio(scope: Path) -> None:
    row = speedups(scope)["gemm", "tensorwise", "example 16x16x16, bias, e4m3 output"]
    assert (row["speedup"], row["reason"]) == ("", "the baseline has no run with status ok")


def test_a_case_that_the_baseline_does_not_name_is_not_compared_with_another_one(scope: Path) -> None:
    folder = scope / "runs" / "gemm"
    for path in folder.glob("bf16/rep*/summary.csv"):
        rows = read_csv(path, SUMMARY_COLUMNS)
        write_csv(path, SUMMARY_COLUMNS, [row for row in rows if row["case"] != SQUARE])
    collect(scope, validate(CONFIG))
    found = speedups(scope)
    assert found["gemm", "te", SQUARE]["speedup"] == ""
    assert found["gemm", "te", "8192x8192x8192"]["speedup"]


def test_a_run_whose_cases_are_not_all_ok_is_ok(scope: Path) -> None:
    runs = read_csv(scope / "tables" / "runs.csv", SUMMARY_COLUMNS)
    statuses = {(row["variant"], row["status"]) for row in one_per_run(runs) if row["comparison"] == "gemm"}
    assert statuses == {(name, "ok") for name in CONFIG["comparisons"]["gemm"]["variants"]}
    assert len(one_per_run(runs)) == 3 * sum(len(entry["variants"]) for entry in CONFIG["comparisons"].values())


Damage = Callable[[list[dict[str, str]]], Any]
DAMAGES: dict[str, tuple[Damage, str]] = {
    "a case twice": (lambda rows: rows.append(rows[-1]), "a row twice"),
    "a status of nobody": (lambda rows: rows[0].update(status="fine"), "its status is 'fine'"),
    "a row without a time": (lambda rows: rows[2].update(step_ms_median=""), "its step_ms_median is ''"),
    "a row without its case": (lambda rows: rows[2].update(case="", status="failed"), "its status is 'failed'"),
    "another product": (lambda rows: rows[2].update(gemm="te"), "its gemm is 'te'"),
    "no row that is ok": (lambda rows: [row.update(status="failed") for row in rows], "no row of summary.csv does"),
    "a throughput of nothing": (lambda rows: rows[2].update(gb_per_s="0"), "its gb_per_s is '0'"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_summary_that_is_not_that_of_its_record_is_stale(scope: Path, damage: str) -> None:
    run = resolve(validate(CONFIG), Scope("h200", "full"), GEMM)
    folder = scope / "runs" / "gemm" / "tensorwise" / "rep1"
    assert collect_run(folder, GEMM, run, None).rows[0]["status"] != "stale"
    rows = read_csv(folder / "summary.csv", SUMMARY_COLUMNS)
    edit, sentence = DAMAGES[damage]
    edit(rows)
    write_csv(folder / "summary.csv", SUMMARY_COLUMNS, rows)
    (row,) = collect_run(folder, GEMM, run, None).rows
    assert row["status"] == "stale" and sentence in row["reason"]


def test_only_the_number_types_may_have_no_time(scope: Path) -> None:
    key = ("dtypes", "torch", 1)
    run = resolve(validate(CONFIG), Scope("h200", "full"), key)
    folder = scope / "runs" / "dtypes" / "torch" / "rep1"
    assert {row["status"] for row in collect_run(folder, key, run, None).rows} == {"ok"}
    rows = read_csv(folder / "summary.csv", SUMMARY_COLUMNS)
    rows[0]["value"] = ""
    write_csv(folder / "summary.csv", SUMMARY_COLUMNS, rows)
    (row,) = collect_run(folder, key, run, None).rows
    assert row["status"] == "stale" and "has no value" in row["reason"]


# tables


def test_names_of_cases_are_read() -> None:
    assert gemm_case(SQUARE) == ("", 16384, False)
    assert gemm_case("ViT-Huge fc1 32768x5120x1280, cast included") == ("ViT-Huge fc1", 32768, True)
    assert gemm_case("example 16x16x16, bias, e4m3 output") is None


def test_a_comparison_has_a_line_per_case_and_variant(scope: Path) -> None:
    ((headings, lines),) = tables(operator(scope, "optimizer-step"))
    assert headings == ["case", "variant", "ms", "speed-up", "kernels ms", "GB/s", "largest difference", "status"]
    ways = ("forloop", "foreach")
    assert [line[:2] for line in lines[:2]] == [["linears 96x1024", f"`torch-{way}`"] for way in ways]
    assert lines[1][3] == "baseline" and lines[2][3].startswith("2.8")
    ((headings, lines),) = tables(operator(scope, "gemm"))
    assert "TFLOP/s (of peak)" in headings and "GB/s" not in headings
    assert len(lines) == 6 * 19
    assert {line[-1] for line in lines} == {"ok", "unsupported"}


def test_the_number_types_have_their_tables(scope: Path) -> None:
    limits, casts, operations, products = tables(operator(scope, "dtypes"))
    assert limits.headings == ["limit", "float32", "bfloat16", "float8_e4m3fn", "float8_e5m2"]
    assert casts.lines[0] == ["0", "2.073094", "2.078125", "2", "2"]
    assert operations.lines[1] == ["copy", "works"]
    assert products.lines == [["e4m3 times e4m3", "works"]]


def test_what_a_variant_cannot_do_is_said(scope: Path) -> None:
    lines = notes(operator(scope, "gemm"))
    example = "example 16x16x16, bias, e4m3 output"
    assert f"`bf16`, {example}: unsupported, an FP8 output with a bias is not asked of it" in lines
    assert notes(operator(scope, "optimizer-step"))[-1] == "Without a number: `te` (unsupported)."


def test_what_waits_for_the_cpu_is_said(scope: Path) -> None:
    """A product that clocks higher in a few profiled calls than in its window does not wait."""
    said = "In {} of {} profiled rows kernels ran for less than 80 % of the call"
    assert any(line.startswith(said.format(2, 8)) for line in notes(operator(scope, "optimizer-step")))
    assert any(line.startswith(said.format(12, 48)) for line in notes(operator(scope, "layernorm")))
    assert any(line.startswith("kernels ms: ") for line in notes(operator(scope, "gemm")))
    assert not any("waits for the CPU" in line for line in notes(operator(scope, "gemm")))


# figures and report


def test_every_operator_has_its_figure_and_a_caption_with_its_numbers(scope: Path) -> None:
    plot(scope)
    index = json.loads((scope / "figures" / "captions.json").read_text())
    stems = {"dtypes-cases", "gemm-cases", "optimizer-step-cases", "layernorm-cases"}
    drawn = {figure["file"] for comparison in index.values() for figure in comparison.values()}
    assert drawn == stems
    for stem in stems:
        assert all((scope / "figures" / f"{stem}.{suffix}").stat().st_size > 1000 for suffix in ("svg", "pdf", "png"))
    captions = {name: comparison["cases"]["caption"] for name, comparison in index.items()}
    assert captions["gemm"].startswith("At 16384, operands cast already, `te` reaches 1,4")
    assert "`torch-fused` (0.8" in captions["optimizer-step"]
    assert captions["optimizer-step"].endswith("Without a number: `te` (unsupported).")
    assert "0.24 % in bfloat16, 3.8 % in float8_e4m3fn and 6.2 % in float8_e5m2" in captions["dtypes"]
    assert "`liger` (0.1" in captions["layernorm"]
    assert {name for name, caption in captions.items() if "Lines across the bars" in caption} == {
        "optimizer-step",
        "layernorm",
    }


@pytest.mark.usefixtures("unsaved")
def test_an_operator_of_ones_own_goes_without_a_figure(scope: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is a line in the registry and a file, and no code of the report."""
    results = load(scope)
    operators = [replace(found, workload="mine") for found in results.operators if found.name == "layernorm"]
    monkeypatch.setattr("halfstep.report.figures.load", lambda folder: replace(results, operators=operators))
    plot(scope)
    figure = json.loads((scope / "figures" / "captions.json").read_text())["layernorm"]["cases"]
    assert (figure["file"], figure["title"]) == (None, "Time of the calls")
    assert figure["caption"] == "The operator `mine` has no chart of its own: its numbers are in the table."


def test_the_same_data_give_the_same_figures(scope: Path) -> None:
    plot(scope)
    before = {path.name: path.read_bytes() for path in (scope / "figures").iterdir()}
    plot(scope)
    assert {path.name: path.read_bytes() for path in (scope / "figures").iterdir()} == before


@pytest.mark.usefixtures("unsaved")
def test_the_report_counts_runs_and_not_cases(scope: Path) -> None:
    plot(scope)
    text = render(load(scope))
    assert "45 of 48 runs are ok." in text
    assert "### Unsupported: 3 runs" in text
    assert "Comparison `gemm` of calls, not training steps: the operator `gemm`; the baseline is `bf16`." in text
    assert "| value of the sample | float32 |" in text
    assert "**Operators.** Calls are timed by Triton's `do_bench`" in text
    assert "No training step was measured." in text


@pytest.mark.usefixtures("unsaved")
def test_an_operator_of_which_nothing_was_measured_is_still_in_the_report(tmp_path: Path) -> None:
    scope_dir, study = tmp_path / "h200", validate(CONFIG)
    for variant in CONFIG["comparisons"]["gemm"]["variants"]:
        key = ("gemm", variant, 1)
        write_operator_run(scope_dir, resolve(study, Scope("h200", "full"), key), key, "failed", "it broke")
    collect(scope_dir, study)
    plot(scope_dir)
    text = render(load(scope_dir))
    assert "No variant was measured." in text and "it broke" in text
    assert "45 of" not in text


def test_runs_are_listed_by_their_own_status_and_once(scope: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for status, expected in (("unsupported", 3), ("ok", 45)):
        with pytest.raises(SystemExit) as ended:
            app(["runs", str(scope), "--status", status])
        assert ended.value.code == 0
        lines = capsys.readouterr().out.split()
        assert len(lines) == len(set(lines)) == expected


def test_tables_hold_text_that_a_spreadsheet_reads(scope: Path) -> None:
    with (scope / "tables" / "variants.csv").open(newline="") as stream:
        rows = [row for row in csv.DictReader(stream) if row["comparison"] == "gemm"]
    assert {row["case"] for row in rows} >= {SQUARE, f"{SQUARE}, cast included"}
    assert all(float(row["sqnr_db"]) > 20 for row in rows if row["status"] == "ok" and row["case"].startswith(SQUARE))
