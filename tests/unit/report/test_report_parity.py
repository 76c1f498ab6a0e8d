"""Loss parity from the runs' folders to tables, figures, answers and claims."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from markdown_it import MarkdownIt
from parity_runs import curve, write_parity

from halfstep.parity.plan import ParityKey, parity_keys
from halfstep.records import read_csv
from halfstep.report import charts
from halfstep.report.bands import NOT_CHECKED, OUTSIDE, REFERENCE, WITHIN
from halfstep.report.claims import CLAIMS_COLUMNS
from halfstep.report.collect import collect
from halfstep.report.figures import efficient, plot
from halfstep.report.parity import PARITY_COLUMNS, collect_parity
from halfstep.report.results import load
from halfstep.report.tables import RANKING_COLUMNS, SPEEDUPS_COLUMNS
from halfstep.report.write import write_report
from halfstep.runs import Scope
from halfstep.study import Study, validate

VIT = {"samples": 128, "unit": "images", "gib": 50.0, "kernels": {"GEMM": 100.0, "pointwise": 50.0}}
BEHAVIOUR = {
    "fp32": {**VIT, "ms": 700.0},
    "bf16": {**VIT, "ms": 360.0},
    "blocks": {**VIT, "ms": 290.0},
    "fp8": {**VIT, "ms": 220.0, "gib": 40.0},
}
VARIANTS = {
    "fp32": {"precision": "fp32"},
    "bf16": {"precision": "bf16"},
    "blocks": {"precision": "bf16", "compile": "blocks"},
    "fp8": {"precision": "te_linears_delayed", "compile": "blocks"},
}


def over(*rivals: str) -> dict[str, Any]:
    return {"comparison": "vit", "variant": rivals[0], "over": list(rivals[1:])}


CONFIG: dict[str, Any] = {
    "comparisons": {"vit": {"workload": "vit_huge", "baseline": "bf16", "title": "ViT", "variants": VARIANTS}},
    "claims": {
        "fast": {"claim": "FP8 is fast", "source": "x", "ratio": 1.2, "same_batch": over("fp8", "blocks")},
        "best": {"claim": "Best of all", "source": "x", "order": True, "same_batch": over("blocks", "fp8", "bf16")},
        "plain": {"claim": "bf16 beats fp32", "source": "x", "order": True, "same_batch": over("bf16", "fp32")},
    },
}  # fmt: skip
REFERENCE_ROW = "vit_huge+adam_fused+layernorm"


class Made:
    """A scope on an H200 with timed runs and parity runs."""

    def __init__(self, folder: Path, scopes: Any, config: dict[str, Any] = CONFIG, **parity: Any) -> None:
        self.folder = folder
        study = scopes.make(folder, config, BEHAVIOUR)
        write_parity(folder, study, **parity)
        collect(folder, study)

    def table(self, name: str, columns: Any, key: str) -> dict[str, dict[str, str]]:
        return {row[key]: row for row in read_csv(self.folder / "tables" / f"{name}.csv", columns)}

    @property
    def recipes(self) -> dict[str, dict[str, str]]:
        return self.table("parity", PARITY_COLUMNS, "recipe")

    @property
    def variants(self) -> dict[str, tuple[str, str]]:
        (comparison,) = load(self.folder).comparisons
        return {variant.name: (variant.row["parity"], variant.row["parity_why"]) for variant in comparison.variants}

    @property
    def report(self) -> str:
        plot(self.folder)
        write_report(self.folder)
        return (self.folder / "report.md").read_text(encoding="utf-8")


@pytest.fixture
def right(tmp_path: Path, scopes: Any) -> Made:
    return Made(tmp_path / "h200", scopes)


@pytest.fixture
def wrong(tmp_path: Path, scopes: Any) -> Made:
    """The recipe of the fastest variant trains out of bounds."""
    return Made(tmp_path / "h200", scopes, outside=["te_linears_delayed"])


# verdicts


def test_right_recipes_make_right_variants(right: Made) -> None:
    assert {recipe: row["verdict"] for recipe, row in right.recipes.items()} == {
        "reference": REFERENCE,
        **dict.fromkeys(("bf16", "te_linears_delayed", "bf16+blocks", "te_linears_delayed+blocks"), WITHIN),
    }
    assert right.variants == {"fp32": (REFERENCE, ""), **dict.fromkeys(("bf16", "blocks", "fp8"), (WITHIN, ""))}
    row = right.recipes["bf16"]
    assert float(row["own_deviation"]) == pytest.approx(1e-4, rel=0.05)
    assert float(row["low"]) < float(row["final_loss"]) < float(row["high"])


def test_a_wrong_recipe_makes_its_variants_wrong(wrong: Made) -> None:
    """By the recipe alone: the combination's own short run is right."""
    assert wrong.recipes["te_linears_delayed+blocks"]["verdict"] == WITHIN
    verdict, why = wrong.variants["fp8"]
    assert verdict == OUTSIDE and why.startswith("`te_linears_delayed`: ")
    assert wrong.variants["blocks"] == (WITHIN, "")


