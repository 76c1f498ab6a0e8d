"""The four figures of a comparison. Each function draws one from its numbers and decides nothing."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from math import ceil, nan
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib import cbook
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, PathPatch
from matplotlib.path import Path
from matplotlib.ticker import MaxNLocator

from halfstep.report import wording
from halfstep.report.results import ComparisonResult, VariantResult
from halfstep.report.statistics import Ratio
from halfstep.report.style import (
    COLUMN_IN,
    DARK,
    FULL_IN,
    GREY,
    KIND_STYLES,
    LABEL_CHARACTERS,
    LINE_IN,
    MARKERS,
    PALETTE,
    despine,
    shades,
    wrap,
)
from halfstep.report.verdicts import OUT_OF_BOUNDS

BOXES, GAP = 0.75, 0.15  # share of a row that its boxes take, and of a box's place that is left free

Numbers = np.ndarray[Any, np.dtype[np.float64]]


def per_sample(comparison: ComparisonResult) -> tuple[float, str]:
    """Factor from ms per sample to a readable unit, and that unit."""
    sample = wording.singular(comparison.unit)
    times = [variant.require("step_ms") / variant.require("samples_per_step") for variant in comparison.measured]
    return (1e3, f"µs per {sample}") if min(times) < 0.1 else (1.0, f"ms per {sample}")


def time_axis(comparison: ComparisonResult) -> tuple[dict[str, float], str]:
    """Factor from a variant's step time in ms to the axis: steps where batches agree, samples where they differ."""
    if comparison.one_batch:
        return {variant.name: 1.0 for variant in comparison.measured}, "ms per step"
    factor, unit = per_sample(comparison)
    return {variant.name: factor / variant.require("samples_per_step") for variant in comparison.measured}, unit


def _rows(comparison: ComparisonResult, width: float, columns: int, extra: float) -> tuple[Figure, Sequence[Axes]]:
    return rows([marked_name(variant) for variant in comparison.variants], width, columns, extra)


def marked_name(variant: VariantResult) -> str:
    """A variant's name as figures have it: what trains out of bounds is marked in each."""
    return f"{variant.name}\n({OUT_OF_BOUNDS})" if variant.outside else variant.name


def rows(names: Sequence[str], width: float, columns: int, extra: float) -> tuple[Figure, Sequence[Axes]]:
    """Axes with a row per name from top to bottom; `extra` inches of height beside the rows."""
    labels = [wrap(name) for name in names]
    lines = max(label.count("\n") + 1 for label in labels)
    height = len(labels) * max(0.25, LINE_IN * lines + 0.1)
    figure, axes = plt.subplots(1, columns, figsize=(width, height + extra), sharey=True, squeeze=False)
    axes[0][0].set_ylim(len(labels) - 0.5, -0.5)
    axes[0][0].set_yticks(range(len(labels)), labels)
    for axis in axes[0]:
        axis.tick_params(axis="y", length=0)
        axis.grid(axis="x", color="0.9")
        axis.set_axisbelow(True)
        axis.locator_params(axis="x", nbins=6)
    despine(figure, left=True)
    return figure, axes[0]


def _clocked(label: str, comparison: ComparisonResult) -> str:
    """An axis's label, which says so where step times are not medians on the device's clock."""
    return f"{label}\n({comparison.clock})" if comparison.clock else label


def _note(axis: Axes, row: int, text: str) -> None:
    """A word in the place of a number."""
    axis.text(0.01, row, text, color=GREY, style="italic", va="center", transform=axis.get_yaxis_transform())


def struck_out(text: str) -> str:
    """The text with a stroke through each character (U+0336), which figures have no other way to draw in a label."""
    return "".join(f"{character}\u0336" for character in text)


