"""A collected scope read back: what figures and report are made of. Nothing here measures or decides a status."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from halfstep.records import SUMMARY_COLUMNS, one_per_run, read_record
from halfstep.registry import OPERATORS
from halfstep.report import snapshot
from halfstep.report.bands import OUTSIDE
from halfstep.report.claims import CLAIMS_COLUMNS
from halfstep.report.parity import PARITY_COLUMNS
from halfstep.report.proofs import PROOFS_COLUMNS
from halfstep.report.protocols import by_protocol, clock
from halfstep.report.statistics import Ranking, Ratio
from halfstep.report.tables import (
    IDLE,
    KERNELS_TABLE_COLUMNS,
    RANKING_COLUMNS,
    SPEEDUPS_COLUMNS,
    VARIANTS_COLUMNS,
    Row,
    number,
    read_table,
)
from halfstep.runs import Scope
from halfstep.study import SMOKE_BATCH, Comparison, Study


@dataclass(frozen=True)
class VariantResult:
    """One variant of a comparison: its row of variants.csv, its runs, and what was made of them."""

    row: Row
    runs: list[Row]  # by the comparison's protocol
    speedup: Ratio | None  # None for the baseline
    kernels: dict[str, float]  # ms per step by kind, idle among them; empty without a profile
    struck: str = ""  # why its speed-up must not be used

    @property
    def name(self) -> str:
        return self.row["variant"]

    @property
    def measured(self) -> bool:
        return self.row["status"] == "ok"

    @property
    def outside(self) -> bool:
        """Whether it trains out of bounds."""
        return self.row["parity"] == OUTSIDE

    @property
    def usable(self) -> bool:
        """Measured, and not out of bounds: something to recommend."""
        return self.measured and not self.outside

    @property
    def ok_runs(self) -> list[Row]:
        return [run for run in self.runs if run["status"] == "ok"]

    @property
    def idle_share(self) -> float | None:
        """Share of the step in which no kernel ran; None without a profile."""
        return self.kernels.get(IDLE, 0) / sum(self.kernels.values()) if self.kernels else None

    def __getitem__(self, column: str) -> float | None:
        """The number in a column of variants.csv."""
        return number(self.row[column])

    def require(self, column: str) -> float:
        """A number that every measured variant has."""
        value = self[column]
        assert value is not None, f"{self.name} has no {column}"
        return value


@dataclass(frozen=True)
class ComparisonResult:
    """One comparison; its variants in the order of config.yaml."""

    name: str
    title: str
    baseline: str
    variants: list[VariantResult]
    ranking: Ranking | None  # of those that do not train out of bounds; None where none of them was measured
    proofs: list[Row] = field(default_factory=list)  # of proofs.csv
    clock: str = ""  # what the step time is where it is not the median by the device's clock

    @property
    def measured(self) -> list[VariantResult]:
        return [variant for variant in self.variants if variant.measured]

    @property
    def usable(self) -> list[VariantResult]:
        return [variant for variant in self.variants if variant.usable]

    @property
    def outside(self) -> list[VariantResult]:
        """Measured, and out of bounds in training."""
        return [variant for variant in self.measured if variant.outside]

    def __getitem__(self, name: str) -> VariantResult:
        return next(variant for variant in self.variants if variant.name == name)

    @property
    def unit(self) -> str:
        """What is counted per second: images or tokens."""
        return next((variant.row["sample_unit"] for variant in self.measured), "") or "samples"

    @property
    def one_batch(self) -> bool:
        """Whether step times can be compared as they are."""
        return len({variant["samples_per_step"] for variant in self.measured}) <= 1


@dataclass(frozen=True)
class OperatorResult:
    """One comparison of an operator: each case with the variants that have a row for it, in config.yaml's order."""

    name: str
    title: str
    baseline: str
    workload: str
    variants: list[str]
    cases: dict[str, dict[str, VariantResult]]
    without_cases: list[VariantResult]  # of which nothing was measured at all

    @property
    def measured(self) -> list[VariantResult]:
        return [found for case in self.cases.values() for found in case.values() if found.measured]


@dataclass(frozen=True)
class Results:
    """All that a scope's folder says."""

    folder: Path
    scope: Scope
    study: Study
    comparisons: list[ComparisonResult]  # of training steps
    operators: list[OperatorResult]
    runs: list[Row]  # an operator's run has a row per case
    claims: list[Row]
    parity: list[Row]
    records: list[dict[str, Any]]  # of the runs that are neither missing nor stale
    doctor: dict[str, Any]

    @property
    def one_per_run(self) -> list[Row]:
        """A row per run, with its status."""
        return one_per_run(self.runs)

    @property
    def machine(self) -> str:
        """The devices that the records name, in words."""
        environments = [record.get("environment") or {} for record in self.records]
        names = [environment.get("gpu") or environment.get("cpu") for environment in environments]
        return " and ".join(dict.fromkeys(str(name) for name in names if name)) or self.scope.device