def test_a_wrong_combination_makes_its_variant_wrong(tmp_path: Path, scopes: Any) -> None:
    made = Made(tmp_path / "h200", scopes, outside=["bf16+blocks"])
    assert made.variants["bf16"] == (WITHIN, "")
    assert made.variants["blocks"][0] == OUTSIDE


def only(name: str, seed: int = 1, **changes: Any) -> Any:
    """A change to one run alone."""
    return lambda key: dict(changes) if (key.recipe.name, key.seed) == (name, seed) else {}


def without(name: str, seed: int = 1) -> Any:
    return lambda key: None if (key.recipe.name, key.seed) == (name, seed) else {}


REFERENCE_LACKS = "its fp32 reference needs 5 seeds, seed 3 of it is "


@pytest.mark.parametrize(
    ("change", "recipe", "why"),
    [
        (without("bf16"), "bf16", "no record: it has not run"),
        (only("bf16", status="unsupported", reason="bf16 needs more"), "bf16", "unsupported: bf16 needs more"),
        (only("bf16", run_hash="0"), "bf16", "stale: made by another configuration"),
        (only("bf16", environment_hash="e2"), "bf16", "were run in more than one environment"),
        (only("reference", 3, environment_hash="e2"), "bf16", "were run in more than one environment"),
        (without("reference", 3), "bf16", f"{REFERENCE_LACKS}missing"),
        (only("reference", 3, status="failed", reason="x"), "bf16", f"{REFERENCE_LACKS}failed"),
        (only("bf16", curve=[]), "bf16", "stale: curve.csv does not have the steps 0 to 299"),
        (only("bf16", applied={}), "bf16", "stale: record.json does not say how many parameters"),
    ],
    ids=[
        "missing",
        "unsupported",
        "stale",
        "its environment",
        "theirs",
        "no seed",
        "failed seed",
        "no curve",
        "no count",
    ],
)
def test_what_cannot_be_judged_is_not_checked(change: Any, recipe: str, why: str, tmp_path: Path, scopes: Any) -> None:
    made = Made(tmp_path / "h200", scopes, change=change)
    row = made.recipes[recipe]
    assert row["verdict"] == NOT_CHECKED
    assert why in row["why"]
    verdict, said = made.variants["blocks"]  # which is made of it
    assert verdict == NOT_CHECKED and said.startswith(f"`{recipe}`: ")
    assert made.table("speedups", SPEEDUPS_COLUMNS, "variant")["blocks"]["struck"] == ""


def test_other_data_are_noticed_step_by_step(tmp_path: Path, scopes: Any) -> None:
    def change(key: ParityKey) -> dict[str, Any]:
        if key.recipe.name != "bf16":
            return {}
        rows = curve(key)
        rows[17]["data"] = "other"
        return {"curve": rows}

    made = Made(tmp_path / "h200", scopes, change=change)
    assert made.recipes["bf16"]["why"] == "it saw other data than seed 1 of its fp32 reference, first in step 17"


def test_a_loss_that_is_no_number_is_out_of_bounds(tmp_path: Path, scopes: Any) -> None:
    def change(key: ParityKey) -> dict[str, Any]:
        rows = curve(key)
        if key.recipe.name == "bf16":
            rows[40]["loss"] = float("nan")
        return {"curve": rows}

    made = Made(tmp_path / "h200", scopes, change=change)
    assert made.recipes["bf16"]["verdict"] == OUTSIDE
    assert made.recipes["bf16"]["why"] == "the loss is not finite in 1 of 300 steps, first in step 40"
    assert made.recipes["bf16"]["final_loss"] == ""


def test_a_reference_that_diverges_judges_nothing(tmp_path: Path, scopes: Any) -> None:
    def change(key: ParityKey) -> dict[str, Any]:
        rows = curve(key)
        if (key.recipe.name, key.seed) == ("reference", 2):
            rows[299]["loss"] = float("inf")
        return {"curve": rows}

    made = Made(tmp_path / "h200", scopes, change=change)
    assert made.recipes["bf16"]["why"] == "the fp32 reference itself is not finite with seed 2"


def test_parameters_that_no_gradient_reached_are_out_of_bounds(tmp_path: Path, scopes: Any) -> None:
    made = Made(tmp_path / "h200", scopes, change=only("bf16", applied={"parameters_trained": 960}))
    assert made.recipes["bf16"]["verdict"] == OUTSIDE
    assert made.recipes["bf16"]["why"] == "gradients reach 960 parameters, and 1,000 in the fp32 reference"


