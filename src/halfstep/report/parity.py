"""From the folders of the parity runs to a verdict on each recipe, and from those to one on each variant."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple

from halfstep.parity.plan import (
    SEEDS,
    Family,
    ParityKey,
    ParityRun,
    Recipe,
    parity_keys,
    resolve_parity,
    why_not,
)
from halfstep.records import CURVE_COLUMNS, RecordError, read_csv, read_record
from halfstep.report import wording
from halfstep.report.bands import (
    NOT_CHECKED,
    OUTSIDE,
    REFERENCE,
    VERDICTS,
    WITHIN,
    Curve,
    Judgement,
    judge,
    loss_blocks,
)
from halfstep.report.origin import check_numbers, check_record
from halfstep.report.tables import Row, cell
from halfstep.runs import RunKey, Scope
from halfstep.study import Study

RECIPE_SETTINGS = ("precision", "weights", "compile", "optimizer", "norm")
NO_RECORD = "no record: it has not run, or never ended by itself"
PARITY_COLUMNS: dict[str, str] = {
    "family": "what shares an fp32 reference: workload, reference optimizer and reference norm",
    "recipe": "what is swapped into the reference, joined by `+`; `reference`: nothing",
    "seed": "number of the seed of the weights",
    "workload": "what was trained",
    **dict.fromkeys(RECIPE_SETTINGS, "as in runs.csv"),
    "steps": "steps of training: fewer for a combination of several swaps",
    "status": "status of the run",
    "reason": "the status in a sentence, empty for `ok`",
    "verdict": "one of the verdicts above",
    "why": "why it is not `within`",
    "final_loss": "mean loss of the last of ten blocks of steps",
    "reference_loss": "the same, mean over the fp32 seeds in as many steps",
    "low": "lower end of where the final loss of one more fp32 run would lie",
    "high": "upper end",
    "deviation": "final_loss / reference_loss - 1",
    "visible": "smallest deviation of the final loss that would have been out of bounds, as a share of reference_loss",
    "own_deviation": "final loss over that of fp32 with the same seed, less 1",
    "norm_deviation": "median gradient norm of the last block over the fp32 seeds' geometric mean, less 1",
    "norm_visible": "smallest deviation above it that would have been out of bounds",
    "parameters_trained": "parameters that a gradient reached",
    "skipped_steps": "updates that were skipped, and repeated",
    "data_source": "SHA-256 of what the data are made from",
    "environment": "as in runs.csv",
    "run_hash": "as in runs.csv",
    "code_hash": "as in runs.csv",
}


class Verdict(NamedTuple):
    """On a recipe or a variant; `why` is empty for `within`."""

    verdict: str
    why: str


Verdicts = dict[tuple[str, str], Verdict]
"""of the training variants, by comparison and name"""


@dataclass(frozen=True)
class Found:
    """What a parity run's folder holds, or why that cannot be used."""

    key: ParityKey
    run: ParityRun
    status: str
    reason: str
    record: Mapping[str, Any] = field(default_factory=dict)
    curve: Curve | None = None  # of an ok run
    data: Sequence[str] = ()  # checksum of each step's batch
    skipped: int = 0

    @property
    def environment(self) -> str:
        return str(self.record.get("environment_hash") or "")

    @property
    def applied(self) -> Mapping[str, Any]:
        applied = self.record.get("applied")
        return applied if isinstance(applied, dict) else {}

    @property
    def finite(self) -> bool:
        return self.curve is not None and all(isfinite(value) for value in (*self.curve.losses, *self.curve.norms))


