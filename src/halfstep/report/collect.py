"""From the folders of the runs to the tables: which runs there are, which can be believed, and their numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isclose, nan
from pathlib import Path
from statistics import fmean, median
from typing import Any

from halfstep.parity.plan import ParityKey, recipe_of
from halfstep.records import (
    KERNELS_COLUMNS,
    STATUSES,
    STEPS_COLUMNS,
    SUMMARY_COLUMNS,
    RecordError,
    as_cell,
    read_csv,
    read_record,
    write_csv,
)
from halfstep.registry import OPERATORS
from halfstep.report import snapshot
from halfstep.report.claims import CLAIMS_COLUMNS, claim_rows
from halfstep.report.origin import check_numbers, check_record
from halfstep.report.parity import NO_RECORD, PARITY_COLUMNS, Parity, Verdicts, collect_parity, struck
from halfstep.report.proofs import PROOFS_COLUMNS, proof_row
from halfstep.report.protocols import STEP_TIME, by_protocol
from halfstep.report.tables import (
    KERNELS_TABLE_COLUMNS,
    NUMERIC,
    RANKING_COLUMNS,
    SETTINGS,
    SPEEDUPS_COLUMNS,
    VARIANTS_COLUMNS,
    Row,
    kernel_rows,
    ranking_rows,
    speedup_row,
    variant_row,
)
from halfstep.runs import Run, RunKey, Scope, resolve, run_keys
from halfstep.study import Study
from halfstep.validity import verdict

UNTIMED = ("dtypes",)  # operators whose cases are values
POSITIVE = ("step_ms_median", "samples_per_step", "samples_per_s")  # of every ok run
POSITIVE_IF_THERE = ("host_ms_mean", "model_tflop_per_s", "peak_share", "gb_per_s")
SIGNED = ("idle_ms", "loss_first", "loss_last", "sqnr_db")  # the only numbers that can be below 0
# rate: what it is of, per ms of step_ms_median
RATES = {"samples_per_s": "samples_per_step", "model_tflop_per_s": "model_tflop_per_step", "gb_per_s": "gb_per_step"}
AS_WRITTEN = 1e-5  # numbers in the files have seven significant digits


@dataclass
class Collected:
    """One run: its rows of runs.csv, an operator's one per case; if it is ok, its kernels and what it applied."""

    rows: list[Row]
    kernels: list[Row] = field(default_factory=list)
    applied: dict[str, Any] = field(default_factory=dict)


AllRuns = Mapping[tuple[str, str], list[Collected]]
"""by (comparison, variant)"""


def collect(
    scope_dir: Path,
    study: Study,
    codes: Mapping[RunKey | ParityKey, str] | None = None,
    scope: Scope | None = None,
) -> None:
    """Write study.json and the tables of a scope from the runs that the study names.

    Args:
        scope_dir: the scope's folder.
        study: what was to be measured.
        codes: fingerprint of the code that would measure each run today; a record of other code is stale.
            Without it only the configuration is compared.
        scope: device, scale and image of the runs; without it, as the folder's own name says.
    """
    scope = scope or snapshot.scope_by_name(scope_dir)
    runs: dict[tuple[str, str], list[Collected]] = {
        (name, variant): [] for name, comparison in study.comparisons.items() for variant in comparison.variants
    }
    for key in sorted(run_keys(study, scope), key=lambda key: key[2]):
        code = codes[key] if codes is not None else None
        folder = scope_dir / "runs" / key[0] / key[1] / f"rep{key[2]}"
        protocol = study.comparisons[key[0]].protocol
        runs[key[:2]].append(collect_run(folder, key, resolve(study, scope, key), code, protocol))
    tables = scope_dir / "tables"
    all_rows = [row for variant in runs.values() for run in variant for row in run.rows]
    write_csv(tables / "runs.csv", SUMMARY_COLUMNS, all_rows)
    for (comparison, _), found in runs.items():
        for run in found:
            run.rows = [by_protocol(row, study.comparisons[comparison].protocol) for row in run.rows]
    parity = collect_parity(scope_dir, study, scope, codes)
    write_csv(tables / "parity.csv", PARITY_COLUMNS, parity.rows)
    verdicts = _verdicts(study, runs, parity)
    write_csv(tables / "variants.csv", VARIANTS_COLUMNS, _variants(study, runs, verdicts))
    write_csv(tables / "speedups.csv", SPEEDUPS_COLUMNS, _speedups(study, runs, verdicts))
    write_csv(tables / "ranking.csv", RANKING_COLUMNS, _ranking(study, runs, verdicts))
    kernels = [
        row
        for (comparison, variant), found in runs.items()
        for row in kernel_rows(comparison, variant, [(run.rows[0], run.kernels) for run in found])
    ]
    write_csv(tables / "kernels.csv", KERNELS_TABLE_COLUMNS, kernels)
    proofs = (proof_row([(run.rows[0], run.applied, run.kernels) for run in found]) for found in runs.values())
    write_csv(tables / "proofs.csv", PROOFS_COLUMNS, [row for row in proofs if row])
    by_case = {key: _by_case(found) for key, found in runs.items()}
    smoke = scope.scale == "smoke"
    write_csv(tables / "claims.csv", CLAIMS_COLUMNS, claim_rows(study, by_case, kernels, verdicts, smoke=smoke))
    snapshot.write(scope_dir, scope, study)