def test_parity_of_another_environment_says_nothing_of_a_timed_run(tmp_path: Path, scopes: Any) -> None:
    made = Made(tmp_path / "h200", scopes, change=lambda key: {"environment_hash": "e2"})
    assert made.recipes["bf16"]["verdict"] == WITHIN
    assert made.variants["bf16"] == (
        NOT_CHECKED,
        "its parity runs and its timed runs were made in two environments",
    )


def test_other_code_is_stale(right: Made) -> None:
    study = load(right.folder).study
    scope = Scope("h200", "full")
    codes = {key: "another" if key.recipe.name == "bf16" else "c0de" for key in parity_keys(study, scope)}
    rows = {row["recipe"]: row for row in collect_parity(right.folder, study, scope, codes).rows}
    assert rows["bf16"]["status"] == "stale" and "another version of the code" in rows["bf16"]["reason"]
    assert rows["te_linears_delayed"]["verdict"] == WITHIN


# what the reader sees


def test_within_bounds_an_answer_says_so(right: Made, unsaved: None) -> None:
    text = right.report
    assert "use `fp8`: " in text
    assert "It trains as fp32 does." in text
    assert "see Loss parity: of 4 training variants 3 in bounds and 1 the fp32 reference itself." in text
    assert "~~" not in text


def test_out_of_bounds_is_struck_out_and_never_recommended(wrong: Made, unsaved: None) -> None:
    text = wrong.report
    answer = text[text.index("## What to use") : text.index("## Claims")]
    assert "use `blocks`: " in answer and "`fp8`: " not in answer
    assert "Out of bounds in training, and so not considered: `fp8`." in answer
    assert "2 in bounds, 1 out of bounds, their speed-ups struck out and 1 the fp32 reference itself" in answer
    line = next(line for line in text.splitlines() if line.startswith("| `fp8` |"))
    assert "| ~~1.6" in line and "]~~ |" in line and "| outside |" in line
    assert "- Struck out: `fp8` trains out of bounds (`te\\_linears\\_delayed" not in text  # code spans stay code
    assert "- Struck out: `fp8` trains out of bounds (`te_linears_delayed`: " in text
    assert f"<s>{line.partition('~~')[2].partition('~~')[0]}</s>" in MarkdownIt("gfm-like", {"linkify": False}).render(
        text
    )
    ranked = read_csv(wrong.folder / "tables" / "ranking.csv", RANKING_COLUMNS)
    assert {row["fastest"] for row in ranked} == {"blocks"} and "fp8" not in {row["variant"] for row in ranked}


def test_everything_over_a_baseline_out_of_bounds_is_struck_out(tmp_path: Path, scopes: Any, unsaved: None) -> None:
    made = Made(tmp_path / "h200", scopes, outside=["bf16"])
    speedups = made.table("speedups", SPEEDUPS_COLUMNS, "variant")
    assert all("`bf16` trains out of bounds" in row["struck"] for row in speedups.values())
    assert made.variants["fp8"] == (WITHIN, "")  # whose own parity does not depend on the baseline
    text = made.report
    assert "`fp8` measured fastest" in text or "use `fp8`" in text
    assert "times the baseline `bf16`" not in text
    assert "Every speed-up over `bf16` is struck out" in text


def test_claims_do_not_rest_on_what_is_out_of_bounds(wrong: Made, unsaved: None) -> None:
    claims = wrong.table("claims", CLAIMS_COLUMNS, "claim")
    assert claims["fast"]["verdict"] == "out of bounds"
    assert claims["fast"]["why"].startswith("The ratio must not be used: `fp8` trains out of bounds (")
    # the rival that is out of bounds refutes nothing
    assert (claims["best"]["verdict"], claims["best"]["same_batch_struck"]) == ("holds here", "")
    assert claims["best"]["why"].endswith("Left out, since out of bounds in training: `fp8`.")
    assert (claims["plain"]["verdict"], claims["plain"]["same_batch_struck"]) == ("holds here", "")
    text = wrong.report
    (line,) = (line for line in text.splitlines() if line.startswith("| `fast` "))
    assert "~~1.3" in line and "~~, out of bounds |" in line
    assert "struck out, since `fp8` trains out of bounds" in text


