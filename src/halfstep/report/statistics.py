"""Speed-ups and their intervals. Replicates are the unit; the steps of one replicate only describe its spread.

Compared is the time per sample, so that variants of different batch compare by throughput; with equal
batches the ratio is that of the step medians.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import exp, log, sqrt
from statistics import fmean, variance

from scipy.special import stdtrit

CONFIDENCE = 0.95
UNPAIRED = "fewer than two of its replicates share GPU and sitting with the baseline's"


@dataclass(frozen=True)
class Timing:
    """What a ratio needs of one run with status ok."""

    replicate: int
    gpu_uuid: str
    sitting: str
    environment: str
    ms_per_sample: float


@dataclass(frozen=True)
class Ratio:
    """Time per sample of one variant over that of another: above 1 the other one is faster.

    `method` is `paired`, `unpaired`, `single` (one pair, so no interval) or empty (no ratio); `reason` says
    why there is no ratio, no interval or no pairing.
    """

    value: float | None = None
    low: float | None = None
    high: float | None = None
    pairs: int = 0
    n_baseline: int = 0
    n_variant: int = 0
    method: str = ""
    reason: str = ""

    @property
    def above_one(self) -> bool:
        return self.low is not None and self.low > 1

    @property
    def below_one(self) -> bool:
        return self.high is not None and self.high < 1


def geometric_mean(values: Sequence[float]) -> float:
    return exp(fmean(log(value) for value in values))


def compare(baseline: Sequence[Timing], variant: Sequence[Timing]) -> Ratio:
    """Speed-up of `variant` over `baseline`, which hold their ok runs."""
    none = Ratio(n_baseline=len(baseline), n_variant=len(variant))
    if not baseline:
        return replace(none, reason="the baseline has no run with status ok")
    if not variant:
        return replace(none, reason="no run with status ok")
    shared = {run.environment for run in baseline} & {run.environment for run in variant}
    if not shared:
        return replace(none, reason="measured in another environment than the baseline: no ratio across two")
    if len(shared) > 1:
        return replace(none, reason=f"measured in {len(shared)} environments: no ratio across them")
    left = [run for run in baseline if run.environment in shared]
    right = [run for run in variant if run.environment in shared]
    logs = _paired_logs(left, right)
    left_out = len(baseline) + len(variant) - len(left) - len(right)
    reason = f"{left_out} of the ok runs left out: made in another environment" if left_out else ""
    found = Ratio(pairs=len(logs), n_baseline=len(left), n_variant=len(right), reason=reason)
    if len(logs) >= 2:
        value, low, high = _interval(fmean(logs), sqrt(variance(logs) / len(logs)), len(logs) - 1)
        return replace(found, value=value, low=low, high=high, method="paired")
    if len(left) >= 2 and len(right) >= 2:
        value, low, high = _welch(left, right)
        return replace(found, value=value, low=low, high=high, method="unpaired", reason=UNPAIRED)
    if logs:
        return replace(found, value=exp(logs[0]), method="single", reason="one pair of replicates: no interval")
    return replace(found, reason=UNPAIRED)


def _paired_logs(left: Sequence[Timing], right: Sequence[Timing]) -> list[float]:
    """Log of baseline over variant for each replicate that both sides measured on one GPU in one sitting.

    A run without a sitting cannot be said to share one. Without a GPU the UUID is empty on both sides.
    """
    by_pair = {(run.replicate, run.gpu_uuid, run.sitting): run for run in left if run.sitting}
    pairs = [(by_pair.get((run.replicate, run.gpu_uuid, run.sitting)), run) for run in right]
    return [log(one.ms_per_sample / other.ms_per_sample) for one, other in pairs if one is not None]


def _welch(left: Sequence[Timing], right: Sequence[Timing]) -> tuple[float, float, float]:
    """Welch's interval on the logs, with Satterthwaite's degrees of freedom."""
    ours, theirs = ([log(run.ms_per_sample) for run in side] for side in (left, right))
    a, b = variance(ours) / len(ours), variance(theirs) / len(theirs)
    freedom = (a + b) ** 2 / (a**2 / (len(ours) - 1) + b**2 / (len(theirs) - 1)) if a + b else 1.0
    return _interval(fmean(ours) - fmean(theirs), sqrt(a + b), freedom)


def _interval(mean_log: float, error: float, freedom: float) -> tuple[float, float, float]:
    """Ratio, lower and upper end; `error` is the standard error of the mean log."""
    half = float(stdtrit(freedom, (1 + CONFIDENCE) / 2)) * error
    return exp(mean_log), exp(mean_log - half), exp(mean_log + half)


@dataclass(frozen=True)
class Ranking:
    """The fastest variant of a comparison, and what can be said of each other one against it."""

    best: str
    ratios: dict[str, Ratio]  # the best one's speed-up over each other measured variant

    @property
    def beaten(self) -> tuple[str, ...]:
        """The interval of the best one's speed-up over these lies above 1."""
        return tuple(name for name, ratio in self.ratios.items() if ratio.above_one)

    @property
    def tied(self) -> tuple[str, ...]:
        """It does not."""
        return tuple(name for name, ratio in self.ratios.items() if ratio.low is not None and not ratio.above_one)

    @property
    def undecided(self) -> tuple[str, ...]:
        """There is no interval."""
        return tuple(name for name, ratio in self.ratios.items() if ratio.low is None)

    @property
    def next_best(self) -> str | None:
        """The variant that comes closest to the best one, of those with a ratio."""
        values = {name: ratio.value for name, ratio in self.ratios.items() if ratio.value is not None}
        return min(values, key=lambda name: values[name]) if values else None

    @property
    def winner(self) -> bool:
        return bool(self.beaten) and not self.tied and not self.undecided


def rank(timings: dict[str, Sequence[Timing]]) -> Ranking | None:
    """Who is fastest, and who cannot be told apart from it; None where nothing was measured.

    The intervals are those of `compare`, each at 95 % by itself: not corrected for how many there are.
    """
    measured = {name: runs for name, runs in timings.items() if runs}
    if not measured:
        return None
    by_mean = sorted(measured, key=lambda name: geometric_mean([run.ms_per_sample for run in measured[name]]))
    rankings: dict[str, Ranking] = {}
    for best in by_mean:
        ratios = {name: compare(runs, measured[best]) for name, runs in measured.items() if name != best}
        rankings[best] = Ranking(best, ratios)
        # the means of two variants may be of different replicates: what a ratio shows to be slower is not the fastest
        if not any(ratio.below_one for ratio in ratios.values()):
            return rankings[best]
    return rankings[by_mean[0]]
