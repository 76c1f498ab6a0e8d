"""The charts of report.html as places on their axes, in percent: what is drawn where, and what it says when asked.

They look as the figures of the same comparisons do, and share their captions.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from matplotlib.ticker import MaxNLocator

from halfstep.report import wording
from halfstep.report.bands import blocks_of
from halfstep.report.charts import memory_label, per_sample, ratio_limits, time_axis
from halfstep.report.parity_figure import Curves
from halfstep.report.problems import shorten
from halfstep.report.protocols import shown_time
from halfstep.report.results import ComparisonResult, OperatorResult, VariantResult
from halfstep.report.statistics import Ratio
from halfstep.report.style import KIND_STYLES, MARKERS, PALETTE
from halfstep.report.tables import Row, number
from halfstep.report.verdicts import OUT_OF_BOUNDS
from halfstep.report.wording import code, digits, percent

MARGIN = 0.06  # of an axis, beside what lies farthest out
ROOM = 8.0  # percent of an axis from which on a bar has room for its number
KINDS_DRAWN = list(KIND_STYLES)
STRUCK = "x"  # the shape of what must not be used


@dataclass(frozen=True)
class Axis:
    """From `low` to `high`."""

    low: float
    high: float
    label: str

    def at(self, value: float) -> str:
        """The place of a value in percent."""
        return f"{(value - self.low) / (self.high - self.low) * 100:.2f}"

    @property
    def ticks(self) -> list[tuple[str, str]]:
        """Place and number of each."""
        values = MaxNLocator(nbins=5, steps=[1, 2, 2.5, 5, 10]).tick_values(self.low, self.high)
        return [(self.at(value), f"{value:,.10g}") for value in values if self.low <= value <= self.high]


def around(values: Iterable[float], label: str) -> Axis:
    """An axis that holds all values, with a margin on both sides."""
    found = list(values)
    low, high = min(found), max(found)
    margin = MARGIN * (high - low) or 0.1 * abs(high) or 1.0
    return Axis(low - margin, high + margin, label)


class Mark(NamedTuple):
    at: str
    shape: str
    look: str = ""
    """`hollow`; `sample`: of several that may lie on each other"""


class Bar(NamedTuple):
    start: str
    width: str
    kind: int
    text: str  # inside it; empty where it has no room
    middle: str


@dataclass(frozen=True)
class Line:
    """One line of a chart of lines: a name, what is drawn, a word or number at the right, and what it rests on."""

    name: str
    said: str
    tip: str
    marks: Sequence[Mark] = ()
    interval: tuple[str, str] | None = None
    bars: Sequence[Bar] = ()
    struck: bool = False
    group: str = ""  # a heading above it, where it differs from the line's before


@dataclass(frozen=True)
class Lines:
    """A chart with a line per variant."""

    axis: Axis
    lines: Sequence[Line]
    heading: str  # of the words at the right
    at_one: str = ""  # the place of the baseline
    kinds: Sequence[tuple[int, str]] = ()  # of kernels, for the legend


class Series(NamedTuple):
    """What is drawn of one variant or recipe in a plane."""

    name: str
    tip: str
    colour: str
    shape: str
    hollow: bool
    struck: bool
    points: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Plane:
    """A chart of two axes. `path` and `band` are corners in percent, as an SVG has them."""

    x: Axis
    y: Axis
    series: Sequence[Series]
    joined: bool = False
    path: str = ""
    band: str = ""
    left_out: Sequence[str] = field(default=())  # a sentence for each


def timed(variant: VariantResult) -> list[tuple[Row, float]]:
    """Its runs that have a step time in ms, whatever their status."""
    return [(run, ms) for run in variant.runs if (ms := number(shown_time(run))) is not None]


def replicates(variant: VariantResult) -> str:
    """The step time of each of its replicates that has one, and the status of those that do not count."""
    found = [
        f"{run['replicate']}: {digits(ms, 4)}" + f" ({wording.status(run['status'])})" * (run["status"] != "ok")
        for run, ms in timed(variant)
    ]
    return f"ms by replicate: {', '.join(found)}" if found else "no replicate has a time"


def speedup(comparison: ComparisonResult) -> Lines:
    """A dot and its interval per variant; hollow without an interval, a diamond if unpaired, a cross if struck out."""
    ratios = [variant.speedup for variant in comparison.variants if variant.speedup]
    axis = around(ratio_limits(ratios), f"speed-up over {comparison.baseline}")
    base = comparison[comparison.baseline]
    beside = f"\n{base.name}, the baseline, {replicates(base)}"
    lines = [_ratio_line(axis, variant, "" if variant.speedup is None else beside) for variant in comparison.variants]
    return Lines(axis, lines, "speed-up", axis.at(1))


def cases(operator: OperatorResult) -> Lines | None:
    """The same for the calls of an operator, by case; None where nothing was compared."""
    found = [
        (case, variant)
        for case, variants in operator.cases.items()
        for variant in variants.values()
        if variant.speedup and variant.speedup.value is not None
    ]
    if not found:
        return None
    axis = around(
        ratio_limits([variant.speedup for _, variant in found if variant.speedup]),
        f"speed-up over {operator.baseline}",
    )
    lines = [
        _ratio_line(
            axis,
            variant,
            f"\n{operator.baseline}, the baseline, {replicates(operator.cases[case][operator.baseline])}",
            case,
        )
        for case, variant in found
    ]
    return Lines(axis, lines, "speed-up", axis.at(1))


def _ratio_line(axis: Axis, variant: VariantResult, beside: str, group: str = "") -> Line:
    ratio, marks = variant.speedup or Ratio(1.0), []
    if not variant.measured:
        said = wording.status(variant.row["status"])
    elif ratio.value is None:
        said = "no ratio"
    else:
        said = wording.ratio(ratio) if variant.speedup else "baseline"
        shape = STRUCK if variant.struck else "D" if ratio.method == "unpaired" else "o"
        marks = [Mark(axis.at(ratio.value), shape, "hollow" if ratio.low is None else "")]
    why = variant.struck or ratio.reason or ("" if variant.measured else shorten(variant.row["reason"]))
    pairs = f", {wording.count(ratio.pairs, 'pair')}" if ratio.method == "paired" else ""
    tip = f"{variant.name}: {said}{pairs}{f' ({why})' if why else ''}\n{replicates(variant)}{beside}"
    if variant.struck and marks:
        said = f"{wording.strike(said)} {OUT_OF_BOUNDS}"
    interval = None if ratio.low is None or ratio.high is None else (axis.at(ratio.low), axis.at(ratio.high))
    return Line(code([variant.name]), said, _plain(tip), marks, interval, struck=bool(variant.struck), group=group)


def _plain(tip: str) -> str:
    """Of each line only what can be printed, without the marks of our sentences."""
    return "\n".join(wording.one_line(line).replace("`", "") for line in tip.split("\n"))


def times(comparison: ComparisonResult) -> Lines:
    """A dot per replicate, a cross where it is invalid or disturbed."""
    factor, unit = (1.0, "ms per step") if comparison.one_batch else per_sample(comparison)
    found = {
        variant.name: [
            (run["status"], ms if comparison.one_batch else ms * factor / float(run["samples_per_step"]))
            for run, ms in timed(variant)
        ]
        for variant in comparison.variants
    }
    axis = around((time for each in found.values() for _, time in each), f"step time ({unit})")
    lines = []
    for variant in comparison.variants:
        marks = [
            Mark(axis.at(time), "o" if status == "ok" else STRUCK, "sample") for status, time in found[variant.name]
        ]
        not_ok = [run for run in variant.runs if run["status"] != "ok"]
        said = [f"{len(variant.ok_runs)} ok"] * bool(variant.ok_runs)
        said += [
            f"{sum(run['status'] == status for run in not_ok)} {wording.status(status)}"
            for status in dict.fromkeys(run["status"] for run in not_ok)
        ]
        reasons = "".join(f"\n{run['replicate']}: {shorten(run['reason'])}" for run in not_ok if run["reason"])
        tip = f"{variant.name}, {replicates(variant)}{reasons}"
        lines.append(Line(code([variant.name]), ", ".join(said), _plain(tip), marks))
    return Lines(axis, lines, "replicates")


def kernels(comparison: ComparisonResult) -> Lines:
    """Kernel time of one step stacked by kind, idle time last, the sum at the right."""
    factors, unit = time_axis(comparison)
    sums = {v.name: sum(v.kernels.values()) * factors[v.name] for v in comparison.measured if v.kernels}
    axis = Axis(0, max(sums.values()) * 1.02, f"time ({unit})")
    used = [kind for kind in KIND_STYLES if any(kind in variant.kernels for variant in comparison.measured)]
    lines = []
    for variant in comparison.variants:
        if variant.name not in sums:
            said = "no profile" if variant.measured else wording.status(variant.row["status"])
            lines.append(Line(code([variant.name]), said, _plain(f"{variant.name}: {said}")))
            continue
        bars, start, told = [], 0.0, []
        for kind in (kind for kind in used if kind in variant.kernels):
            ms = variant.kernels[kind] * factors[variant.name]
            width = ms / axis.high * 100
            middle = f"{start + width / 2:.2f}"
            number_inside = digits(ms) if width > ROOM else ""
            bars.append(Bar(f"{start:.2f}", f"{width:.2f}", KINDS_DRAWN.index(kind), number_inside, middle))
            told.append(f"{kind} {digits(ms)} ({percent(ms / sums[variant.name])})")
            start += width
        n = wording.count(len(variant.ok_runs), "replicate")
        tip = f"{variant.name}, {unit}, mean of {n}: {digits(sums[variant.name])}\n" + "\n".join(told)
        lines.append(Line(code([variant.name]), digits(sums[variant.name]), _plain(tip), bars=bars))
    return Lines(axis, lines, unit, kinds=[(KINDS_DRAWN.index(kind), kind) for kind in used])


def memory(comparison: ComparisonResult, frontier: Sequence[str]) -> Plane:
    """Throughput over peak memory; the path joins those that none beats in both."""
    drawn = [variant for variant in comparison.measured if variant["peak_allocated_gib"] is not None]
    x = around((v.require("peak_allocated_gib") for v in drawn), "peak allocated memory (GiB)")
    y = around((v.require("samples_per_s") for v in drawn), f"throughput ({comparison.unit}/s)")
    series, left_out = [], []
    for place, variant in enumerate(comparison.variants):
        label = memory_label(comparison, variant)
        if variant not in drawn:
            left_out.append(label)
            continue
        gib, speed = variant.require("peak_allocated_gib"), variant.require("samples_per_s")
        tip = (
            f"{label}: {digits(speed)} {comparison.unit}/s at {digits(gib)} GiB\n{replicates(variant)}{_peaks(variant)}"
        )
        shape, colour = MARKERS[place % len(MARKERS)], PALETTE[place % len(PALETTE)]
        points = [(x.at(gib), y.at(speed))]
        series.append(Series(label, _plain(tip), colour, shape, variant.outside, variant.outside, points))
    edge = sorted((comparison[name] for name in frontier), key=lambda variant: variant.require("peak_allocated_gib"))
    corners = ((v.require("peak_allocated_gib"), v.require("samples_per_s")) for v in edge)
    return Plane(x, y, series, path=_corners(x, y, corners), left_out=left_out)


def _peaks(variant: VariantResult) -> str:
    peaks = [
        f"{run['replicate']}: {digits(peak)}"
        for run in variant.ok_runs
        if (peak := number(run["peak_allocated_gib"])) is not None
    ]
    return f"\nGiB by replicate: {', '.join(peaks)}"


def _corners(x: Axis, y: Axis, points: Iterable[tuple[float, float]]) -> str:
    """Down is more in an SVG, up on an axis."""
    return " ".join(f"{x.at(across)},{100 - float(y.at(up)):.2f}" for across, up in points)


def curves(found: Curves) -> tuple[Plane, Plane]:
    """The loss over the band of one more fp32 run, and its difference from the mean of the seeds in percent."""
    ends = [block[-1] + 1 for block in blocks_of(found.steps)]
    centre, half = found.band.centre, found.band.half
    low, high = ([c + sign * h for c, h in zip(centre, half, strict=True)] for sign in (-1, 1))
    shares = [h / c * 100 for h, c in zip(half, centre, strict=True)]
    x = around(ends, "step")
    # what is far out of bounds leaves the axis instead of squeezing all others
    loss = around([*low, *high], "training loss")
    apart = around([-2.2 * max(shares), 2.2 * max(shares)], "difference from fp32 (%)")
    drawn: tuple[list[Series], list[Series]] = ([], [])
    for place, (name, losses) in enumerate(found.recipes.items()):
        outside = name in found.outside
        label = f"{name} ({OUT_OF_BOUNDS})" if outside else name
        deviations = [(value / c - 1) * 100 for value, c in zip(losses, centre, strict=True)]
        shape, colour = STRUCK if outside else MARKERS[place % len(MARKERS)], PALETTE[place % len(PALETTE)]
        for series, axis, values, what in (
            (drawn[0], loss, losses, "loss"),
            (drawn[1], apart, deviations, "% from fp32"),
        ):
            said = ", ".join(f"{end}: {digits(value, 4)}" for end, value in zip(ends, values, strict=True))
            points = [(x.at(end), axis.at(value)) for end, value in zip(ends, values, strict=True)]
            series.append(
                Series(label, _plain(f"{label}\n{what} by step: {said}"), colour, shape, False, outside, points)
            )
    back = list(reversed(ends))
    bands = (
        _corners(x, loss, [*zip(ends, high, strict=True), *zip(back, reversed(low), strict=True)]),
        _corners(
            x, apart, [*zip(ends, shares, strict=True), *((e, -s) for e, s in zip(back, reversed(shares), strict=True))]
        ),
    )
    middles = (
        _corners(x, loss, zip(ends, centre, strict=True)),
        _corners(x, apart, [(ends[0], 0), (ends[-1], 0)]),
    )
    left, right = (
        Plane(x, axis, series, joined=True, path=path, band=band)
        for axis, series, path, band in zip((loss, apart), drawn, middles, bands, strict=True)
    )
    return left, right
