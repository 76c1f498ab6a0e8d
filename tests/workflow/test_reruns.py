"""After one complete call: exactly which jobs the next one runs."""

from __future__ import annotations

import os
import re
import shutil
import sys
import tarfile
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from tree import CONFIG, NOTHING, REPORTING, Tree, jobs_in, report_line, runs, side_by_side

Config = dict[str, Any]
Edit = Callable[[Tree, Config], None]

EVERY_VARIANT = ("lm/fp32", "lm/bf16", "lm/tf32", "vit/fp32", "vit/bf16")
RUNS = "results/cpu/tables/runs.csv"
RECIPE = "src/halfstep/recipes/precision/bf16.py"

CLAIM = {
    "claim": "bf16 is faster",
    "source": "a paper",
    "order": True,
    "same_batch": {"comparison": "lm", "variant": "bf16", "over": "fp32"},
}


def study(change: Callable[[Config], Any]) -> Edit:
    """An edit of config.yaml."""

    def edit(tree: Tree, config: Config) -> None:
        change(config)
        tree.configure(config)

    return edit


def variants(config: Config) -> list[dict[str, Any]]:
    return [variant for comparison in config["comparisons"].values() for variant in comparison["variants"].values()]


def code(path: str) -> Edit:
    """One more statement in a file of the package."""

    def edit(tree: Tree, config: Config) -> None:
        name = f"src/halfstep/{path}"
        tree.write(name, f"{tree.read(name)}\nEDITED = True\n")

    return edit


def turn_round(value: Any) -> Any:
    """The same with the keys of every mapping in the opposite order."""
    return {key: turn_round(value[key]) for key in reversed(value)} if isinstance(value, dict) else value


def move_batch_into_defaults(config: Config) -> None:
    for variant in variants(config):
        del variant["batch"]
    config["defaults"] = {"batch": 16}


def touch_sources(tree: Tree, config: Config) -> None:
    for path in (
        tree.root / "Snakefile",
        tree.root / "config.yaml",
        *tree.root.glob("rules/*"),
        *tree.root.rglob("*.py"),
    ):
        os.utime(path)


def comment_and_document(tree: Tree, config: Config) -> None:
    text = tree.read(RECIPE)
    assert text.startswith('"""') and "class Bf16(Precision):\n" in text
    text = text.replace("class Bf16(Precision):\n", 'class Bf16(Precision):\n    """Documented."""\n\n')
    tree.write(RECIPE, f'"""Other words.\n\n{text[3:]}\n# and a comment\n')


def delete_record(tree: Tree, config: Config) -> None:
    (tree.root / "results/cpu/runs/vit/bf16/rep2/record.json").unlink()


def add_recipe(tree: Tree, config: Config) -> None:
    """What a user does for a precision of their own, before a variant names it."""
    shutil.copy2(tree.root / RECIPE, tree.root / "src/halfstep/recipes/precision/mine.py")
    registered = '    "bf16": "halfstep.recipes.precision.bf16:Bf16",\n'
    mine = '    "mine": "halfstep.recipes.precision.mine:Bf16",\n'
    tree.edit("src/halfstep/registry.py", registered, registered + mine)


def add_recipe_and_variant(tree: Tree, config: Config) -> None:
    add_recipe(tree, config)
    config["comparisons"]["lm"]["variants"]["mine"] = {"precision": "mine"}
    tree.configure(config)


NOTHING_AGAIN: dict[str, Edit] = {
    "call again": lambda tree, config: None,
    "keys in another order": lambda tree, config: tree.configure(turn_round(config)),
    "16.0 for 16": study(lambda config: [variant.update(batch=16.0) for variant in variants(config)]),
    "a value moved into the defaults": study(move_batch_into_defaults),
    "a default written out": study(
        lambda config: [variant.update(optimizer="adam_fused") for variant in variants(config)]
    ),
    "sources touched": touch_sources,
    "a comment and a docstring": comment_and_document,
    "code of the supervisor": code("measure/supervisor.py"),
}
# runs that are measured again; the tables, figures and the report follow
MEASURED_AGAIN: dict[str, tuple[Edit, set[str]]] = {
    "a variant edited": (
        study(lambda config: config["comparisons"]["lm"]["variants"]["bf16"].update(batch=8)),
        runs("lm/bf16"),
    ),
    "a variant added": (
        study(lambda config: config["comparisons"]["lm"]["variants"].update(weights={"precision": "bf16"})),
        runs("lm/weights"),
    ),
    # collect and report know the registry, the measuring process does not
    "a line in the registry": (add_recipe, set()),
    "a variant with a recipe added": (add_recipe_and_variant, runs("lm/mine")),
    "a variant removed": (study(lambda config: config["comparisons"]["lm"]["variants"].pop("tf32")), set()),
    "a comparison removed": (study(lambda config: config["comparisons"].pop("lm")), set()),
    "another baseline": (study(lambda config: config["comparisons"]["lm"].update(baseline="bf16")), set()),
    "a claim added": (study(lambda config: config.update(claims={"a": CLAIM})), set()),
    "a comparison that smoke runs leave out": (
        study(lambda config: config["comparisons"]["lm"].update(smoke=False)),
        set(),
    ),
    "another title": (study(lambda config: config.update(title="Other words")), set()),
    "one more replicate": (
        study(lambda config: config["comparisons"]["lm"].update(replicates=3)),
        {"measure_variant lm/fp32/3", "measure_variant lm/bf16/3", "measure_variant lm/tf32/3"},
    ),
    "code of a recipe": (code("recipes/precision/bf16.py"), runs("lm/bf16", "vit/bf16")),
    "code of a workload": (code("workloads/lm.py"), runs("lm/fp32", "lm/bf16", "lm/tf32")),
    "code of every precision": (code("recipes/precision/precision.py"), runs(*EVERY_VARIANT)),
    "code of the loop": (code("measure/training.py"), runs(*EVERY_VARIANT)),
    "code of the statistics": (code("report/tables.py"), set()),
    "a record deleted": (delete_record, {"measure_variant vit/bf16/2"}),
}
JUST: dict[str, tuple[Edit, set[str]]] = {
    "code of the figures": (code("report/style.py"), {"plot_figures", "write_report"}),
    "code of the text": (code("report/markdown.py"), {"write_report"}),
    "the text's template": (code("report/report.md.j2"), {"write_report"}),
    "the page's template": (code("report/charts.html.j2"), {"write_report"}),
    "the page's style": (code("report/report.css"), {"write_report"}),
    "code of the doctor": (code("system/probes.py"), {"probe_system", "write_report"}),
}  # fmt: skip


