"""Loss parity through the real Snakemake, supervisor and training step: right recipes pass, planted wrong ones do not.

Timed runs are the stand-in's. What is trained is the language model at smoke size.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tree import REPORTING, Tree, runs

from halfstep.measure import parity
from halfstep.records import CURVE_COLUMNS, read_csv, read_record

PLANTED = Path(__file__).with_name("planted.py")
# names that a CPU takes, and what they stand for in this tree
PRECISIONS = {
    "native_delayed": "HalfLearningRate",
    "native_delayed_no_init": "UnscaledE4m3Gradients",
}
OPTIMIZERS = {"adamw_forloop": "skips_every_step"}
FAMILY = "lm+adamw_fused+layernorm"
SCOPE = "results/cpu-smoke"
CONFIG: dict[str, Any] = {
    "title": "A study",
    "scale": "smoke",
    "parity": "always",
    "replicates": 1,
    "defaults": {"optimizer": "adamw_fused"},
    "comparisons": {
        "lm": {
            "workload": "lm",
            "baseline": "fp32",
            "variants": {
                "fp32": {},
                "bf16": {"precision": "bf16"},
                "compiled": {"precision": "bf16", "compile": "blocks"},
                "half": {"precision": "native_delayed"},
                "unscaled": {"precision": "native_delayed_no_init"},
                "lazy": {"optimizer": "adamw_forloop"},
            },
        }
    },
}


def trained(*recipes: str) -> set[str]:
    return {f"train_recipe {FAMILY}/{recipe}" for recipe in recipes}


REFERENCES = tuple(f"reference/{n}" for n in range(1, 6))
RECIPES = ("bf16", "bf16+blocks", *PRECISIONS, *OPTIMIZERS)
EVERY_RUN = trained(*REFERENCES, *(f"{recipe}/1" for recipe in RECIPES))


def plant(tree: Tree) -> None:
    """Put the wrong recipes where the study names right ones."""
    shutil.copy2(PLANTED, tree.root / "src" / "halfstep" / "recipes" / "planted.py")
    registry = tree.read("src/halfstep/registry.py")
    for name, planted in {**PRECISIONS, **OPTIMIZERS}.items():
        line = next(line for line in registry.splitlines() if line.startswith(f'    "{name}": '))
        registry = registry.replace(line, f'    "{name}": "halfstep.recipes.planted:{planted}",')
    # what the right ones of these names need, the planted ones do not
    registry += f"\nNEEDS_GPU -= {set(PRECISIONS)!r}\n"
    tree.write("src/halfstep/registry.py", registry)


@pytest.fixture(scope="module")
def checked(tmp_path_factory: pytest.TempPathFactory) -> Tree:
    """A tree after parity alone and then all the rest. Only to be copied."""
    tree = Tree.make(tmp_path_factory.mktemp("parity") / "tree", CONFIG, stand_in=True)
    plant(tree)
    tree.write("trains", "")
    # the longest first, beside which all others are made
    compiled = f"{SCOPE}/parity/{FAMILY}/bf16+blocks/seed1/record.json"
    assert set(tree.run("parity", "--prioritize", compiled, cores=2)) == EVERY_RUN | {"parity"}
    # the same environment: else no parity run would speak for a timed one
    record = read_record(tree.root / f"{SCOPE}/parity/{FAMILY}/reference/seed1")
    tree.write("environment.json", json.dumps(record["environment"]))
    tree.run()
    return tree


@pytest.fixture
def tree(checked: Tree, tmp_path: Path) -> Tree:
    return checked.copy(tmp_path / "tree")


def rows(tree: Tree, table: str, name: str) -> dict[str, dict[str, str]]:
    return {row[name]: row for row in tree.rows(f"{SCOPE}/tables/{table}.csv")}


def test_right_recipes_are_within(checked: Tree) -> None:
    found = rows(checked, "parity", "recipe")
    for recipe in ("bf16", "bf16+blocks"):
        assert (found[recipe]["status"], found[recipe]["verdict"], found[recipe]["why"]) == ("ok", "within", "")
        # its own seed's loss far more closely than that of another seed
        assert abs(float(found[recipe]["own_deviation"])) < 0.3 * float(found[recipe]["visible"])
    assert (found["bf16"]["steps"], found["bf16+blocks"]["steps"]) == ("300", "50")
    reference = [row for row in checked.rows(f"{SCOPE}/tables/parity.csv") if row["recipe"] == "reference"]
    assert [row["verdict"] for row in reference] == ["reference"] * 5


def test_the_reference_has_learned(checked: Tree) -> None:
    """Far below guessing among 256 bytes (5.55)."""
    assert float(rows(checked, "parity", "recipe")["bf16"]["reference_loss"]) < 3


@pytest.mark.parametrize(
    ("recipe", "why"),
    [
        ("native_delayed", " lie outside"),
        ("native_delayed_no_init", " lie outside"),
        ("adamw_forloop", "the final loss is"),
    ],
    ids=[*PRECISIONS.values(), *OPTIMIZERS.values()],
)
def test_planted_recipes_are_caught(checked: Tree, recipe: str, why: str) -> None:
    found = rows(checked, "parity", "recipe")[recipe]
    assert (found["status"], found["verdict"]) == ("ok", "outside"), found
    assert why in found["why"]


@pytest.mark.parametrize(
    ("planted", "as_in_fp32"),
    [("Precision", (True, True)), ("DroppedBias", (False, True)), ("OtherData", (True, False))],
)
def test_one_step_shows_a_lost_bias_and_other_data(
    planted: str, as_in_fp32: tuple[bool, bool], checked: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By what the judgement compares with the reference: the parameters that gradients reach, and each batch's bits."""
    monkeypatch.setattr(parity, "batches", parity.batches)  # which one of them changes
    folder = checked.root / SCOPE / "parity" / FAMILY / "reference" / "seed1"
    record, reference = read_record(folder), read_csv(folder / "curve.csv", CURVE_COLUMNS)
    run = {**record["run"], "steps": 1}
    run["modules"]["precision"] = f"planted:{planted}"
    found = parity.measure(run, lambda event, **details: None)
    trained, data = found["applied"]["parameters_trained"], found["curve"][0]["data"]
    assert (trained == record["applied"]["parameters_trained"], data == reference[0]["data"]) == as_in_fp32