def load(scope_dir: Path) -> Results:
    """Read study.json, the tables, the records and, if it is there, the doctor's report."""
    scope, study = snapshot.read(scope_dir)
    tables = scope_dir / "tables"
    runs = read_table(tables / "runs.csv", SUMMARY_COLUMNS)
    variants = read_table(tables / "variants.csv", VARIANTS_COLUMNS)
    speedups = {
        (row["comparison"], row["variant"], row["case"]): (_ratio(row), row["struck"])
        for row in read_table(tables / "speedups.csv", SPEEDUPS_COLUMNS)
    }
    rankings: dict[str, dict[str, dict[str, Ratio]]] = {}  # by comparison and its fastest variant
    for row in read_table(tables / "ranking.csv", RANKING_COLUMNS):
        ratio = Ratio(
            number(row["ratio"]),
            number(row["low"]),
            number(row["high"]),
            int(row["pairs"]),
            method=row["method"],
            reason=row["reason"],
        )
        rankings.setdefault(row["comparison"], {}).setdefault(row["fastest"], {})[row["variant"]] = ratio
    proofs = read_table(tables / "proofs.csv", PROOFS_COLUMNS)
    kernels: dict[tuple[str, str], dict[str, float]] = {}
    for row in read_table(tables / "kernels.csv", KERNELS_TABLE_COLUMNS):
        kernels.setdefault((row["comparison"], row["variant"]), {})[row["kind"]] = float(row["ms_per_step"])
    by_variant: dict[tuple[str, str], list[Row]] = {}
    for row in runs:
        timed = by_protocol(row, study.comparisons[row["comparison"]].protocol)
        by_variant.setdefault((row["comparison"], row["variant"]), []).append(timed)
    found: dict[str, list[VariantResult]] = {name: [] for name in study.comparisons}
    for row in variants:
        key = row["comparison"], row["variant"]
        runs_of_case = [run for run in by_variant[key] if run["case"] in ("", row["case"])]
        speedup, struck = speedups.get((*key, row["case"]), (None, ""))
        found[key[0]].append(VariantResult(row, runs_of_case, speedup, kernels.get(key, {}), struck))
    smoke = f" (smoke: tiny model, batch {SMOKE_BATCH})" if scope.scale == "smoke" else ""
    trained = {name: entry for name, entry in study.comparisons.items() if entry.workload not in OPERATORS}
    comparisons = [
        ComparisonResult(
            name,
            (comparison.title or name) + smoke,
            comparison.baseline,
            found[name],
            _ranking(rankings.get(name, {}), found[name]),
            [row for row in proofs if row["comparison"] == name],
            clock(comparison.protocol, scope),
        )
        for name, comparison in trained.items()
    ]
    operators = [
        _operator(name, entry, found[name], " (smoke: tiny sizes)" * (scope.scale == "smoke"))
        for name, entry in study.comparisons.items()
        if name not in trained
    ]
    usable = [row for row in runs if row["status"] not in ("missing", "stale")]
    folders = dict.fromkeys(run_folder(scope_dir, row) for row in usable)
    records = [read_record(folder) for folder in folders]
    claims = read_table(tables / "claims.csv", CLAIMS_COLUMNS)
    parity = read_table(tables / "parity.csv", PARITY_COLUMNS)
    return Results(scope_dir, scope, study, comparisons, operators, runs, claims, parity, records, _doctor(scope_dir))


def _operator(name: str, comparison: Comparison, found: list[VariantResult], smoke: str) -> OperatorResult:
    cases: dict[str, dict[str, VariantResult]] = {}
    for variant in found:
        if variant.row["case"]:
            cases.setdefault(variant.row["case"], {})[variant.name] = variant
    without = [variant for variant in found if not variant.row["case"]]
    title = (comparison.title or name) + smoke
    return OperatorResult(
        name, title, comparison.baseline, comparison.workload, list(comparison.variants), cases, without
    )


def _ranking(found: dict[str, dict[str, Ratio]], variants: list[VariantResult]) -> Ranking | None:
    """A single variant has nothing to be ranked against, and so no row in ranking.csv."""
    for best, ratios in found.items():
        return Ranking(best, ratios)
    alone = [variant.name for variant in variants if variant.usable]
    return Ranking(alone[0], {}) if alone else None


def run_folder(scope_dir: Path, run: Row) -> Path:
    return scope_dir / "runs" / run["comparison"] / run["variant"] / f"rep{run['replicate']}"


def _ratio(row: Row) -> Ratio:
    return Ratio(
        number(row["speedup"]),
        number(row["speedup_low"]),
        number(row["speedup_high"]),
        int(row["pairs"]),
        int(row["n_baseline"]),
        int(row["n_variant"]),
        row["method"],
        row["reason"],
    )


def _doctor(scope_dir: Path) -> dict[str, Any]:
    """system/doctor.json; empty where it is missing or not to be read: it explains, and no number hangs on it."""
    try:
        doctor = json.loads((scope_dir / "system" / "doctor.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return doctor if isinstance(doctor, dict) else {}