def speedup(comparison: ComparisonResult) -> Figure:
    """Dot, 95 % interval and both in figures per variant; hollow: the baseline, or a ratio without an interval.

    A ratio that must not be used is a cross, its interval dotted, its figures struck out.

    The caller draws it only where there is a ratio, so the baseline was measured and is 1.
    """
    figure, (axis,) = _rows(comparison, COLUMN_IN, 1, 0.6)
    axis.axvline(1, color=GREY, linewidth=0.8, zorder=0)
    numbers = []
    dots: dict[tuple[str, str], list[tuple[float, float]]] = {}
    intervals: dict[str, list[list[tuple[float, float]]]] = {"-": [], ":": []}
    for row, variant in enumerate(comparison.variants):
        ratio = variant.speedup or Ratio(1.0)
        if not variant.measured:
            numbers.append(wording.status(variant.row["status"]))
        elif ratio.value is None:
            numbers.append("no ratio")
        else:
            text = wording.ratio(ratio) if variant.speedup else "baseline"
            numbers.append(struck_out(text) if variant.struck else text)
            marker = "x" if variant.struck else "D" if ratio.method == "unpaired" else "o"
            dots.setdefault((marker, PALETTE[0] if ratio.low else "white"), []).append((ratio.value, row))
        if ratio.low is not None and ratio.high is not None:
            intervals[":" if variant.struck else "-"].append([(ratio.low, row), (ratio.high, row)])
    for (marker, face), points in dots.items():
        axis.plot(*_columns(points), marker, color=PALETTE[0], markersize=4, markerfacecolor=face, zorder=3)
    for linestyle, pairs in intervals.items():
        _lines(axis, pairs, color=DARK, linestyle=linestyle)
        axis.plot(*_columns([end for pair in pairs for end in pair]), "|", color=DARK, markersize=9)
    right = axis.secondary_yaxis("right")
    right.set_yticks(range(len(numbers)), numbers)
    right.tick_params(length=0)
    right.spines["right"].set_visible(False)
    for tick, variant in zip(right.get_yticklabels(), comparison.variants, strict=True):
        if not variant.speedup or variant.speedup.value is None or variant.struck:
            tick.set(color=GREY, style="italic")
    low, high = ratio_limits([variant.speedup for variant in comparison.variants if variant.speedup])
    margin = 0.08 * (high - low) or 0.1
    axis.set_xlim(low - margin, high + margin)
    axis.xaxis.set_major_locator(MaxNLocator(nbins=4))  # the axis is narrow: the figures at the right take its room
    named = comparison.baseline if len(comparison.baseline) <= LABEL_CHARACTERS else "the baseline"
    axis.set_xlabel(_clocked(f"speed-up over {named}", comparison))
    return figure


def ratio_limits(ratios: Sequence[Ratio]) -> tuple[float, float]:
    """From the lowest to the highest end, but no farther than 2.5 times the highest ratio.

    An interval that says nothing so leaves the axis instead of squeezing all others; its ends stand at the right.
    """
    values = [1.0, *(ratio.value for ratio in ratios if ratio.value is not None)]
    lows = [ratio.low for ratio in ratios if ratio.low is not None]
    highs = [ratio.high for ratio in ratios if ratio.high is not None]
    return min(values + lows), min(max(values + highs), 2.5 * max(values))


def spread(comparison: ComparisonResult, steps: Mapping[str, Mapping[int, Sequence[float]]]) -> Figure:
    """Boxes of step times, a box per replicate from top to bottom; on the right against the variant's own median.

    `steps` holds ms by variant and replicate. Boxes: quartiles and median; whiskers: 5th and 95th percentile.
    """
    factors, unit = time_axis(comparison)
    position = {variant.name: row for row, variant in enumerate(comparison.variants)}
    figure, (left, right) = _rows(comparison, FULL_IN, 2, 0.6)
    replicates = sorted({replicate for times in steps.values() for replicate in times})
    lightness = shades(len(replicates))
    found = [
        (name, replicates.index(replicate), np.array(times))
        for name, by_replicate in steps.items()
        for replicate, times in by_replicate.items()
    ]
    places = [position[name] + BOXES * ((place + 0.5) / len(replicates) - 0.5) for name, place, _ in found]
    colours = [lightness[place] for _, place, _ in found]
    height = BOXES / len(replicates) * (1 - GAP)
    _boxes(left, [times * factors[name] for name, _, times in found], places, colours, height)
    centre = {name: comparison[name].require("step_ms") for name in steps}
    _boxes(right, [(times / centre[name] - 1) * 100 for name, _, times in found], places, colours, height)
    host = " on the host's clock" if comparison.clock else ""
    left.set_xlabel(f"step time{host} ({unit})")
    right.axvline(0, color=GREY, linewidth=0.8, zorder=0)
    right.set_xlabel(f"difference from the variant's {'mean' if comparison.clock else 'median'} (%)")
    left.set_yticks(range(len(position)), [wrap(marked_name(variant)) for variant in comparison.variants])
    for row, variant in enumerate(comparison.variants):
        if variant.name not in steps:
            _note(left, row, wording.status(variant.row["status"]) if not variant.measured else "no step times")
    return figure


