"""Whether a curve of training lies where fp32's seeds say that one more run would: pure functions of numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import expm1, inf, isfinite, log, log1p, nan, sqrt
from statistics import fmean, median, stdev
from typing import NamedTuple

from scipy.special import stdtrit

from halfstep.report.wording import percent

BLOCKS = 10
TESTS = 2 * BLOCKS
"""of the loss and of the gradient norm"""
ALPHA = 0.05
"""chance that a right run lies outside somewhere, over all blocks of both quantities"""
NO_MATTER = {"loss": 0.01, "gradient norm": 0.05}
"""share of fp32's below which a difference never counts, however alike its seeds are"""

WITHIN, OUTSIDE, NOT_CHECKED, REFERENCE = "within", "outside", "not checked", "reference"
VERDICTS: dict[str, str] = {
    WITHIN: "every block of the loss and of the gradient norm lies where one more run of fp32 would",
    OUTSIDE: "one does not, or is not finite, or the gradients do not reach all parameters: out of bounds",
    NOT_CHECKED: "there is nothing to judge by; the reason says what is missing",
    REFERENCE: "the fp32 run itself, which the others are judged by",
}


@dataclass(frozen=True)
class Curve:
    """One run: each step's loss and gradient norm."""

    losses: Sequence[float]
    norms: Sequence[float]


@dataclass(frozen=True)
class Band:
    """By block of steps: the mean of the fp32 seeds, and how far from it one more run may lie."""

    centre: tuple[float, ...]
    half: tuple[float, ...]


@dataclass(frozen=True)
class Judgement:
    """A verdict and what it rests on; shares are of fp32's mean, 0.02 being 2 % above it."""

    verdict: str
    why: str
    final_loss: float = nan
    reference_loss: float = nan
    low: float = nan
    high: float = nan
    deviation: float = nan
    visible: float = nan
    """the smallest deviation of the final loss that would have been out of bounds"""
    own: float = nan
    """difference of the final loss from fp32's with the same seed"""
    norm_deviation: float = nan
    norm_visible: float = nan


def blocks_of(steps: int) -> list[range]:
    """The steps in as many blocks of equal length, the last ones shorter by one where they do not divide."""
    edges = [round(steps * block / BLOCKS) for block in range(BLOCKS + 1)]
    return [range(*pair) for pair in pairwise(edges)]


def loss_blocks(curve: Curve, steps: int) -> list[float]:
    """Mean loss of each block of the first `steps` steps."""
    return [fmean(curve.losses[step] for step in block) for block in blocks_of(steps)]


def norm_blocks(curve: Curve, steps: int) -> list[float]:
    """Log of the median gradient norm of each block; NaN where that is 0 or not finite."""
    middles = [median(curve.norms[step] for step in block) for block in blocks_of(steps)]
    return [log(middle) if middle > 0 and isfinite(middle) else nan for middle in middles]


def factor(seeds: int, tests: int = TESTS) -> float:
    """Half the width of the interval, in standard deviations of the seeds.

    The prediction interval for one future observation of a normal distribution, at a level by Bonferroni's inequality
    that keeps the chance of any false alarm in `tests` blocks below ALPHA: Meeker, Hahn and Escobar, "Statistical
    Intervals", 2nd ed. 2017, chapter 4; Hahn, "Additional factors for calculating prediction intervals for samples from
    a normal distribution", JASA 65 (1970), doi 10.2307/2284349.
    """
    return float(stdtrit(seeds - 1, 1 - ALPHA / (2 * tests))) * sqrt(1 + 1 / seeds)


def band(seeds: Sequence[Sequence[float]], least: Sequence[float], tests: int = TESTS) -> Band:
    """The band of several seeds, each a number per block; never narrower than `least` on each side."""
    width = factor(len(seeds), tests)
    columns = list(zip(*seeds, strict=True))
    halves = (max(width * stdev(column), floor) for column, floor in zip(columns, least, strict=True))
    return Band(tuple(map(fmean, columns)), tuple(halves))


def loss_band(references: Sequence[Curve], steps: int) -> Band:
    """The band of the loss."""
    seeds = [loss_blocks(reference, steps) for reference in references]
    return band(seeds, [NO_MATTER["loss"] * fmean(column) for column in zip(*seeds, strict=True)])


class Deviation(NamedTuple):
    """Of one block from the mean of the seeds."""

    size: float
    """in half widths of the band: outside it above 1"""
    what: str
    block: int
    share: float
    allowed: float


def judge(curve: Curve, references: Sequence[Curve], steps: int) -> Judgement:
    """The verdict on a run with the first reference's seed, by as many steps of it and of all references.

    The references are finite.
    """
    bad = [step for step in range(steps) if not isfinite(curve.losses[step])]
    if bad:
        return Judgement(OUTSIDE, f"the loss is not finite in {len(bad)} of {steps} steps, first in step {bad[0]}")
    losses, of_loss = loss_blocks(curve, steps), loss_band(references, steps)
    norms, seeds = norm_blocks(curve, steps), [norm_blocks(reference, steps) for reference in references]
    of_norm = band(seeds, [log1p(NO_MATTER["gradient norm"])] * BLOCKS)
    found = []
    for block, (loss, centre, half) in enumerate(zip(losses, of_loss.centre, of_loss.half, strict=True)):
        off = loss - centre
        found.append(Deviation(abs(off) / half, "loss", block, off / centre, half / centre))
    for block, (norm, centre, half) in enumerate(zip(norms, of_norm.centre, of_norm.half, strict=True)):
        off = norm - centre
        size = abs(off) / half if isfinite(off) else inf
        found.append(Deviation(size, "gradient norm", block, expm1(off), abs(expm1(half if off > 0 else -half))))
    outside = [one for one in found if one.size > 1]
    visible = of_loss.half[-1] / of_loss.centre[-1]
    start = fmean(reference.losses[0] for reference in references)
    verdict, why = WITHIN, ""
    if outside:
        verdict, why = OUTSIDE, _where(outside, steps)
    elif of_loss.centre[-1] + of_loss.half[-1] >= start:
        verdict, why = (
            NOT_CHECKED,
            ("too blunt: fp32's seeds learn so little, or differ so much, that a run that learned nothing would pass"),
        )
    return Judgement(
        verdict,
        why,
        final_loss=losses[-1],
        reference_loss=of_loss.centre[-1],
        low=of_loss.centre[-1] - of_loss.half[-1],
        high=of_loss.centre[-1] + of_loss.half[-1],
        deviation=losses[-1] / of_loss.centre[-1] - 1,
        visible=visible,
        own=losses[-1] / loss_blocks(references[0], steps)[-1] - 1,
        norm_deviation=expm1(norms[-1] - of_norm.centre[-1]),
        norm_visible=expm1(of_norm.half[-1]),
    )


def _where(outside: Sequence[Deviation], steps: int) -> str:
    """The block that lies farthest outside, by how much, and how many others do."""
    worst = max(outside)
    span = blocks_of(steps)[worst.block]
    final = (worst.what, worst.block) == ("loss", BLOCKS - 1)
    of = "the final loss" if final else f"the {worst.what} in steps {span[0]} to {span[-1]}"
    side = "above" if worst.share > 0 else "below"
    by = (
        f"{percent(abs(worst.share))} {side} the mean of fp32's seeds"
        if isfinite(worst.share)
        else "zero or not finite"
    )
    more = f"; {len(outside)} of {TESTS} blocks lie outside" if len(outside) > 1 else ""
    return f"{of} is {by}, and {percent(worst.allowed)} is allowed{more}"
