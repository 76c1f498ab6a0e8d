"""Figures: the right ones, in three formats, embedded fonts, and captions that say what their data say."""

from __future__ import annotations

import json
import os
from pathlib import Path
from statistics import fmean
from xml.etree import ElementTree

import numpy as np
import pytest
import seaborn as sns
from matplotlib.colors import to_hex

from halfstep.records import STEPS_COLUMNS, SUMMARY_COLUMNS, read_csv, write_csv
from halfstep.report import charts, figures, style
from halfstep.report.charts import ratio_limits
from halfstep.report.collect import collect
from halfstep.report.figures import efficient, plot, window_steps
from halfstep.report.results import load
from halfstep.report.statistics import Ratio
from halfstep.report.style import wrap
from halfstep.report.wording import ratio
from halfstep.study import validate

SVG = "{http://www.w3.org/2000/svg}"


def captions(scope_dir: Path) -> dict:
    return json.loads((scope_dir / "figures" / "captions.json").read_text())


def test_four_figures_per_comparison_in_three_formats(h200):
    plot(h200)
    names = {f"{name}-{kind}" for name in ("vit-b128", "lm") for kind in ("speedup", "spread", "memory", "kernels")}
    files = {path.name for path in (h200 / "figures").iterdir()}
    kinds = ("svg", "pdf", "png", "rst")
    assert files == {f"{name}.{suffix}" for name in names for suffix in kinds} | {"captions.json"}
    for name in names:
        assert ElementTree.parse(h200 / "figures" / f"{name}.svg").getroot().tag == f"{SVG}svg"
        pdf = (h200 / "figures" / f"{name}.pdf").read_bytes()
        assert b"/FontFile2" in pdf  # an embedded TrueType font
        assert b"/CreationDate" not in pdf


def test_the_palette_is_seaborns_for_the_colour_blind():
    assert list(style.PALETTE) == [to_hex(colour) for colour in sns.color_palette("colorblind")]


def test_many_figures_are_drawn_at_once_and_are_the_same(h200, monkeypatch):
    plot(h200)
    one_by_one = {path.name: path.read_bytes() for path in (h200 / "figures").iterdir()}
    for path in (h200 / "figures").iterdir():
        path.unlink()
    monkeypatch.setattr(figures, "MANY", 5)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1})
    monkeypatch.setattr(style, "save", None)  # in this process none can be
    plot(h200)
    assert {path.name: path.read_bytes() for path in (h200 / "figures").iterdir()} == one_by_one


def test_captions_name_the_finding_with_its_interval_and_who_has_no_number(h200, unsaved):
    plot(h200)
    found = captions(h200)["vit-b128"]
    speedup = load(h200).comparisons[0]["bf16-foreach"].speedup
    text = found["speedup"]["caption"]
    assert text.startswith(f"`bf16-foreach` has the highest speed-up over `eager`: {ratio(speedup)}.")
    assert "3 paired replicates" in text
    assert "NVIDIA H200" in text
    assert "`fp32` (out of memory)" in text
    assert (
        "norm, pointwise, cast/scale and copy together go from 157 to 77.4 ms per step; Inductor"
        in found["kernels"]["caption"]
    )
    assert "`bf16-foreach` is both fastest and smallest" in found["memory"]["caption"]


def test_without_data_there_is_a_sentence_instead_of_a_figure(tmp_path, scopes, unsaved):
    config = {
        "comparisons": {
            "cpu": {"workload": "vit_huge", "baseline": "eager", "variants": {"eager": {}, "blocks": {}}},
            "one": {"workload": "vit_huge", "baseline": "eager", "variants": {"eager": {}}},
            "none": {"workload": "lm", "baseline": "lm-fp16", "variants": {"lm-fp16": {}, "gone": {}}},
            "no-baseline": {"workload": "lm", "baseline": "lm-fp16", "variants": {"lm-fp16": {}, "eager": {}}},
        }
    }
    behaviour = {**scopes.behaviour, "eager": {**scopes.vit, "ms": 60.0}, "blocks": {**scopes.vit, "ms": 50.0}}
    scopes.make(tmp_path / "cpu-smoke", config, behaviour)
    plot(tmp_path / "cpu-smoke")
    found = captions(tmp_path / "cpu-smoke")
    drawn = {(name, kind) for name, figures in found.items() for kind, it in figures.items() if it["file"]}
    assert drawn == {("cpu", "speedup"), ("cpu", "spread"), ("one", "spread"), ("no-baseline", "spread")}
    assert found["none"]["spread"]["caption"] == "No variant was measured."
    assert "no baseline was measured" in found["no-baseline"]["speedup"]["caption"]
    assert "taken on a GPU only" in found["cpu"]["kernels"]["caption"]