def _boxes(
    axis: Axes, samples: Sequence[Numbers], places: Sequence[float], colours: Sequence[Any], height: float
) -> None:
    """Horizontal boxes at heights `places`; all that look alike are one artist, since a large study has thousands."""
    boxes: dict[Any, list[Sequence[tuple[float, float]]]] = {}
    lines: list[Sequence[tuple[float, float]]] = []
    others = []
    for found, place, colour in zip(cbook.boxplot_stats(samples, whis=(5, 95)), places, colours, strict=True):
        low, high, q1, q3 = (found[name] for name in ("whislo", "whishi", "q1", "q3"))
        top, bottom, cap = place - height / 2, place + height / 2, height / 4
        boxes.setdefault(colour, []).append(_corners(q1, q3, top, bottom))
        lines += [[(one, place), (other, place)] for one, other in ((low, q1), (q3, high))]
        lines += [[(end, place - cap), (end, place + cap)] for end in (low, high)]
        lines += [[(found["med"], top), (found["med"], bottom)]]
        others += [(value, place) for value in found["fliers"]]
    for colour, corners in boxes.items():
        _polygons(axis, corners, facecolor=colour, edgecolor=DARK, linewidth=0.6, zorder=2)
    _lines(axis, lines, color=DARK, linewidth=0.6, zorder=3)
    axis.plot(*_columns(others), ".", markersize=2, color=DARK, markeredgewidth=0)
    axis.autoscale_view(scaley=False)


def _corners(left: float, right: float, top: float, bottom: float) -> Sequence[tuple[float, float]]:
    return [(left, top), (right, top), (right, bottom), (left, bottom)]


def _polygons(axis: Axes, polygons: Sequence[Sequence[tuple[float, float]]], **looks: Any) -> None:
    """Polygons of as many corners each, as one artist."""
    axis.add_patch(PathPatch(Path.make_compound_path_from_polys(np.array(polygons)), **looks))


def _lines(axis: Axes, lines: Iterable[Sequence[tuple[float, float]]], **looks: Any) -> None:
    """Lines as one artist."""
    points = [point for line in lines for point in (*line, (nan, nan))]
    axis.plot(*_columns(points), **looks)


def _columns(points: Sequence[tuple[float, float]]) -> tuple[Sequence[float], Sequence[float]]:
    return [x for x, _ in points], [y for _, y in points]


