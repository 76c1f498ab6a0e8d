"""Which runs are believed: a record that is missing, stale, cut off or foreign never puts a number in a table."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import pytest

from halfstep.parity.plan import parity_keys
from halfstep.report.collect import collect
from halfstep.report.results import load
from halfstep.report.tables import SETTINGS, cell
from halfstep.runs import Scope, run_keys
from halfstep.study import validate

KEY = ("vit-b128", "blocks", 2)


def table(scope_dir: Path, name: str) -> list[dict[str, str]]:
    with (scope_dir / "tables" / f"{name}.csv").open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def rows(scope_dir: Path, name: str, variant: str) -> list[dict[str, str]]:
    return [row for row in table(scope_dir, name) if row["variant"] == variant]


@pytest.fixture
def study(scopes):
    return validate(scopes.config)


@pytest.fixture
def folder(h200: Path) -> Path:
    return h200 / "runs" / "vit-b128" / "blocks" / "rep2"


def test_every_run_of_the_study_has_a_row_in_its_order(h200, study):
    runs = table(h200, "runs")
    assert len(runs) == len(run_keys(study, Scope.parse("h200")))
    assert list(dict.fromkeys(row["variant"] for row in runs)) == [
        name for comparison in study.comparisons.values() for name in comparison.variants
    ]
    assert [row["replicate"] for row in rows(h200, "runs", "whole")] == ["1", "2", "3"]


def test_numbers_of_a_variant(h200):
    (row,) = rows(h200, "variants", "blocks")
    ms = [float(run["step_ms_median"]) for run in rows(h200, "runs", "blocks")]
    assert float(row["step_ms"]) == pytest.approx((ms[0] * ms[1] * ms[2]) ** (1 / 3), rel=1e-5)
    assert float(row["samples_per_s"]) == pytest.approx(128e3 / float(row["step_ms"]), rel=1e-5)
    assert float(row["energy_j_per_sample"]) == pytest.approx(float(row["energy_j_per_step"]) / 128, rel=1e-5)
    assert (row["ok"], row["replicates"], row["peak_allocated_gib"]) == ("3", "3", "54.2")
    # replicate 1 compiled into an empty cache, the others reused it
    assert (row["first_step_s"], row["compile_s"], row["first_step_warm_s"]) == ("18.2", "16.9", "4")


def test_a_variant_that_failed_has_a_status_and_no_numbers(h200):
    (row,) = rows(h200, "variants", "fp32")
    assert (row["status"], row["out_of_memory"], row["ok"]) == ("out_of_memory", "3", "0")
    assert (row["step_ms"], row["peak_allocated_gib"]) == ("", "")
    (ratio,) = rows(h200, "speedups", "fp32")
    assert (ratio["speedup"], ratio["method"], ratio["reason"]) == ("", "", "no run with status ok")


def test_kernel_times_are_means_by_kind_in_a_fixed_order_with_idle(h200):
    found = rows(h200, "kernels", "blocks")
    kinds = ["GEMM", "attention", "pointwise", "optimizer", "copy", "other", "idle"]
    assert [row["kind"] for row in found] == kinds
    assert (found[0]["ms_per_step"], found[0]["replicates"]) == ("172", "3")
    assert sum(float(row["share"]) for row in found) == pytest.approx(1, abs=1e-5)


def test_the_baseline_has_no_row_of_its_own_in_speedups(h200):
    assert {row["baseline"] for row in table(h200, "speedups")} == {"eager", "lm-fp32"}
    assert not rows(h200, "speedups", "eager")


def test_a_run_without_a_record_has_its_settings_as_a_record_writes_them(tmp_path, scopes):
    """Else the page would say "22 and 22.0 GiB" of one cap."""
    variant = {"precision": "bf16", "batch": 128, "memory_cap_gib": 22.0}
    config = {"comparisons": {"c": {"workload": "vit_huge", "baseline": "eager", "variants": {"eager": variant}}}}
    scopes.make(tmp_path / "h200", config, {"eager": scopes.vit | {"ms": 366.0, "kernels": {"GEMM": 366.0}}})
    (recorded, *_) = table(tmp_path / "h200", "runs")
    shutil.rmtree(tmp_path / "h200" / "runs" / "c" / "eager" / "rep1")
    collect(tmp_path / "h200", validate(config))
    (without, *_) = table(tmp_path / "h200", "runs")
    assert (recorded["status"], without["status"]) == ("ok", "missing")
    assert recorded["memory_cap_gib"] == "22"
    assert {name: without[name] for name in SETTINGS} == {name: recorded[name] for name in SETTINGS}


def test_missing(h200, folder, study):
    shutil.rmtree(folder)
    collect(h200, study)
    row = rows(h200, "runs", "blocks")[1]
    assert (row["status"], row["reason"]) == ("missing", "no record: it has not run, or never ended by itself")
    assert rows(h200, "variants", "blocks")[0]["missing"] == "1"
    assert rows(h200, "speedups", "blocks")[0]["pairs"] == "2"


def test_a_changed_study_says_what_changed(h200, scopes):
    config = json.loads(json.dumps(scopes.config))
    config["comparisons"]["vit-b128"]["variants"]["blocks"]["batch"] = 64
    collect(h200, validate(config))
    reasons = {row["reason"] for row in rows(h200, "runs", "blocks")}
    assert reasons == {"made by another configuration: batch was 128, now 64"}
    assert {row["status"] for row in rows(h200, "runs", "whole")} == {"ok"}


def test_another_recipe_is_said_by_its_name_alone(h200, scopes):
    config = json.loads(json.dumps(scopes.config))
    config["comparisons"]["vit-b128"]["variants"]["blocks"]["norm"] = "rmsnorm"
    collect(h200, validate(config))
    reasons = {row["reason"] for row in rows(h200, "runs", "blocks")}
    assert reasons == {"made by another configuration: norm was layernorm, now rmsnorm"}


def test_code_counts_only_where_it_is_given(h200, study):
    scope = Scope.parse("h200")
    codes = dict.fromkeys([*run_keys(study, scope), *parity_keys(study, scope)], "c0de")
    collect(h200, study, {**codes, KEY: "new"})
    row = rows(h200, "runs", "blocks")[1]
    assert (row["status"], row["reason"]) == ("stale", "made by another version of the code that measures")
    assert sum(run["status"] == "stale" for run in table(h200, "runs")) == 1


def test_disturbed_runs_keep_their_numbers_and_enter_no_ratio(h200, study, scopes):
    disturbed = {**scopes.behaviour["blocks"], "status": "disturbed", "reason": "another process"}
    scopes.write_run(h200, study, KEY, disturbed)
    collect(h200, study)
    row = rows(h200, "runs", "blocks")[1]
    assert row["status"] == "disturbed"
    assert float(row["step_ms_median"]) > 0
    assert rows(h200, "speedups", "blocks")[0]["n_variant"] == "2"


def test_cases_of_an_operator_are_rows_of_their_own(h200, study):
    """A summary of two rows gives each case its own row in the tables; a failed replicate counts for both."""
    for replicate in (1, 2):
        summary = h200 / "runs" / "vit-b128" / "blocks" / f"rep{replicate}" / "summary.csv"
        heading, line = summary.read_text().splitlines()
        summary.write_text("\n".join([heading, *(line.replace(",ok,,,", f",ok,,{case},") for case in "ab"), ""]))
    shutil.rmtree(h200 / "runs" / "vit-b128" / "blocks" / "rep3")
    collect(h200, study)
    assert [(row["case"], row["ok"], row["missing"]) for row in rows(h200, "variants", "blocks")] == [
        ("a", "2", "1"),
        ("b", "2", "1"),
    ]
    assert [row["case"] for row in rows(h200, "speedups", "blocks")] == ["a", "b"]


def test_study_json_is_the_study_in_its_order(h200, study):
    results = load(h200)
    assert results.study == study
    assert [comparison.name for comparison in results.comparisons] == list(study.comparisons)
    assert [variant.name for variant in results.comparisons[0].variants] == list(study.comparisons["vit-b128"].variants)


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, ""), (0, "0"), (1234567.8, "1234570"), (0.000123456789, "0.000123457"), (54.2, "54.2"), (-2.5, "-2.5")],
)
def test_cells_have_six_significant_digits_and_no_exponent(value, text):
    assert cell(value) == text
