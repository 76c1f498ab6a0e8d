"""Figures of a collected scope, each with its caption, or with the sentence why there is none."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from halfstep.records import STEPS_COLUMNS, read_csv, write_json, write_text
from halfstep.report import captions, charts, parity_section, rst, style
from halfstep.report.operator_figures import OPERATOR_KIND, Drawn, operator_figure, operator_title
from halfstep.report.parity_figure import PARITY_KIND, PARITY_TITLE, parity_figure
from halfstep.report.results import ComparisonResult, Results, load, run_folder

KINDS = {
    "speedup": "Speed-up over the baseline",
    "spread": "Step-time spread",
    "memory": "Peak memory against throughput",
    "kernels": "Kernel time by kind",
}
MANY = 40  # figures, which take one process longer than starting others
MOST_PROCESSES = 8


def plot(scope_dir: Path) -> None:
    """Draw figures/<comparison>-<kind>.{svg,pdf,png} and write figures/captions.json; <family>-parity.* likewise.

    Beside each figure lies its caption in .rst.

    captions.json holds, by comparison or family and kind, `title`, `caption` and `file`: the figure's name without its
    suffix, or null where the caption says why there is none. Figures that no longer belong here are removed.
    """
    results = load(scope_dir)
    folder = scope_dir / "figures"
    index: dict[str, dict[str, dict[str, str | None]]] = {name: {} for name in results.study.comparisons}
    made: list[tuple[str, str, str, Drawn | str]] = [
        (comparison.name, kind, title, _figure(results, comparison, kind))
        for comparison in results.comparisons
        for kind, title in KINDS.items()
    ]
    made += [
        (operator.name, OPERATOR_KIND, operator_title(operator), operator_figure(operator, results.machine))
        for operator in results.operators
    ]
    for family in parity_section.families(results):  # its name can be no comparison's
        index[family.name] = {}
        made.append((family.name, PARITY_KIND, PARITY_TITLE, parity_figure(results, family)))
    drawings: dict[Path, Callable[[], Figure]] = {}
    for group, kind, title, drawn in made:
        name, caption = None, drawn
        if isinstance(drawn, tuple):
            draw, caption = drawn
            name = f"{group}-{kind}"
            drawings[folder / name] = draw
            write_text(folder / f"{name}.rst", rst.caption(title, caption))
        index[group][kind] = {"title": title, "file": name, "caption": str(caption)}
    _draw_all(drawings)
    write_json(folder / "captions.json", index)
    for path in folder.iterdir():
        if path.suffix in (".svg", ".pdf", ".png", ".rst") and path.with_suffix("") not in drawings:
            path.unlink()


def _draw_all(drawings: Mapping[Path, Callable[[], Figure]]) -> None:
    """Many at once where there are many: drawing is most of what a report takes."""
    processes = min(len(os.sched_getaffinity(0)), MOST_PROCESSES)
    if len(drawings) < MANY or processes < 2:
        for stem, draw in drawings.items():
            _draw(stem, draw)
        return
    # a fresh process each, since a fork of one with threads may hang
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
        list(pool.map(_draw, drawings.keys(), drawings.values()))


def _draw(stem: Path, draw: Callable[[], Figure]) -> None:
    with plt.rc_context(style.settings()):
        figure = draw()
        style.save(figure, stem)
    plt.close(figure)


def _figure(results: Results, comparison: ComparisonResult, kind: str) -> Drawn | str:
    """How to draw one figure and its caption, or why there is nothing to draw."""
    machine = results.machine
    if not comparison.measured:
        return "No variant was measured."
    if kind == "speedup":
        if not any(variant.speedup and variant.speedup.value for variant in comparison.variants):
            lacking = "no other variant" if comparison[comparison.baseline].measured else "no baseline"
            return f"There is no ratio to show: {lacking} was measured that could be compared."
        return partial(charts.speedup, comparison), captions.speedup(comparison, machine)
    if kind == "spread":
        steps = window_steps(results, comparison)
        if not steps:
            return "No step times were kept."
        return partial(charts.spread, comparison, steps), captions.spread(comparison, steps, machine)
    if kind == "memory":
        frontier = efficient(comparison)
        if not frontier:
            return "Peak memory was not measured: torch's allocator counts only a GPU's."
        if len(comparison.measured) == 1:
            return "Only one variant was measured: there is nothing to compare it with."
        return partial(charts.memory, comparison, frontier), captions.memory(comparison, frontier, machine)
    if not any(variant.kernels for variant in comparison.measured):
        return "There are no kernel times: they are taken on a GPU only."
    return partial(charts.kernels, comparison), captions.kernels(comparison, machine)


def window_steps(results: Results, comparison: ComparisonResult) -> dict[str, dict[int, list[float]]]:
    """Times in ms of the steps that count, by variant and replicate, on the clock that the comparison goes by."""
    column = "wall_ms" if comparison.clock else "step_ms"
    steps: dict[str, dict[int, list[float]]] = {}
    for variant in comparison.measured:
        for run in variant.ok_runs:
            rows = read_csv(run_folder(results.folder, run) / "steps.csv", STEPS_COLUMNS)
            times = [float(row[column]) for row in rows if row["phase"] == "window" and row["skipped"] != "1"]
            if times:
                steps.setdefault(variant.name, {})[int(run["replicate"])] = times
    return steps


def efficient(comparison: ComparisonResult) -> list[str]:
    """Variants than which no other is both faster and smaller (or equal in one of the two), of those in bounds."""
    points = {
        variant.name: (variant.require("samples_per_s"), -gib)
        for variant in comparison.usable
        if (gib := variant["peak_allocated_gib"]) is not None
    }
    return [
        name
        for name, point in points.items()
        if not any(other != point and other[0] >= point[0] and other[1] >= point[1] for other in points.values())
    ]