def memory(comparison: ComparisonResult, frontier: Sequence[str]) -> Figure:
    """Throughput over peak memory, a shape and a colour per variant; the line joins those that none beats in both."""
    labels = [memory_label(comparison, variant) for variant in comparison.variants]
    columns = 2 if max(map(len, labels)) <= 22 else 1
    lines = sum(text.count("\n") + 1 for text in labels)
    figure, axis = plt.subplots(figsize=(COLUMN_IN, 2.1 + 0.14 * ceil(lines / columns)))
    edge = sorted((comparison[name] for name in frontier), key=lambda variant: variant.require("peak_allocated_gib"))
    xs = [variant.require("peak_allocated_gib") for variant in edge]
    axis.plot(
        xs, [variant.require("samples_per_s") for variant in edge], color=GREY, linewidth=0.8, linestyle="--", zorder=1
    )
    for row, (variant, text) in enumerate(zip(comparison.variants, labels, strict=True)):
        gib = variant["peak_allocated_gib"]
        axis.plot(
            [] if gib is None else [gib],
            [] if gib is None else [variant.require("samples_per_s")],
            marker="none" if gib is None else MARKERS[row % len(MARKERS)],
            linestyle="none",
            color=PALETTE[row % len(PALETTE)],
            markeredgecolor=DARK,
            markeredgewidth=0.6,
            markersize=6,
            markerfacecolor="white" if variant.outside else PALETTE[row % len(PALETTE)],
            label=text,
        )
    axis.margins(0.12)
    axis.grid(color="0.9")
    axis.set_axisbelow(True)
    axis.set_xlabel("peak allocated memory (GiB)")
    title = f"throughput ({comparison.unit}/s)"
    # the axis is short, and its label runs along it
    axis.set_ylabel("\n".join([title, *textwrap.wrap(comparison.clock, len(title))]))
    axis.yaxis.set_major_formatter(lambda value, _: f"{value:,.10g}")
    despine(figure)
    figure.legend(loc="outside lower left", ncols=columns, frameon=False, handletextpad=0.4, labelspacing=0.3)
    return figure


def memory_label(comparison: ComparisonResult, variant: VariantResult) -> str:
    if not variant.measured:
        return f"{wrap(marked_name(variant), 40)}: {wording.status(variant.row['status'])}"
    unknown = ": memory not measured" if variant["peak_allocated_gib"] is None else ""
    return wrap(marked_name(variant), 40) + (" (baseline)" if variant.name == comparison.baseline else "") + unknown


def kernels(comparison: ComparisonResult) -> Figure:
    """Kernel time of one step stacked by kind, idle time last; a number where it has room, the sum at the end."""
    factors, unit = time_axis(comparison)
    figure, (axis,) = _rows(comparison, FULL_IN, 1, 1.0)
    profiled = {row: variant for row, variant in enumerate(comparison.variants) if variant.kernels}
    longest = max(sum(variant.kernels.values()) * factors[variant.name] for variant in profiled.values())
    used = [kind for kind in KIND_STYLES if any(kind in variant.kernels for variant in profiled.values())]
    for row, variant in enumerate(comparison.variants):
        if not variant.kernels:
            _note(axis, row, "no profile" if variant.measured else wording.status(variant.row["status"]))
    bars: dict[str, list[Sequence[tuple[float, float]]]] = {kind: [] for kind in used}
    for row, variant in profiled.items():
        start = 0.0
        for kind in (kind for kind in used if kind in variant.kernels):
            width = variant.kernels[kind] * factors[variant.name]
            bars[kind].append(_corners(start, start + width, row - 0.34, row + 0.34))
            if width > 0.05 * longest:
                box = {"facecolor": "white", "edgecolor": "none", "pad": 0.8}
                number = wording.digits(width)
                axis.text(start + width / 2, row, number, ha="center", va="center", fontsize=7, bbox=box)
            start += width
        axis.text(start + 0.005 * longest, row, wording.digits(start), va="center", fontsize=7)
    for kind, found in bars.items():
        colour, hatch = KIND_STYLES[kind]
        _polygons(axis, found, facecolor=colour, hatch=hatch, edgecolor=DARK, linewidth=0.4)
    axis.set_xlim(0, longest * 1.06)
    axis.set_xlabel(_clocked(f"time ({unit})", comparison))
    columns = min(len(used), 6)
    handles = [
        Patch(facecolor=KIND_STYLES[kind][0], hatch=KIND_STYLES[kind][1], edgecolor=DARK, linewidth=0.4, label=kind)
        # matplotlib fills a legend column by column, and it is read line by line
        for column in range(columns)
        for kind in used[column::columns]
    ]
    figure.legend(handles=handles, loc="outside upper left", ncols=columns, frameon=False, handlelength=1.6)
    return figure