def test_figures_of_a_comparison_that_is_gone_are_removed(h200, scopes):
    plot(h200)
    config = {**scopes.config, "comparisons": {"lm": scopes.config["comparisons"]["lm"]}}
    collect(h200, validate(config))
    plot(h200)
    assert {path.name.split("-")[0] for path in (h200 / "figures").iterdir()} == {"lm", "captions.json"}


def test_skipped_and_warm_up_steps_are_not_drawn(h200):
    folder = h200 / "runs" / "vit-b128" / "eager" / "rep1"
    lines = (folder / "steps.csv").read_text().splitlines()
    last = lines[-1].split(",")
    (folder / "steps.csv").write_text("\n".join([*lines, ",".join([*last[:-1], "1"]), ""]))
    results = load(h200)
    timed = sum(",window," in line for line in lines)
    assert len(window_steps(results, results.comparisons[0])["eager"][1]) == timed


def test_efficient_variants_are_those_that_no_other_beats_in_both(h200):
    assert efficient(load(h200).comparisons[0]) == ["bf16-foreach"]


def test_an_interval_that_says_nothing_does_not_hide_the_others():
    wild, tame = Ratio(9.5, 1e-16, 1e17, method="paired"), Ratio(1.25, 1.24, 1.26, method="paired")
    assert ratio(wild) == "9.50 [<0.001, >1,000]"
    assert ratio_limits([wild, tame]) == (1e-16, 2.5 * 9.5)
    assert ratio_limits([tame]) == (1.0, 1.26)


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (Ratio(0.89994, 0.80741, 1.0031), "0.900 [0.807, 1.003]"),
        (Ratio(1.0264, 1.01955, 1.03328), "1.026 [1.020, 1.033]"),
        (Ratio(0.98, 0.97, 0.99997), "0.980 [0.970, 0.99997]"),
        (Ratio(1.25, 1.24, 1.26), "1.25 [1.24, 1.26]"),
        (Ratio(1.25, 1.25, 1.25), "1.250 [1.250, 1.250]"),
        (Ratio(1.25), "1.25"),
    ],
)
def test_ratios_have_three_digits_unless_they_hide_something(found, text):
    assert ratio(found) == text


def test_the_widest_replicate_is_named(h200, scopes, unsaved):
    steps = h200 / "runs" / "vit-b128" / "whole" / "rep3" / "steps.csv"
    rows = read_csv(steps, STEPS_COLUMNS)
    slow = sorted((row for row in rows if row["phase"] == "window"), key=lambda row: float(row["step_ms"]))[-5:]
    for row in slow:  # beyond the median, which stays where it was
        row["step_ms"] = str(2 * float(row["step_ms"]))
    write_csv(steps, STEPS_COLUMNS, rows)
    summary = steps.with_name("summary.csv")
    (row,) = read_csv(summary, SUMMARY_COLUMNS)
    mean = fmean(float(step["step_ms"]) for step in rows if step["phase"] == "window")
    write_csv(summary, SUMMARY_COLUMNS, [{**row, "step_ms_mean": mean}])
    collect(h200, validate(scopes.config))
    plot(h200)
    text = captions(h200)["vit-b128"]["spread"]["caption"]
    assert text.startswith("The steps of `whole` vary most, in replicate 3: 5th to 95th percentile span 1")
    assert "span 10" in text and "of its median. Medians of replicates differ" in text


def test_slow_downs_are_not_called_speed_ups(tmp_path, scopes, unsaved):
    behaviour = {**scopes.behaviour, "blocks": {**scopes.vit, "ms": 400.0}}
    for name in ("whole", "bf16-foreach"):
        del behaviour[name]
    scopes.make(tmp_path / "h200", scopes.config, behaviour)
    plot(tmp_path / "h200")
    text = captions(tmp_path / "h200")["vit-b128"]["speedup"]["caption"]
    assert text.startswith("No variant is faster than the baseline `eager`; closest is `blocks`: 0.")


def test_boxes_keep_their_rows_where_variants_between_have_no_steps(h200):
    comparison = load(h200).comparisons[0]
    steps = {name: {1: [1.0, 2.0, 3.0], 2: [1.0, 2.0, 3.0]} for name in ("eager", "bf16-foreach")}
    axis = charts.spread(comparison, steps).axes[0]
    boxes = [polygon[:, 1] for patch in axis.patches for polygon in patch.get_path().to_polygons()]
    assert len(boxes) == 4
    assert max(np.ptp(ys) for ys in boxes) < 0.5
    assert sorted(round((ys.min() + ys.max()) / 2) for ys in boxes) == [1, 1, 4, 4]


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("bf16", "bf16"),
        ("torchao_rowwise_with_gw_hp", "torchao_rowwise_\nwith_gw_hp"),
        ("a" * 45, "\n".join(["a" * 20, "a" * 20, "a" * 5])),
    ],
)
def test_long_names_are_wrapped_and_lose_nothing(name, lines):
    assert wrap(name) == lines
