"""What the runs say of each claim: claims.csv."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import NamedTuple

from halfstep.claims import PROTOCOLS, Claim, Fits, GraphBreaks, Versus
from halfstep.report import wording
from halfstep.report.parity import Verdicts, struck
from halfstep.report.statistics import Ratio, compare, geometric_mean
from halfstep.report.tables import Row, cell, timings
from halfstep.report.verdicts import (
    DEPENDS,
    NOT_DECIDED,
    NOT_MEASURABLE,
    OUT_OF_BOUNDS,
    Batches,
    answer,
    batch_ratio,
    judge,
    judge_batches,
    judge_breaks,
    kernel_changes,
)
from halfstep.study import Study

CLAIMS_COLUMNS: dict[str, str] = {
    "claim": "its name in config.yaml",
    "sentence": "the sentence",
    "source": "where it is from",
    "expected": "the ratio that the source gives, `faster`, `graph breaks`, or empty for a question",
    **{
        f"{protocol}{suffix}": meaning.format(words)
        for protocol, words in PROTOCOLS.items()
        for suffix, meaning in {
            "": "speed-up {}; where several are compared, the least of them",
            "_low": "lower end of its 95 % interval",
            "_high": "upper end of its 95 % interval",
            "_pairs": "pairs of replicates that it rests on",
            "_method": "as in speedups.csv",
            "_sides": "what over what, and in which comparison",
            "_struck": "why the ratio must not be used, as in speedups.csv",
        }.items()
    },
    "batches": "largest batch that fits over the rivals' largest: a count, so without an interval; else empty",
    "batches_at_least": "`1` where a larger one might fit, so that the ratio is at least that, else `0`",
    "batches_sides": "what over what, and in which comparison",
    "verdict": "one of the verdicts above; it goes by `same_batch`, or by `batches`",
    "why": "why, from the kernel times of the two sides of `same_batch`; or why there is no verdict",
}
SMOKE = "A smoke run judges no claim."
LONGEST_REASON = 200  # characters; the whole reason is in runs.csv

Runs = Mapping[tuple[str, str], Mapping[str, Sequence[Row]]]
"""rows by protocol, by (comparison, variant) and then by case"""
Kernels = Mapping[tuple[str, str], Mapping[str, float]]
"""ms per step by kind, by (comparison, variant)"""


@dataclass(frozen=True)
class Compared:
    """A variant over one other, in one case."""

    variant: Sequence[Row]
    rival: Sequence[Row]
    case: str
    ratio: Ratio


def claim_rows(study: Study, runs: Runs, kernels: Sequence[Row], verdicts: Verdicts, *, smoke: bool) -> list[Row]:
    """The rows of claims.csv. A smoke run has ratios, and no verdict.

    What trains out of bounds is left out where others remain that a claim can be judged by.
    """
    times: dict[tuple[str, str], dict[str, float]] = {}
    for row in kernels:
        times.setdefault((row["comparison"], row["variant"]), {})[row["kind"]] = float(row["ms_per_step"])
    rows = []
    for name, claim in study.claims.items():
        row = {**dict.fromkeys(CLAIMS_COLUMNS, ""), "claim": name, "sentence": claim.claim, "source": claim.source}
        row["expected"] = _expected(claim)
        rivals = {name: _in_bounds(versus.comparison, versus.over, verdicts) for name, versus in claim.versus.items()}
        compared = {name: _compare(versus, rivals[name].kept, runs) for name, versus in claim.versus.items()}
        for protocol, found in compared.items():
            versus, least = claim.versus[protocol], _least(claim, found)
            sides = (versus.variant, least.rival[0]["variant"] if least.rival else rivals[protocol].kept[0])
            void = struck({name: verdicts.get((versus.comparison, name)) for name in sides})
            columns = _columns(protocol, versus, rivals[protocol].kept, found, least)
            row |= {**columns, f"{protocol}_struck": void}
        if claim.fits:
            row |= _fits(claim.fits, claim.ratio or 1, runs, verdicts)
        elif claim.graph_breaks:
            row["verdict"], row["why"] = _graph_breaks(claim.graph_breaks, runs)
        elif row["same_batch_struck"]:
            row["verdict"], row["why"] = OUT_OF_BOUNDS, f"The ratio must not be used: {row['same_batch_struck']}."
        else:
            row["verdict"], row["why"] = _ratios(claim, compared["same_batch"], times)
            row["why"] += rivals["same_batch"].said
        if smoke:
            row["verdict"], row["why"] = NOT_MEASURABLE, SMOKE
        rows.append(row)
    return rows


def _expected(claim: Claim) -> str:
    words = {"order": "faster", "graph_breaks": "graph breaks"}
    return cell(claim.ratio) if claim.ratio else words.get(claim.kind, "")


class InBounds(NamedTuple):
    """Of several variants those to judge by, and a sentence on the others."""

    kept: list[str]
    said: str


def _in_bounds(comparison: str, names: Sequence[str], verdicts: Verdicts) -> InBounds:
    """Those that do not train out of bounds; all of them where none is left."""
    kept = [name for name in names if not struck({name: verdicts.get((comparison, name))})]
    others = [name for name in names if name not in kept]
    if not kept or not others:
        return InBounds(list(names), "")
    return InBounds(kept, f" Left out, since out of bounds in training: {wording.code(others)}.")


def _compare(versus: Versus, rivals: Sequence[str], runs: Runs) -> list[Compared]:
    ours = runs[versus.comparison, versus.variant]
    found = []
    for rival in rivals:
        theirs = runs[versus.comparison, rival]
        cases = [versus.case] if versus.case else list(dict.fromkeys([*theirs, *ours]))
        for case in [case for case in cases if case] or [""]:
            # a variant that failed has no cases of its own
            one, other = (side.get(case, side.get("", ())) for side in (ours, theirs))
            found.append(Compared(one, other, case, compare(timings(other), timings(one))))
    return found


def _least(claim: Claim, found: Sequence[Compared]) -> Compared:
    """The one that the claim hangs on: one that refutes it, else one without a ratio, else of the least ratio."""
    refuting = [one for one in found if one.ratio.below_one and claim.kind != "question"]
    return min(refuting or found, key=lambda one: one.ratio.value if one.ratio.value is not None else -1.0)


def _columns(protocol: str, versus: Versus, rivals: Sequence[str], found: Sequence[Compared], least: Compared) -> Row:
    rival = least.rival[0]["variant"] if least.rival else rivals[0]
    others = f", the closest of {wording.code(rivals)}" if len(rivals) > 1 else ""
    shapes = len({one.case for one in found})
    at = f" at {least.case}{f', the least of {shapes} shapes' if shapes > 1 else ''}" if least.case else ""
    return {
        protocol: cell(least.ratio.value),
        f"{protocol}_low": cell(least.ratio.low),
        f"{protocol}_high": cell(least.ratio.high),
        f"{protocol}_pairs": str(least.ratio.pairs),
        f"{protocol}_method": least.ratio.method,
        f"{protocol}_sides": f"`{versus.variant}` over `{rival}`{others}{at} ({versus.comparison})",
    }


def _ratios(claim: Claim, found: Sequence[Compared], kernels: Kernels) -> tuple[str, str]:
    """The verdict, and one sentence of why."""
    ratios = [one.ratio for one in found]
    verdict = answer(ratios) if claim.kind == "question" else judge(ratios, claim.ratio)
    least = _least(claim, found)
    if least.ratio.value is None:
        return verdict, _no_ratio(least)
    ours, theirs = (_ok(side) for side in (least.variant, least.rival))
    names = [rows[0]["variant"] for rows in (theirs, ours)]
    steps = [geometric_mean([float(row["step_ms"]) for row in rows]) for rows in (theirs, ours)]
    before, after = (kernels.get((rows[0]["comparison"], rows[0]["variant"]), {}) for rows in (theirs, ours))
    if least.case or not before or not after:
        values = [one.ratio.value for one in found if one.ratio.value is not None]
        over = (
            f"; over all {len(found)} the ratio goes from {wording.digits(min(values))} to "
            f"{wording.digits(max(values))}"
        )
        at = f" at {least.case}" if least.case else ""
        kernel_times = [[float(row["kernel_ms"]) for row in rows if row["kernel_ms"]] for rows in (theirs, ours)]
        kernels_alone = [f", its kernels {wording.digits(fmean(times))} ms" if times else "" for times in kernel_times]
        return verdict, (
            f"`{names[1]}` takes {wording.digits(steps[1])} ms{kernels_alone[1]}, `{names[0]}` "
            f"{wording.digits(steps[0])} ms{kernels_alone[0]}{at}{over if len(values) > 1 else ''}."
            f"{_other_side(verdict, found, least)}"
        )
    compiled = len({rows[0]["compile"] == "none" for rows in (theirs, ours)}) > 1
    span = f"From `{names[0]}` to `{names[1]}` the step goes from {wording.digits(steps[0])} to"
    changes = kernel_changes(before, after, fused=compiled)
    return verdict, f"{span} {wording.digits(steps[1])} ms: {changes}.{_other_side(verdict, found, least)}"


def _other_side(verdict: str, found: Sequence[Compared], least: Compared) -> str:
    """The ratio that, beside the least, makes the verdict neither yes nor no; empty where the verdict is one."""
    unlike = [one for one in found if _standing(one.ratio) != _standing(least.ratio)]
    if verdict not in (DEPENDS, NOT_DECIDED) or not unlike:
        return ""
    # `depends` hangs on one that is faster, so that goes before one whose interval holds 1
    other = max(unlike, key=lambda one: (one.ratio.above_one, one.ratio.value or 0.0))
    over = f"over `{other.rival[0]['variant']}`" if other.rival[0]["variant"] != least.rival[0]["variant"] else ""
    where = " ".join(filter(None, [over, f"at {other.case}" if other.case else ""]))
    without = ", without an interval" if other.ratio.low is None else ""
    return f" {where[0].upper()}{where[1:]} the ratio is {wording.ratio(other.ratio)}{without}."


def _standing(ratio: Ratio) -> tuple[bool, bool]:
    return ratio.above_one, ratio.below_one


def _ok(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if row["status"] == "ok"]


def _no_ratio(one: Compared) -> str:
    for rows in (one.variant, one.rival):
        if rows and not _ok(rows):
            return _failed(rows)
    if not one.variant or not one.rival:
        return f"No run has the shape {one.case}."
    return f"{one.ratio.reason[0].upper()}{one.ratio.reason[1:]}."


def _failed(rows: Sequence[Row]) -> str:
    """What became of a variant without an ok run."""
    reason = rows[0]["reason"].rstrip(".")
    shown = reason if len(reason) <= LONGEST_REASON else f"{reason[:LONGEST_REASON]} …"
    end = "" if shown.endswith("…") else "."
    return f"`{rows[0]['variant']}` is {wording.status(rows[0]['status'])}: {shown}{end}"


def _fits(fits: Fits, expected: float, runs: Runs, verdicts: Verdicts) -> Row:
    """Verdict, why, and the ratio of the two largest batches where there is one."""
    sides_in_bounds = [_in_bounds(fits.comparison, names, verdicts) for names in (fits.variants, fits.over)]
    for side in sides_in_bounds:
        if void := struck({name: verdicts.get((fits.comparison, name)) for name in side.kept}):
            return {"verdict": OUT_OF_BOUNDS, "why": f"That a batch fits is of no use: {void}."}
    ours, theirs = (_batches([runs[fits.comparison, name] for name in side.kept]) for side in sides_in_bounds)
    cap = {row["memory_cap_gib"] for name in fits.variants for row in runs[fits.comparison, name].get("", ())} - {""}
    sides = [f"`{name}` {batches.words}" for found in (theirs, ours) for name, batches in found.items()]
    left_out = "".join(side.said for side in sides_in_bounds)
    why = f"{f'With {wording.join(sorted(cap))} GiB ' if cap else ''}{wording.join(sides)}.{left_out}"
    verdict = judge_batches(list(ours.values()), list(theirs.values()), expected)
    ratio = batch_ratio(list(ours.values()), list(theirs.values()))
    if ratio is None:
        return {"verdict": verdict, "why": why}
    fitting = [
        f"{largest} of {wording.code(name for name, batches in found.items() if batches.largest == largest)}"
        for found, largest in ((ours, ratio.ours), (theirs, ratio.theirs))
    ]
    return {
        "batches": cell(ratio.value),
        "batches_at_least": str(int(ratio.at_least)),
        "batches_sides": f"{' over '.join(fitting)} ({fits.comparison})",
        "verdict": verdict,
        "why": why,
    }


def _batches(variants: Sequence[Mapping[str, Sequence[Row]]]) -> dict[str, Batches]:
    """Which batches fit, by precision. Other statuses leave open whether they would."""
    found: dict[str, dict[int, bool | None]] = {}
    for cases in variants:
        rows = next(iter(cases.values()))
        statuses = {row["status"] for row in rows}
        fitted = True if statuses & {"ok", "disturbed"} else False if "out_of_memory" in statuses else None
        batches, batch = found.setdefault(rows[0]["precision"], {}), int(rows[0]["batch"])
        # where variants of one precision and batch differ, in compilation for instance, the best of them counts
        known = (batches.get(batch, fitted), fitted)
        batches[batch] = True if True in known else None if None in known else False
    return {precision: Batches(fitted) for precision, fitted in found.items()}


def _graph_breaks(claimed: GraphBreaks, runs: Runs) -> tuple[str, str]:
    rows = next(iter(runs[claimed.comparison, claimed.variant].values()))
    counts = [int(float(row["graph_breaks"])) for row in _ok(rows) if row["graph_breaks"]]
    if not counts:
        return NOT_MEASURABLE, _failed(rows) if not _ok(rows) else "No graph breaks were counted."
    return judge_breaks(max(counts)), (
        f"torch.compile counted {wording.count(max(counts), 'graph break')} in `{claimed.variant}`."
    )
