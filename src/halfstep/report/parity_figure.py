"""The figure of loss parity: curves of the recipes over the band of fp32's seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from halfstep.records import CURVE_COLUMNS, read_csv
from halfstep.report import wording
from halfstep.report.bands import OUTSIDE, TESTS, Band, Curve, blocks_of, loss_band, loss_blocks
from halfstep.report.operator_figures import Drawn
from halfstep.report.parity_section import Family
from halfstep.report.results import Results
from halfstep.report.style import DARK, FULL_IN, GREY, MARKERS, PALETTE, despine
from halfstep.report.wording import code, percent

PARITY_KIND = "parity"
PARITY_TITLE = "Loss parity with fp32"


@dataclass(frozen=True)
class Curves:
    """What is drawn of a family: the recipes that train as long as the reference."""

    steps: int
    band: Band
    recipes: Mapping[str, Sequence[float]]
    """loss by block; those that are not finite are left out"""
    outside: frozenset[str]


def curves(results: Results, family: Family) -> Curves | None:
    """None where there is nothing to draw."""
    if not family.references:
        return None
    steps = int(family.references[0]["steps"])
    references = [_curve(results, row) for row in family.references]
    drawn = [row for row in family.judged if int(row["steps"]) == steps and row["final_loss"]]
    recipes = {row["recipe"]: loss_blocks(_curve(results, row), steps) for row in drawn}
    outside = frozenset(row["recipe"] for row in drawn if row["verdict"] == OUTSIDE)
    return Curves(steps, loss_band(references, steps), recipes, outside) if recipes else None


def _curve(results: Results, row: Mapping[str, str]) -> Curve:
    folder = results.folder / "parity" / row["family"] / row["recipe"] / f"seed{row['seed']}"
    return Curve([float(line["loss"]) for line in read_csv(folder / "curve.csv", CURVE_COLUMNS)], ())


def parity_figure(results: Results, family: Family) -> Drawn | str:
    """How to draw a family's figure with its caption, or why there is none."""
    found = curves(results, family)
    if found is None:
        return "There are no curves to compare with those of fp32."
    return partial(draw, found), caption(found, results.machine)


def draw(found: Curves) -> Figure:
    """Left the loss, right its difference from the mean of the fp32 seeds, each over the band for one more of them."""
    lines = (len(found.recipes) + 3) // 4
    figure, (left, right) = plt.subplots(1, 2, figsize=(FULL_IN, 2.3 + 0.14 * lines))
    ends = [block[-1] + 1 for block in blocks_of(found.steps)]
    centre, half = found.band.centre, found.band.half
    low, high = ([c + sign * h for c, h in zip(centre, half, strict=True)] for sign in (-1, 1))
    left.fill_between(ends, low, high, color="0.85", linewidth=0)
    left.plot(ends, centre, color=GREY, linewidth=0.8)
    shares = [h / c * 100 for c, h in zip(centre, half, strict=True)]
    right.fill_between(ends, [-share for share in shares], shares, color="0.85", linewidth=0, label="one more fp32 run")
    right.axhline(0, color=GREY, linewidth=0.8)
    for number, (name, losses) in enumerate(found.recipes.items()):
        outside = name in found.outside
        look = {
            "color": PALETTE[number % len(PALETTE)],
            "marker": "x" if outside else MARKERS[number % len(MARKERS)],
            "linestyle": ":" if outside else "-",
            "markersize": 4 if outside else 3,
            "linewidth": 0.8,
        }
        left.plot(ends, losses, **look)
        deviations = [(loss / c - 1) * 100 for loss, c in zip(losses, centre, strict=True)]
        right.plot(ends, deviations, **look, label=f"{name} (out of bounds)" if outside else name)
    # what is far out of bounds leaves the axis instead of squeezing all others
    widest = 2.5 * max(shares)
    right.set_ylim(-widest, widest)
    left.set_ylabel("training loss")
    right.set_ylabel("difference from fp32 (%)")
    for axis in (left, right):
        axis.set_xlabel("step")
        axis.grid(color="0.9")
        axis.set_axisbelow(True)
        axis.tick_params(color=DARK)
    despine(figure)
    figure.legend(*right.get_legend_handles_labels(), loc="outside lower left", ncols=3, frameon=False)
    return figure


def caption(found: Curves, machine: str) -> str:
    """What there is to see: which lies outside, or how near the farthest comes."""
    visible = found.band.half[-1] / found.band.centre[-1]
    far = {name: max(_off(losses, found.band)) for name, losses in found.recipes.items()}
    farthest = max(far, key=lambda name: far[name])
    if found.outside:
        some = sorted(found.outside, key=list(found.recipes).index)
        text = f"Out of bounds (crosses, dotted): {code(some)}."
    else:
        text = f"No recipe leaves the band; `{farthest}` goes {percent(far[farthest])} of the way to its edge."
    return (
        f"{text} Points: mean loss of each tenth of {found.steps} steps, with the weights and the data of fp32's first "
        f"seed. Band: where one more fp32 run would lie, by the spread of its seeds (95 % over all {TESTS} blocks "
        f"of loss and gradient norm together); at the end it is {percent(visible)} of the loss wide on each side. "
        f"Right: the same, less the mean of the seeds. {wording.count(len(found.recipes), 'recipe')}. {machine}."
    )


def _off(losses: Sequence[float], band: Band) -> list[float]:
    return [abs(loss - c) / h for loss, c, h in zip(losses, band.centre, band.half, strict=True)]