def _verdicts(study: Study, runs: AllRuns, parity: Parity) -> Verdicts:
    """Parity of each training variant; operators have none."""
    found = {}
    for key, replicates in runs.items():
        comparison = study.comparisons[key[0]]
        if comparison.workload in OPERATORS:
            continue
        timed_in = {row["environment"] for run in replicates for row in run.rows if row["status"] == "ok"}
        found[key] = parity.of_variant(recipe_of(comparison.workload, comparison.variants[key[1]]), timed_in)
    return found


def _by_case(runs: list[Collected]) -> dict[str, list[Row]]:
    """Rows of one variant by case. A run without rows per case (it failed) counts for every case."""
    rows = [row for run in runs for row in run.rows]
    cases = dict.fromkeys(row["case"] for row in rows if row["case"]) or {"": None}
    return {case: [{**row, "case": case} for row in rows if row["case"] in ("", case)] for case in cases}


def _variants(study: Study, runs: AllRuns, verdicts: Verdicts) -> list[Row]:
    table = []
    for key, found in runs.items():
        verdict, why = verdicts.get(key, ("", ""))
        for rows in _by_case(found).values():
            row = variant_row(rows, len(found), key[1] == study.comparisons[key[0]].baseline)
            table.append({**row, "parity": verdict, "parity_why": why})
    return table


def _speedups(study: Study, runs: AllRuns, verdicts: Verdicts) -> list[Row]:
    table = []
    for (comparison, variant), found in runs.items():
        baseline = study.comparisons[comparison].baseline
        baseline_rows = _by_case(runs[comparison, baseline])
        void = struck({name: verdicts.get((comparison, name)) for name in (variant, baseline)})
        for case, rows in _by_case(found).items() if variant != baseline else ():
            # a baseline that failed has no cases of its own
            table.append({**speedup_row(baseline, baseline_rows.get(case, []), rows), "struck": void})
    return table


def _ranking(study: Study, runs: AllRuns, verdicts: Verdicts) -> list[Row]:
    """Training steps only: cases of an operator are not ranked; nor is a variant that trains out of bounds."""
    table = []
    for name, comparison in study.comparisons.items():
        rows = {
            variant: [row for run in runs[name, variant] for row in run.rows if not row["case"]]
            for variant in comparison.variants
            if not struck({variant: verdicts.get((name, variant))})
        }
        table += ranking_rows(name, rows)
    return table


def collect_run(folder: Path, key: RunKey, run: Run, code: str | None, protocol: str = "fair") -> Collected:
    """What a run's folder holds, or why that cannot be used. Whether an ok run shows what was asked is judged anew."""
    if not (folder / "record.json").exists():
        return Collected([_row_without_numbers(key, run, "missing", NO_RECORD)])
    try:
        record = read_record(folder)
        check_record(record, dict(zip(("comparison", "variant", "replicate"), key, strict=True)), run, code)
        summary = read_csv(folder / "summary.csv", SUMMARY_COLUMNS)
        steps = read_csv(folder / "steps.csv", STEPS_COLUMNS)
        kernels = read_csv(folder / "kernels.csv", KERNELS_COLUMNS)
        _check_summary(summary, record, steps)
        timed = [row for row in summary if row["status"] == "ok" and row["workload"] not in UNTIMED]
        if not all(row[STEP_TIME[protocol]] for row in timed):
            raise RecordError(f"summary.csv says ok, and its {STEP_TIME[protocol]} is empty")
        check_numbers("kernels.csv", kernels, ["ms_per_step"], finite=True)
        _check_amounts("kernels.csv", kernels, ["ms_per_step"], needed=True)
    except RecordError as error:
        return Collected([_row_without_numbers(key, run, "stale", str(error))])
    if record["status"] != "ok":
        return Collected(summary)
    applied = record.get("applied") or {}
    if judged := verdict(run.model_dump(), applied, kernels, steps):
        status, reason = judged
        return Collected(
            [{**row, "status": status, "reason": reason} if row["status"] == "ok" else row for row in summary]
        )
    return Collected(summary, kernels, applied)


