"""The verdicts on claims, and the sentence of why: pure functions of numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from halfstep.report import wording
from halfstep.report.statistics import Ratio
from halfstep.report.tables import FUSIBLE, GEMMS, IDLE

HOLDS, WEAKER, DOES_NOT_HOLD = "holds here", "weaker here", "does not hold here"
NOT_DECIDED, NOT_MEASURABLE = "not decided", "not measurable here"
OUT_OF_BOUNDS = "out of bounds"
FASTER, SLOWER, DEPENDS = "faster", "slower", "depends"
VERDICTS: dict[str, str] = {
    HOLDS: "the interval lies above 1 and reaches the expected ratio, if there is one; the batch, or the graph breaks, "
    "are as the source says",
    WEAKER: "the interval lies above 1 and ends below the expected ratio; the batch grows, by less than expected",
    DOES_NOT_HOLD: "the interval lies below 1; the batch does not grow; there is no graph break",
    NOT_DECIDED: "1 lies in the interval of a ratio that it rests on, or one has none; larger batches would have to be "
    "tried",
    NOT_MEASURABLE: "a side has no run with status ok, or there is no ratio between the two; at smoke scale always",
    OUT_OF_BOUNDS: "a side of the ratio trains out of bounds, so its speed decides nothing",
    FASTER: "a question's answer: the interval lies above 1",
    SLOWER: "a question's answer: the interval lies below 1",
    DEPENDS: "a question's answer: faster in some of what is compared and slower in some",
}
CHANGES = 3  # kinds of kernel that a sentence names at most
MATTERS = 0.02  # share of the longer step from which on a change is named


def judge(ratios: Sequence[Ratio], expected: float | None) -> str:
    """The verdict on a claim that a variant is faster than each other, by `expected` if the source gives that."""
    if any(ratio.below_one for ratio in ratios):
        return DOES_NOT_HOLD
    if any(ratio.value is None for ratio in ratios):
        return NOT_MEASURABLE
    if not all(ratio.above_one for ratio in ratios):
        return NOT_DECIDED
    reached = expected is None or all(ratio.high is not None and ratio.high >= expected for ratio in ratios)
    return HOLDS if reached else WEAKER


def answer(ratios: Sequence[Ratio]) -> str:
    """The answer to a question."""
    if any(ratio.value is None for ratio in ratios):
        return NOT_MEASURABLE
    faster, slower = [ratio.above_one for ratio in ratios], [ratio.below_one for ratio in ratios]
    if any(faster) and any(slower):
        return DEPENDS
    return FASTER if all(faster) else SLOWER if all(slower) else NOT_DECIDED


@dataclass(frozen=True)
class Batches:
    """Which batches fit; None where the run does not say."""

    fitted: Mapping[int, bool | None]

    @property
    def largest(self) -> int | None:
        return max((batch for batch, fits in self.fitted.items() if fits), default=None)

    @property
    def known(self) -> bool:
        """Whether no larger batch might fit among those that were asked for."""
        return not any(fits is None and batch > (self.largest or 0) for batch, fits in self.fitted.items())

    @property
    def open(self) -> bool:
        """Whether the largest that was asked for fits, so that a larger one might."""
        return self.largest == max(self.fitted)

    @property
    def words(self) -> str:
        asked = wording.join(str(batch) for batch in sorted(self.fitted))
        if self.largest is None:
            return f"fits none of the batches {asked}" if self.known else f"cannot be measured at {asked}"
        unknown = "" if self.known else ", with larger ones not measurable"
        return f"fits batch {self.largest} of {asked}{unknown}"


def judge_batches(ours: Sequence[Batches], theirs: Sequence[Batches], expected: float) -> str:
    """Whether the largest batch of one side is `expected` times that of the other.

    Each side is the best of its precisions.
    """
    best, rival = (max((b.largest or 0 for b in side), default=0) for side in (ours, theirs))
    if not all(batches.known for batches in theirs) or not rival:
        return NOT_MEASURABLE
    if any(batches.open for batches in theirs):
        return NOT_DECIDED
    if best >= expected * rival:
        return HOLDS
    if not all(batches.known for batches in ours):
        return NOT_MEASURABLE
    if any(batches.open for batches in ours):
        return NOT_DECIDED
    return WEAKER if best > rival else DOES_NOT_HOLD


class BatchRatio(NamedTuple):
    """The largest batch that fits over the rivals' largest: a count, so it has no interval."""

    ours: int
    theirs: int
    at_least: bool  # a batch of ours that is larger still might fit

    @property
    def value(self) -> float:
        return self.ours / self.theirs


def batch_ratio(ours: Sequence[Batches], theirs: Sequence[Batches]) -> BatchRatio | None:
    """Of two sides, each the best of its precisions; None where nothing fits or a larger batch of theirs might."""
    best, rival = (max((b.largest or 0 for b in side), default=0) for side in (ours, theirs))
    if not best or not rival or any(batches.open or not batches.known for batches in theirs):
        return None
    return BatchRatio(best, rival, any(batches.open or not batches.known for batches in ours))


def judge_breaks(count: int) -> str:
    return HOLDS if count else DOES_NOT_HOLD


def kernel_changes(before: Mapping[str, float], after: Mapping[str, float], *, fused: bool) -> str:
    """What changes most in a step, as `GEMM from 172 to 89.0 ms and idle from 5.00 to 10.0`.

    Args:
        before: ms per step by kind of kernel, idle among them.
        after: the same of the other variant.
        fused: only one of the two is compiled, so what Inductor fuses is taken together.
    """
    groups: dict[str, tuple[str, ...]] = {"GEMM": GEMMS}
    if fused:
        groups["norm, pointwise, cast and copy kernels"] = FUSIBLE
    taken = {kind for kinds in groups.values() for kind in kinds}
    groups |= {kind: (kind,) for kind in [*before, *after] if kind not in taken}
    sums = {
        name: tuple(sum(times.get(k, 0) for k in kinds) for times in (before, after)) for name, kinds in groups.items()
    }
    least = MATTERS * max(sum(before.values()), sum(after.values()))
    changed = [name for name, (old, new) in sums.items() if abs(new - old) >= least]
    largest = sorted(changed, key=lambda name: -abs(sums[name][1] - sums[name][0]))[:CHANGES]
    if not largest:
        return f"no kind of kernel changes by {MATTERS * 100:g} % of it"
    spans = [f"{_words(name)} from {_ms(sums[name][0])} to {_ms(sums[name][1])}" for name in largest]
    return wording.join([f"{spans[0]} ms", *spans[1:]])


def _words(name: str) -> str:
    return {IDLE: "idle time", "norm": "norms"}.get(name, name)


def _ms(value: float) -> str:
    """Idle time can come out a little below 0, which means none."""
    return wording.digits(max(value, 0.0))