EDITS = {
    **NOTHING_AGAIN,
    **{name: edit for name, (edit, _) in MEASURED_AGAIN.items()},
    **{name: edit for name, (edit, _) in JUST.items()},
}


@pytest.fixture(scope="module")
def plans(
    request: pytest.FixtureRequest, finished: Tree, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Future[set[str]]]]:
    """What the next call would run after each edit of a finished tree."""
    folder = tmp_path_factory.mktemp("edits")

    def plan(name: str) -> set[str]:
        tree = finished.copy(folder / name.replace(" ", "-"))
        EDITS[name](tree, deepcopy(CONFIG))
        return tree.plan()

    with side_by_side(request, "edit", plan) as plans:
        yield plans


@pytest.mark.parametrize("edit", NOTHING_AGAIN)
def test_nothing(edit: str, plans: dict[str, Future[set[str]]]) -> None:
    assert plans[edit].result() == set()


@pytest.mark.parametrize("edit", MEASURED_AGAIN)
def test_measured_again(edit: str, plans: dict[str, Future[set[str]]]) -> None:
    assert plans[edit].result() == MEASURED_AGAIN[edit][1] | REPORTING


@pytest.mark.parametrize("edit", JUST)
def test_no_measurement(edit: str, plans: dict[str, Future[set[str]]]) -> None:
    assert plans[edit].result() == JUST[edit][1]


def test_a_call_with_nothing_to_do_names_the_report(tree: Tree) -> None:
    before = tree.contents()
    done = tree.snakemake()
    assert done.returncode == 0 and NOTHING in done.stderr
    assert done.stderr.splitlines()[-1] == report_line("results/cpu", 10, unsupported=2)
    assert tree.contents() == before


def test_another_scope(tree: Tree) -> None:
    everything = runs(*EVERY_VARIANT) | {"probe_system"} | REPORTING
    assert tree.plan("--config", "scale=smoke") == everything
    before = {path: file for path, file in tree.contents().items() if path.startswith("results/cpu/")}
    record = "results/cpu-smoke/runs/vit/bf16/rep1/record.json"
    assert tree.run(record, "--config", "scale=smoke") == ["measure_variant vit/bf16/1"]
    assert (tree.root / "results/latest").readlink() == Path("cpu-smoke")
    assert {path: file for path, file in tree.contents().items() if path.startswith("results/cpu/")} == before
    assert tree.plan("--config", "scale=smoke") == everything - {"measure_variant vit/bf16/1"}
    assert tree.plan() == set()


def test_what_is_planned_is_what_runs(tree: Tree, config: Config) -> None:
    def records() -> dict[str, tuple[int, bytes]]:
        return {path: file for path, file in tree.contents().items() if path.endswith("record.json")}

    before = records()
    config["comparisons"]["lm"]["variants"]["bf16"]["batch"] = 8
    tree.configure(config)
    assert tree.plan() == runs("lm/bf16") | REPORTING
    assert set(tree.run(RUNS)) == runs("lm/bf16") | {"collect_runs"}
    changed = {path for path, file in records().items() if before[path] != file}
    assert changed == {f"results/cpu/runs/lm/bf16/rep{n}/record.json" for n in (1, 2)}
    assert [row["batch"] for row in tree.rows("results/cpu/tables/runs.csv") if row["variant"] == "bf16"] == [
        "8", "8", "16", "16",
    ]  # fmt: skip
    assert tree.plan() == {"plot_figures", "write_report"}