@dataclass(frozen=True)
class Parity:
    """All of a study's parity: rows of parity.csv, and what they say of each recipe."""

    rows: list[Row]
    judged: dict[Recipe, Judgement]
    environments: dict[Recipe, str]
    absent: str  # why nothing was to be checked; empty where it was

    def of_variant(self, recipe: Recipe | None, timed_in: Collection[str]) -> Verdict:
        """The worst of what a variant is made of: its recipes and, if it combines them, its own short run.

        Args:
            recipe: what the variant swaps; None where its workload has no data to learn.
            timed_in: hashes of the environments of the runs that were timed.
        """
        if recipe is None:
            return Verdict(NOT_CHECKED, "its workload has no learnable data")
        if self.absent:
            return Verdict(NOT_CHECKED, self.absent)
        if recipe.is_reference:
            return self._named(recipe)
        found = [self._named(part) for part in dict.fromkeys((*recipe.parts, recipe))]
        worst = next((one for word in (OUTSIDE, NOT_CHECKED) for one in found if one.verdict == word), None)
        if worst:
            return worst
        checked_in = {self.environments[part] for part in (*recipe.parts, recipe)}
        if timed_in and not checked_in <= set(timed_in):
            return Verdict(NOT_CHECKED, "its parity runs and its timed runs were made in two environments")
        return Verdict(WITHIN, "")

    def _named(self, recipe: Recipe) -> Verdict:
        judgement = self.judged[recipe]
        return Verdict(judgement.verdict, f"`{recipe.name}`: {judgement.why}" if judgement.why else "")


def collect_parity(
    scope_dir: Path, study: Study, scope: Scope, codes: Mapping[RunKey | ParityKey, str] | None = None
) -> Parity:
    """Read and judge the parity runs of a study.

    Args:
        scope_dir: the scope's folder.
        study: what was to be run.
        scope: device, scale and image.
        codes: fingerprint of the code that would train each run today; a record of other code is stale.
    """
    if why := why_not(study, scope):
        return Parity([], {}, {}, why)
    found = {
        key: read(
            scope_dir / "parity" / key.folder, key, resolve_parity(study, scope, key), codes[key] if codes else None
        )
        for key in parity_keys(study, scope)
    }
    references: dict[Family, list[Found]] = {}
    for key, run in found.items():
        if key.recipe.is_reference:
            references.setdefault(key.recipe.family, []).append(run)
    judged = {key: _judge(run, references[key.recipe.family]) for key, run in found.items()}
    rows = [_row(run, judged[key]) for key, run in found.items()]
    # a reference that lacks a seed is judged alike for all of its seeds that are there
    by_recipe = {key.recipe: judgement for key, judgement in judged.items()}
    return Parity(rows, by_recipe, {key.recipe: run.environment for key, run in found.items()}, "")


def read(folder: Path, key: ParityKey, run: ParityRun, code: str | None) -> Found:
    """What a parity run's folder holds, or why that cannot be used."""
    if not (folder / "record.json").exists():
        return Found(key, run, "missing", NO_RECORD)
    try:
        record = read_record(folder)
        identity = {"family": key.recipe.family.name, "recipe": key.recipe.name, "seed": key.seed}
        check_record(record, identity, run, code)
        rows = read_csv(folder / "curve.csv", CURVE_COLUMNS)
        check_numbers("curve.csv", rows, ["loss", "gradient_norm"], finite=False)
        check_numbers("curve.csv", rows, ["skipped"], finite=True)
        if record["status"] != "ok":
            return Found(key, run, record["status"], str(record.get("reason")), record)
        if [row["step"] for row in rows] != [str(step) for step in range(run.steps)]:
            raise RecordError(f"curve.csv does not have the steps 0 to {run.steps - 1}")
        if not all(row["loss"] and row["gradient_norm"] for row in rows):
            raise RecordError("curve.csv lacks a loss or a gradient norm")
        if not isinstance((record.get("applied") or {}).get("parameters_trained"), int):
            raise RecordError("record.json does not say how many parameters a gradient reached")
    except RecordError as error:
        return Found(key, run, "stale", str(error))
    curve = Curve(*([float(row[name]) for row in rows] for name in ("loss", "gradient_norm")))
    skipped = sum(int(row["skipped"]) for row in rows)
    return Found(key, run, "ok", "", record, curve, [row["data"] for row in rows], skipped)


