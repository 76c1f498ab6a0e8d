"""The report on loss parity: its section, and the sentence that stands where speed-ups are recommended."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from statistics import fmean
from typing import NamedTuple

from halfstep.parity.plan import COMBINATION_STEPS, RECIPE_STEPS, SEEDS
from halfstep.report import wording
from halfstep.report.bands import NOT_CHECKED, OUTSIDE, REFERENCE, WITHIN
from halfstep.report.problems import SNAKEMAKE
from halfstep.report.results import Results
from halfstep.report.tables import Row, number
from halfstep.report.wording import EMPTY, digits, percent

LEAST_SHOWN = 1e-5
HEADINGS = [
    "recipe", "steps", "final loss", "one more fp32 run", "deviation", "would be seen from", "same seed",
    "gradient norm", "verdict",
]  # fmt: skip


class Family(NamedTuple):
    """The parity runs that share an fp32 reference."""

    name: str
    rows: list[Row]

    @property
    def title(self) -> str:
        workload = self.rows[0]["workload"]
        reference = next(row for row in self.rows if row["recipe"] == REFERENCE)
        return f"{workload}, {reference['optimizer']}, {reference['norm']}"

    @property
    def judged(self) -> list[Row]:
        """Those with a curve that was compared: within, outside, or too blunt to say."""
        blunt = (row for row in self.rows if row["verdict"] == NOT_CHECKED and row["final_loss"])
        return [row for row in self.rows if row["verdict"] in (WITHIN, OUTSIDE)] + list(blunt)

    @property
    def references(self) -> list[Row]:
        return [row for row in self.rows if row["verdict"] == REFERENCE]

    @property
    def unchecked(self) -> list[Row]:
        """Those that could not be compared."""
        return [row for row in self.rows if row not in self.judged and row["verdict"] == NOT_CHECKED]


def families(results: Results) -> list[Family]:
    found: dict[str, list[Row]] = {}
    for row in results.parity:
        found.setdefault(row["family"], []).append(row)
    return [Family(name, rows) for name, rows in found.items()]


def summary(results: Results) -> str:
    """How many of the training variants train as fp32 does."""
    counts = Counter(v.row["parity"] for comparison in results.comparisons for v in comparison.variants)
    if not counts[WITHIN] and not counts[OUTSIDE]:
        return f"Loss parity is not checked ({why_unchecked(results)}): these answers are about speed and memory alone."
    parts = {
        f"{counts[WITHIN]} in bounds": counts[WITHIN],
        f"{counts[OUTSIDE]} out of bounds, their speed-ups struck out": counts[OUTSIDE],
        f"{counts[NOT_CHECKED]} not checked": counts[NOT_CHECKED],
        f"{counts[REFERENCE]} the fp32 reference itself": counts[REFERENCE],
    }
    total = wording.count(sum(counts.values()), "training variant")
    said = wording.join(part for part, n in parts.items() if n)
    return f"Whether they train as fp32 does was checked in runs of its own, see Loss parity: of {total} {said}."


def why_unchecked(results: Results) -> str:
    """In a few words, where nothing was checked."""
    if not results.parity:
        reasons = {v.row["parity_why"] for comparison in results.comparisons for v in comparison.variants}
        return wording.join(sorted(reasons))
    missing = sum(row["status"] == "missing" for row in results.parity)
    if missing == len(results.parity):
        return f"none of its {missing} runs was made"
    return "the table of parity says why"


def table(family: Family) -> tuple[list[str], list[list[str]]]:
    """Headings and lines: the reference, then what was judged."""
    lines = [_reference(family.references)] if family.references else []
    return HEADINGS, [*lines, *map(_line, family.judged)]


def _reference(rows: Sequence[Row]) -> list[str]:
    losses = [float(row["final_loss"]) for row in rows]
    spread = f"{digits(fmean(losses), 4)} ({digits(min(losses), 4)} to {digits(max(losses), 4)})"
    name = f"`{rows[0]['recipe']}`, {wording.count(len(rows), 'seed')}"
    return [name, rows[0]["steps"], spread, *[EMPTY] * 5, REFERENCE]


def _line(row: Row) -> list[str]:
    low, high = number(row["low"]), number(row["high"])
    return [
        f"`{row['recipe']}`",
        row["steps"],
        digits(number(row["final_loss"]), 4),
        EMPTY if low is None or high is None else f"{digits(low, 4)} to {digits(high, 4)}",
        _signed(row["deviation"]),
        percent(number(row["visible"])),
        _signed(row["own_deviation"]),
        _signed(row["norm_deviation"]),
        row["verdict"],
    ]


def _signed(text: str) -> str:
    value = number(text)
    if value is None:
        return EMPTY
    if abs(value) < LEAST_SHOWN:
        return "0 %" if value == 0 else f"<{percent(LEAST_SHOWN)}"
    return f"{'+' if value > 0 else '−'}{percent(abs(value))}"


def notes(family: Family) -> list[str]:
    """What lies where, and why others could not be judged."""
    told = [f"`{row['recipe']}`, {row['verdict']}: {row['why']}." for row in family.judged if row["why"]]
    reasons: dict[str, dict[str, list[int]]] = {}
    for row in family.unchecked:
        reasons.setdefault(row["why"].rstrip("."), {}).setdefault(row["recipe"], []).append(int(row["seed"]))
    for why, recipes in reasons.items():
        names = (f"`{name}`" + f" (seed {wording.ranges(n)})" * (name == REFERENCE) for name, n in recipes.items())
        told.append(f"Not checked: {wording.join(names)}. {why[0].upper()}{why[1:]}.")
    return told


def introduction(results: Results) -> list[str]:
    """How it is checked and what is missing, or why nothing was."""
    if not results.parity:
        return [f"Not checked: {why_unchecked(results)}."]
    return [f"{method()} The formulas stand in `docs/methodology.md`.", *filter(None, [remedy(results)])]


def remedy(results: Results) -> str:
    """What to do about runs that are not there; empty where all are."""
    statuses = {row["status"] for row in results.parity} - {"ok"}
    if not statuses:
        return ""
    if statuses <= {"missing", "stale"}:
        return f"`{SNAKEMAKE}` makes the runs that are missing."
    return (
        f"`{SNAKEMAKE}` makes the runs that are missing; `make remeasure STATUS=…` tries those of another status again."
    )


def method() -> str:
    return (
        f"Each recipe (a precision, an optimizer or a norm in place of fp32's) trains {RECIPE_STEPS} steps on data "
        f"that can be learnt, with the weights, data and order of the fp32 reference, which trains with {SEEDS} seeds "
        f"of the weights; combinations train {COMBINATION_STEPS}. Out of bounds is what lies, anywhere in the curve of "
        "the loss or of the gradient norm, outside the 95 % prediction interval for one more fp32 run."
    )