def test_moved_in_one_tar(finished: Tree, config: Config, tmp_path: Path) -> None:
    archive = tmp_path / "results.tar"
    with tarfile.open(archive, "w") as tar:
        for name in ("results", ".snakemake"):
            tar.add(finished.root / name, name)
    elsewhere = Tree.make(tmp_path / "another" / "folder", config, stand_in=True)
    with tarfile.open(archive) as tar:
        tar.extractall(elsewhere.root, filter="tar")
    assert elsewhere.plan() == set()
    config["comparisons"]["lm"]["variants"]["bf16"]["batch"] = 8
    elsewhere.configure(config)
    assert elsewhere.plan() == runs("lm/bf16") | REPORTING


def test_another_environment(tree: Tree) -> None:
    """A record that was measured with another torch: no ratio across the two, and the report says so."""
    measured = [f"results/cpu/runs/lm/bf16/rep{n}/record.json" for n in (1, 2)]
    assert set(tree.run("--forcerun", *measured, STAND_IN_TORCH="2.0")) == runs("lm/bf16") | REPORTING
    environments = {(row["comparison"], row["variant"]): row["environment"] for row in tree.rows(RUNS)}
    assert environments["lm", "bf16"] != environments["lm", "fp32"] == environments["vit", "bf16"]
    speedups = {(row["comparison"], row["variant"]): row for row in tree.rows("results/cpu/tables/speedups.csv")}
    assert speedups["vit", "bf16"]["speedup"]
    assert speedups["lm", "bf16"]["speedup"] == ""
    assert "environment" in speedups["lm", "bf16"]["reason"]
    report = tree.read("results/cpu/report.md")
    assert f"`bf16`: {speedups['lm', 'bf16']['reason']}" in report
    assert (
        f"| what | environment `{environments['lm', 'fp32']}` | environment `{environments['lm', 'bf16']}` |" in report
    )
    assert "| torch | 1.0 | 2.0 |" in report
    assert tree.plan() == set()


def test_stale_records(tree: Tree, config: Config) -> None:
    """Records without Snakemake's own memory of them: collect sees that they are of another study or other code."""
    shutil.rmtree(tree.root / ".snakemake")
    config["comparisons"]["lm"]["variants"]["bf16"]["batch"] = 8
    tree.configure(config)
    code("recipes/precision/fp32.py")(tree, config)
    assert tree.halfstep("collect", "results/cpu", "--study", "config.yaml").returncode == 0
    rows = {(row["comparison"], row["variant"], row["replicate"]): row for row in tree.rows(RUNS)}
    stale = {key for key, row in rows.items() if row["status"] == "stale"}
    assert stale == {(*name.split("/"), n) for name in ("lm/bf16", "lm/fp32", "vit/fp32") for n in ("1", "2")}
    assert all(row["step_ms_median"] == "" for key, row in rows.items() if key in stale)
    assert "batch was 16, now 8" in rows["lm", "bf16", "1"]["reason"]
    assert "another version of the code" in rows["vit", "fp32", "2"]["reason"]
    listed = tree.halfstep("runs", "results/cpu", "--status", "stale").stdout.split()
    assert tree.plan("--forcerun", *listed) == runs("lm/bf16", "lm/fp32", "vit/fp32") | REPORTING


@pytest.fixture
def with_make(tree: Tree) -> Tree:
    """A tree whose .venv is set up, as far as make can see: its commands are those of this environment."""
    version = re.search(r"^UV_VERSION := (.+)$", tree.read("Makefile"), re.MULTILINE)
    assert version
    (tree.root / ".venv").mkdir()
    (tree.root / ".venv" / "bin").symlink_to(Path(sys.executable).parent)
    for stamp in (f".uv-{version[1]}", ".train"):
        (tree.root / ".venv" / stamp).touch()
    return tree


@pytest.mark.parametrize(
    ("chosen", "measured"),
    [
        (["STATUS=unsupported"], runs("lm/tf32")),
        (["COMPARISON=vit"], runs("vit/fp32", "vit/bf16")),
        (["STATUS=ok", "COMPARISON=lm"], runs("lm/fp32", "lm/bf16")),
    ],
)
def test_make_remeasure(chosen: list[str], measured: set[str], with_make: Tree) -> None:
    done = with_make.call("make", "remeasure", *chosen, "ARGS=--dry-run", PYTHONPATH="src")
    assert done.returncode == 0, done.stderr
    assert set(jobs_in(done.stdout + done.stderr)) == measured | REPORTING


def test_make_remeasure_nothing(with_make: Tree) -> None:
    done = with_make.call("make", "remeasure", "STATUS=disturbed", PYTHONPATH="src")
    assert (done.returncode, jobs_in(done.stdout + done.stderr)) == (0, [])
    assert "nothing is measured again" in done.stdout
    done = with_make.call("make", "remeasure")
    assert done.returncode == 2 and "STATUS=" in done.stderr and "COMPARISON=" in done.stderr