def test_a_variant_has_the_worst_verdict_of_what_it_is_made_of(checked: Tree) -> None:
    verdicts = {name: row["parity"] for name, row in rows(checked, "variants", "variant").items()}
    assert verdicts == {
        "fp32": "reference",
        "bf16": "within",
        "compiled": "within",
        "half": "outside",
        "unscaled": "outside",
        "lazy": "outside",
    }


def test_what_is_outside_is_struck_out_and_ranked_nowhere(checked: Tree) -> None:
    speedups = rows(checked, "speedups", "variant")
    outside = {name for name, row in rows(checked, "variants", "variant").items() if row["parity"] == "outside"}
    assert {name for name, row in speedups.items() if row["struck"]} == outside
    ranked = checked.rows(f"{SCOPE}/tables/ranking.csv")
    assert not outside & {name for row in ranked for name in (row["variant"], row["fastest"])}
    report = checked.read(f"{SCOPE}/report.md")
    section = report[report.index("## lm") : report.index("## Loss parity")]
    for name, row in speedups.items():
        (line,) = (line for line in section.splitlines() if line.startswith(f"| `{name}` |"))
        assert ("~~" in line) == bool(row["struck"]), line
    assert "## Loss parity\n" in report and "| `bf16+blocks` | 50 |" in report
    assert (checked.root / SCOPE / "figures" / f"{FAMILY}-parity.svg").exists()


def test_nothing_is_left_to_do(checked: Tree) -> None:
    assert checked.plan("all", "parity") == set()


def test_where_there_is_none_who_asks_for_it_is_told(tree: Tree) -> None:
    tree.configure({**CONFIG, "parity": "auto"})
    before = tree.contents()
    done = tree.snakemake("parity")
    assert done.returncode == 2
    assert "There is no parity run to make: a smoke run does not check it." in done.stderr.splitlines()
    assert tree.contents() == before


def change(config: Mapping[str, Any], **variants: Any) -> dict[str, Any]:
    comparison = config["comparisons"]["lm"]
    return {**config, "comparisons": {"lm": {**comparison, "variants": {**comparison["variants"], **variants}}}}


def test_another_cap_trains_nothing_again_and_a_new_combination_itself_alone(tree: Tree) -> None:
    capped, new = {"precision": "bf16", "memory_cap_gib": 20}, {"precision": "bf16", "optimizer": "adamw_forloop"}
    tree.configure(change(CONFIG, bf16=capped, new=new))
    assert tree.plan() == runs("lm/bf16", "lm/new", replicates=1) | trained("bf16+adamw_forloop/1") | REPORTING


def test_an_edit_of_the_data_trains_everything_and_times_nothing_again(tree: Tree) -> None:
    tree.edit("src/halfstep/parity/text.py", '"argparse.py", ', "")
    assert tree.plan() == EVERY_RUN | REPORTING


def test_an_edit_of_a_recipe_trains_and_times_what_uses_it(tree: Tree) -> None:
    tree.edit("src/halfstep/recipes/precision/bf16.py", '"bf16")  #', '"BF16")  #')
    timed = runs("lm/bf16", "lm/compiled", replicates=1)
    assert tree.plan() == {*timed, *trained("bf16/1", "bf16+blocks/1"), *REPORTING}


def test_an_edit_of_the_judgement_trains_nothing_again(tree: Tree) -> None:
    tree.edit("src/halfstep/report/bands.py", "ALPHA = 0.05", "ALPHA = 0.01")
    assert tree.plan() <= REPORTING


def test_a_record_of_another_configuration_is_no_verdict(tree: Tree) -> None:
    path = tree.root / SCOPE / "parity" / FAMILY / "reference" / "seed4" / "curve.csv"
    path.write_text(path.read_text(encoding="utf-8")[:-30], encoding="utf-8")
    assert tree.halfstep("collect", SCOPE).returncode == 0
    found = rows(tree, "parity", "recipe")
    assert found["bf16"]["verdict"] == "not checked"
    assert found["bf16"]["why"] == "its fp32 reference needs 5 seeds, seed 4 of it is stale"
    assert rows(tree, "variants", "variant")["bf16"]["parity"] == "not checked"
    assert not any(row["struck"] for row in rows(tree, "speedups", "variant").values())