def test_a_batch_that_fits_is_no_gain_out_of_bounds(tmp_path: Path, scopes: Any) -> None:
    config = json.loads(json.dumps(CONFIG))
    fits = {"comparison": "vit", "variants": ["fp8"], "over": ["bf16", "blocks"]}
    config["claims"] = {"g": {"claim": "x", "source": "x", "ratio": 2, "fits": fits}}
    made = Made(tmp_path / "h200", scopes, config, outside=["te_linears_delayed"])
    claim = made.table("claims", CLAIMS_COLUMNS, "claim")["g"]
    assert claim["verdict"] == "out of bounds"
    assert claim["why"].startswith("That a batch fits is of no use: `fp8` trains out of bounds")


def test_figures_mark_it(wrong: Made, unsaved: None) -> None:
    (comparison,) = load(wrong.folder).comparisons
    assert charts.marked_name(comparison["fp8"]) == "fp8\n(out of bounds)"
    figure = charts.speedup(comparison)
    crosses = [line for line in figure.axes[0].lines if line.get_marker() == "x"]
    assert len(crosses) == 1
    dotted = [line for line in figure.axes[0].lines if line.get_linestyle() == ":"]
    assert len(dotted) == 1
    labels = [text.get_text() for text in figure.axes[0].child_axes[0].get_yticklabels()]
    assert [label for label in labels if "\u0336" in label] == [labels[3]]
    assert efficient(comparison) == ["blocks"]
    plot(wrong.folder)
    captions = json.loads((wrong.folder / "figures" / "captions.json").read_text(encoding="utf-8"))
    assert (
        "Struck out (crosses, dotted), since a side trains out of bounds: `fp8`."
        in captions["vit"]["speedup"]["caption"]
    )
    assert "Out of bounds in training (hollow), and not counted: `fp8`." in captions["vit"]["memory"]["caption"]
    assert "to `blocks`, the fastest here" in captions["vit"]["kernels"]["caption"]


def test_the_section_has_a_table_its_reasons_and_a_figure(wrong: Made) -> None:
    text = wrong.report
    section = text[text.index("## Loss parity") : text.index("## What did not run")]
    assert "### vit\\_huge, adam\\_fused, layernorm" in section
    assert "| `reference`, 5 seeds | 300 |" in section
    assert "| +0.010 % |" in section  # the same seed
    assert "- `te_linears_delayed`, outside: " in section
    captions = json.loads((wrong.folder / "figures" / "captions.json").read_text(encoding="utf-8"))
    figure = captions[REFERENCE_ROW]["parity"]
    assert figure["caption"].startswith("Out of bounds (crosses, dotted): `te_linears_delayed`.")
    for suffix in ("svg", "pdf", "png"):
        assert (wrong.folder / "figures" / f"{figure['file']}.{suffix}").exists()


def test_the_report_is_the_same_again(wrong: Made) -> None:
    first = wrong.report
    svg = wrong.folder / "figures" / f"{REFERENCE_ROW}-parity.svg"
    drawn = svg.read_bytes()
    collect(wrong.folder, load(wrong.folder).study)
    assert wrong.report == first
    assert svg.read_bytes() == drawn


def test_without_parity_runs_it_says_that_nothing_was_checked(tmp_path: Path, scopes: Any, unsaved: None) -> None:
    made = Made(tmp_path / "h200", scopes, change=lambda key: None)
    text = made.report
    assert "Loss parity is not checked (none of its 9 runs was made): these answers are about speed and memory" in text
    assert "- Not checked: `reference` (seed 1–5), `bf16`, " in text
    assert ". No record: it has not run, or never ended by itself." in text
    assert "`snakemake --cores 1` makes the runs that are missing." in text
    assert "It trains as fp32 does" not in text


@pytest.mark.parametrize(
    ("said", "why"), [("never", "the study says `parity: never`"), ("auto", "a smoke run does not check it")]
)
def test_where_it_was_not_asked_for_it_says_so(said: str, why: str, tmp_path: Path, scopes: Any, unsaved: None) -> None:
    folder = tmp_path / ("h200" if said == "never" else "cpu-smoke")
    made = Made(folder, scopes, {**CONFIG, "parity": said})
    assert made.recipes == {}
    assert set(made.variants.values()) == {(NOT_CHECKED, why)}
    section = made.report.partition("## Loss parity")[2]
    assert section.startswith(f"\n\nNot checked: {why}.")


def test_a_study_of_operators_has_no_word_on_it(tmp_path: Path, scopes: Any, unsaved: None) -> None:
    study: Study = validate({"comparisons": {"n": {"workload": "norm", "baseline": "a", "variants": {"a": {}}}}})
    assert collect_parity(tmp_path, study, Scope("h200", "full")).rows == []
    collect(tmp_path / "h200", study)
    plot(tmp_path / "h200")
    write_report(tmp_path / "h200")
    assert "## Loss parity" not in (tmp_path / "h200" / "report.md").read_text(encoding="utf-8")