def _row_without_numbers(key: RunKey, run: Run, status: str, reason: str) -> Row:
    settings = run.model_dump()
    return {
        **dict.fromkeys(SUMMARY_COLUMNS, ""),
        **{name: as_cell(settings[name]) for name in SETTINGS},
        "comparison": key[0],
        "variant": key[1],
        "replicate": str(key[2]),
        "status": status,
        "reason": reason,
    }


def _check_summary(summary: list[Row], record: Mapping[str, Any], steps: list[Row]) -> None:
    """Raise RecordError unless the CSVs are those of the record and hold numbers where numbers belong."""
    if not summary:
        raise RecordError("summary.csv has no row")
    if len({row["case"] for row in summary}) != len(summary):
        raise RecordError("summary.csv has a row twice")
    said = {name: record[name] for name in ("comparison", "variant", "replicate", "run_hash")}
    said |= {name: record.get(name) for name in ("sitting", "image", "code_hash")}
    said |= {"environment": record.get("environment_hash"), "gpu_uuid": (record.get("gpu") or {}).get("uuid")}
    said |= {name: value for name, value in (record.get("run") or {}).items() if name in SETTINGS}
    for row in summary:
        for name, value in said.items():
            if row[name] != as_cell(value):
                raise RecordError(f"summary.csv is not of this record: its {name} is {row[name]!r}")
    ok = record["status"] == "ok"
    for row in summary:
        of_another = row["status"] != record["status"]
        # a case may have a status of its own; the run has that of its best
        if of_another and (row["status"] == "ok" or not row["case"] or row["status"] not in STATUSES):
            raise RecordError(f"summary.csv is not of this record: its status is {row['status']!r}")
    done = [row for row in summary if row["status"] == "ok"]
    if ok and not done:
        raise RecordError("the record says ok, and no row of summary.csv does")
    check_numbers("summary.csv", [row for row in summary if row not in done], NUMERIC, finite=False)
    check_numbers("summary.csv", done, NUMERIC, finite=True)
    check_numbers("steps.csv", steps, ["step_ms", "wall_ms"], finite=ok)
    check_numbers("steps.csv", steps, ["loss"], finite=False)
    if not ok:
        return
    for row in done:
        if row["workload"] in UNTIMED:
            if not row["value"]:
                raise RecordError(f"summary.csv says ok, and {row['case']!r} has no value")
            continue
        for name in (*POSITIVE, *(name for name in POSITIVE_IF_THERE if row[name])):
            if not row[name] or float(row[name]) <= 0:
                raise RecordError(f"summary.csv says ok, and its {name} is {row[name]!r}")
        for rate, amount in RATES.items():
            speed = float(row[amount] or nan) / float(row["step_ms_median"]) * 1e3
            if row[rate] and not _same(row[rate], speed):
                raise RecordError(f"summary.csv contradicts itself: its {rate} is {row[rate]}")
    _check_amounts("summary.csv", done, [name for name in NUMERIC if name not in SIGNED], needed=False)
    if not steps and summary[0]["case"]:
        return
    _check_steps(steps, summary[0])


def _check_steps(steps: list[Row], summary: Row) -> None:
    """Raise RecordError unless the steps of an ok training run are whole, and the summary's numbers are theirs."""
    _check_amounts("steps.csv", steps, ["step_ms", "wall_ms"], needed=True)
    for row in steps:
        if row["skipped"] not in ("0", "1"):
            raise RecordError(f"steps.csv: skipped is {row['skipped']!r}")
    window = [row for row in steps if row["phase"] == "window"]
    times = [float(row["step_ms"]) for row in window if row["skipped"] == "0"]
    if not times or summary["steps"] != str(len(times)):
        raise RecordError(f"steps.csv has {len(times)} timed steps, summary.csv says {summary['steps']}")
    means = {
        "step_ms_median": median(times),
        "step_ms_mean": fmean(times),
        "host_ms_mean": fmean(float(row["wall_ms"]) for row in window),
    }
    for name, value in means.items():
        if summary[name] and not _same(summary[name], value):
            raise RecordError(f"summary.csv is not of steps.csv: its {name} is {summary[name]}")


def _same(cell: str, value: float) -> bool:
    return isclose(float(cell), value, rel_tol=AS_WRITTEN)


def _check_amounts(file: str, rows: list[Row], columns: list[str], *, needed: bool) -> None:
    """Raise RecordError at a number below 0 and, where it is needed, at an empty cell."""
    for row in rows:
        for name in columns:
            if (needed and not row[name]) or float(row[name] or 0) < 0:
                raise RecordError(f"{file}: {name} is {row[name]!r}")
