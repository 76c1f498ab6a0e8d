"""The figures of operator comparisons, one function each. They draw numbers and decide nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke

from halfstep.report import wording
from halfstep.report.charts import rows
from halfstep.report.style import COLUMN_IN, DARK, FULL_IN, GREY, MARKERS, PALETTE, despine

HATCHES = ("", "////", "...", "\\\\\\\\", "xx", "--", "oo", "++")
LINES = ("-", "--", ":", "-.", (0, (5, 1)), (0, (3, 1, 1, 1, 1, 1)))
ACROSS: dict[str, Any] = {
    "color": DARK,
    "linewidth": 1.4,
    "solid_capstyle": "butt",
    "path_effects": [withStroke(linewidth=3.0, foreground="white")],  # seen on every colour and hatch
}
Series = Mapping[str, Mapping[str, float]]  # by variant and place on the axis


def gemm(squares: Mapping[bool, Series], layers: Mapping[bool, Series], order: Sequence[str]) -> Figure:
    """TFLOP/s: on the left operands that are cast already, on the right the casts in the time.

    Above over the size of square products, below for the layers. Keys of `squares` are sizes, of `layers` names;
    `order` holds all variants, so that each keeps its colour.
    """
    below = any(layers[casts] for casts in layers)
    figure, axes = plt.subplots(1 + below, 2, figsize=(FULL_IN, 4.4 if below else 2.6), sharey="row", squeeze=False)
    for column, casts in enumerate((False, True)):
        _over_places(axes[0][column], squares.get(casts, {}), order, joined=True)
        axes[0][column].set_xlabel("size of the square product")
        axes[0][column].set_title("with the casts from bf16" if casts else "operands cast already", fontsize=8)
        if below:
            _over_places(axes[1][column], layers.get(casts, {}), order, joined=False)
            axes[1][column].set_xlabel("forward product of a linear layer of ViT-Huge")
    for row in axes:
        row[0].set_ylabel("TFLOP/s")
        row[0].set_ylim(bottom=0)
    figure.set_layout_engine("constrained", hspace=0.08)  # else the upper labels read as titles of the lower panels
    despine(figure)
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper left", ncols=min(6, len(labels)), frameon=False)
    return figure


def _over_places(axis: Axes, series: Series, order: Sequence[str], *, joined: bool) -> None:
    """A marker and a colour per variant over equidistant places, in the order in which they first come."""
    places = list(dict.fromkeys(place for values in series.values() for place in values))
    shift = 0.0 if joined else 0.1
    for index, name in enumerate(order):
        if name not in series:
            continue
        xs = [places.index(place) + shift * (index - (len(order) - 1) / 2) for place in series[name]]
        axis.plot(
            xs,
            list(series[name].values()),
            marker=MARKERS[index % len(MARKERS)],
            linestyle=LINES[index % len(LINES)] if joined else "none",
            color=PALETTE[index % len(PALETTE)],
            markeredgecolor=DARK,
            markeredgewidth=0.5,
            markersize=5,
            label=name,
        )
    axis.set_xticks(range(len(places)), places)
    axis.set_xlim(-0.5, max(len(places), 1) - 0.5)
    axis.grid(axis="y", color="0.9")
    axis.set_axisbelow(True)
    axis.yaxis.set_major_formatter(lambda value, _: f"{value:,.10g}")


def optimizer_step(
    times: Mapping[str, Series],
    kernels: Mapping[str, Series],
    bandwidth: Mapping[str, Series],
    absent: Mapping[str, str],
) -> Figure:
    """A panel per case with a bar per variant: ms, and beside it ms and GB/s in figures; a line across it: its kernels.

    `times`, `kernels` and `bandwidth` hold by case and variant {"": number}; `absent` has the status of what has no
    number.
    """
    names = list(dict.fromkeys([*(name for series in times.values() for name in series), *absent]))
    figure, axes = rows(names, FULL_IN, len(times), 0.75)
    for axis, (case, series) in zip(axes, times.items(), strict=True):
        longest = max(values[""] for values in series.values())
        for row, name in enumerate(names):
            if name not in series:
                axis.text(
                    0.01,
                    row,
                    absent.get(name, ""),
                    color=GREY,
                    style="italic",
                    va="center",
                    transform=axis.get_yaxis_transform(),
                )
                continue
            ms = series[name][""]
            axis.barh(row, ms, height=0.62, color=PALETTE[0], edgecolor=DARK, linewidth=0.4)
            for alone in kernels[case].get(name, {}).values():
                axis.plot([alone, alone], [row - 0.31, row + 0.31], **ACROSS)
            text = f"{wording.digits(ms)} ms, {wording.digits(bandwidth[case][name][''])} GB/s"
            axis.text(ms + 0.015 * longest, row, text, va="center", fontsize=7)
        axis.set_xlim(0, 1.75 * longest)
        axis.set_xlabel("ms per step")
        axis.set_title(case, fontsize=8)
    return figure


def norm(
    times: Mapping[tuple[str, str], Series],
    kernels: Mapping[tuple[str, str], Series],
    sqnr: Mapping[str, Series],
    order: Sequence[str],
) -> Figure:
    """A line of panels per type: ms over the width forward, and with backward, and SQNR per variant.

    `times` is keyed by type and passes, as is `kernels`, the lines across the bars; `sqnr` by type, and its places are
    the passes.
    """
    types = list(sqnr)
    figure, axes = plt.subplots(len(types), 3, figsize=(FULL_IN, 1.9 * len(types) + 0.5), squeeze=False)
    for line, dtype in enumerate(types):
        for column, passes in enumerate(("forward", "forward+backward")):
            axis = axes[line][column]
            _grouped_bars(axis, times.get((dtype, passes), {}), kernels.get((dtype, passes), {}), order)
            axis.set_ylabel("ms")
            axis.set_title(f"{dtype}, {passes}", fontsize=8)
            axis.set_xlabel("width" if line == len(types) - 1 else "")
        axis = axes[line][2]
        _over_places(axis, sqnr[dtype], order, joined=False)
        axis.set_title(f"{dtype}, accuracy", fontsize=8)
        axis.set_ylabel("lowest SQNR (dB)")
        axis.margins(y=0.25)
    despine(figure)
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper left", ncols=min(6, len(labels)), frameon=False)
    return figure


def _grouped_bars(axis: Axes, series: Series, across: Series, order: Sequence[str]) -> None:
    places = list(dict.fromkeys(place for values in series.values() for place in values))
    drawn = [name for name in order if name in series]
    width = 0.8 / max(len(drawn), 1)
    for number, name in enumerate(drawn):
        index = order.index(name)
        centres = {place: places.index(place) + width * (number - (len(drawn) - 1) / 2) for place in series[name]}
        for place, height in across.get(name, {}).items():
            axis.plot([centres[place] - width / 2, centres[place] + width / 2], [height, height], **ACROSS)
        axis.bar(
            list(centres.values()),
            list(series[name].values()),
            width=width,
            color=PALETTE[index % len(PALETTE)],
            hatch=HATCHES[index % len(HATCHES)],
            edgecolor=DARK,
            linewidth=0.4,
            label=name,
        )
    axis.set_xticks(range(len(places)), places)
    axis.grid(axis="y", color="0.9")
    axis.set_axisbelow(True)


def dtypes(errors: Series, bounds: Mapping[str, float]) -> Figure:
    """Relative error in % of each value of the sample, a marker per type; lines: half of the type's eps.

    `errors` holds by type and value in %; `bounds` the lines, in % too.
    """
    values = list(dict.fromkeys(value for series in errors.values() for value in series))
    figure, (axis,) = rows([value.replace("-", "−") for value in values], COLUMN_IN, 1, 0.9)
    for index, (name, series) in enumerate(errors.items()):
        axis.axvline(bounds[name], linewidth=0.9, zorder=1, color=PALETTE[index], linestyle=LINES[1 + index])
        axis.plot(
            list(series.values()),
            [values.index(value) + 0.16 * (index - (len(errors) - 1) / 2) for value in series],
            MARKERS[index],
            color=PALETTE[index],
            markeredgecolor=DARK,
            markeredgewidth=0.5,
            markersize=5.5,
            zorder=3,
        )
        line = axis.plot([], [], marker=MARKERS[index], color=PALETTE[index], linestyle=LINES[1 + index], label=name)
        line[0].set(markeredgecolor=DARK, markeredgewidth=0.5)
    axis.set_xscale("log")
    axis.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axis.set_xlabel("relative error of the cast (%)")
    axis.set_ylabel("value")
    figure.legend(loc="outside upper left", ncols=len(errors), frameon=False, handlelength=2.4, columnspacing=1.2)
    return figure