def _judge(run: Found, references: Sequence[Found]) -> Judgement:
    """The verdict on a run, where it and its references can be compared at all."""
    unfit = _unfit(run, references)
    if unfit:
        return Judgement(NOT_CHECKED, unfit)
    assert run.curve is not None
    if run.key.recipe.is_reference:
        return Judgement(REFERENCE, "", final_loss=loss_blocks(run.curve, run.run.steps)[-1])
    judgement = judge(run.curve, [one.curve for one in references if one.curve], run.run.steps)
    ours, theirs = (one.applied.get("parameters_trained") for one in (run, references[0]))
    if ours != theirs:
        why = f"gradients reach {ours:,} parameters, and {theirs:,} in the fp32 reference"
        both = "; ".join(filter(None, (why, judgement.why if judgement.verdict == OUTSIDE else "")))
        return replace(judgement, verdict=OUTSIDE, why=both)
    return judgement


def _unfit(run: Found, references: Sequence[Found]) -> str:
    """Why a run cannot be judged by these references; empty where it can."""
    if run.status != "ok":
        return run.reason if run.status == "missing" else f"{wording.status(run.status)}: {run.reason}"
    bad = [one for one in references if one.status != "ok"]
    if bad or len(references) < SEEDS:
        first = f", seed {bad[0].key.seed} of it is {wording.status(bad[0].status)}" if bad else ""
        return f"its fp32 reference needs {SEEDS} seeds{first}"
    diverged = next((one for one in references if not one.finite), None)
    if diverged:
        return f"the fp32 reference itself is not finite with seed {diverged.key.seed}"
    if {one.environment for one in references} != {run.environment}:
        return "it and its fp32 reference were run in more than one environment"
    for reference in references:
        differs = next(
            (step for step, (ours, theirs) in enumerate(zip(run.data, reference.data, strict=False)) if ours != theirs),
            None,
        )
        if differs is not None:
            return f"it saw other data than seed {reference.key.seed} of its fp32 reference, first in step {differs}"
    return ""


def _row(run: Found, judgement: Judgement) -> Row:
    recipe = run.key.recipe
    numbers = {
        "final_loss": judgement.final_loss,
        "reference_loss": judgement.reference_loss,
        "low": judgement.low,
        "high": judgement.high,
        "deviation": judgement.deviation,
        "visible": judgement.visible,
        "own_deviation": judgement.own,
        "norm_deviation": judgement.norm_deviation,
        "norm_visible": judgement.norm_visible,
    }
    row = {
        "family": recipe.family.name,
        "recipe": recipe.name,
        "seed": str(run.key.seed),
        "workload": recipe.family.workload,
        **{name: getattr(recipe, name) for name in RECIPE_SETTINGS},
        "steps": str(run.run.steps),
        "status": run.status,
        "reason": run.reason,
        "verdict": judgement.verdict,
        "why": judgement.why,
        **{name: cell(value) if isfinite(value) else "" for name, value in numbers.items()},
        "parameters_trained": str(run.applied.get("parameters_trained", "")),
        "skipped_steps": str(run.skipped) if run.curve else "",
        "data_source": str(run.applied.get("data_source", "")),
        "environment": run.environment,
        "run_hash": str(run.record.get("run_hash", "")),
        "code_hash": str(run.record.get("code_hash", "")),
    }
    assert row.keys() == PARITY_COLUMNS.keys() and row["verdict"] in VERDICTS
    return row


def struck(sides: Mapping[str, Verdict | None]) -> str:
    """Why a ratio between these variants must not be used; empty where it may. Operators have no verdict."""
    return "; ".join(
        f"`{name}` trains out of bounds ({verdict.why})"
        for name, verdict in sides.items()
        if verdict and verdict.verdict == OUTSIDE
    )
