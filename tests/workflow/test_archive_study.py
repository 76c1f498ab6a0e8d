"""`snakemake archive` and `snakemake --report`, through the real Snakemake."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest
from tree import CONFIG, NOTHING, REPORTING, Tree, runs

ARCHIVE = "results/cpu/archive/halfstep-cpu.zip"


@pytest.fixture(scope="module")
def archived(finished: Tree, tmp_path_factory: pytest.TempPathFactory) -> Tree:
    """A finished tree in somebody's home, and its archive. Only to be copied."""
    home = tmp_path_factory.mktemp("data") / "ada.lovelace"
    tree = finished.copy(home / "tree")
    logs = list(tree.root.glob("results/cpu/runs/*/*/rep*/log.txt"))
    assert len(logs) == 10
    for log in logs:
        log.write_text(f"File {home}/tree/a.py, of ada.lovelace\n{log.read_text()}")
    assert tree.run("archive", **whose(tree)) == ["archive_study", "archive"]
    return tree


def whose(tree: Tree) -> dict[str, str]:
    return {"HOME": str(tree.root.parent), "USER": "ada.lovelace", "LOGNAME": "ada.lovelace"}


@pytest.fixture
def tree(archived: Tree, tmp_path: Path) -> Tree:
    return archived.copy(tmp_path / "tree")


def names(tree: Tree) -> set[str]:
    with ZipFile(tree.root / ARCHIVE) as packed:
        return set(packed.namelist())


def test_it_is_right_and_names_nobody(archived: Tree) -> None:
    done = archived.halfstep("verify", ARCHIVE)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == f"{ARCHIVE}: all is right"
    with ZipFile(archived.root / ARCHIVE) as packed:
        for name in packed.namelist():
            assert b"ada.lovelace" not in packed.read(name), name
    # a run that this machine cannot make is a result too
    assert {"results/cpu/runs/lm/tf32/rep2/log.txt", "source/src/halfstep/cli.py"} <= names(archived)


def test_nothing_is_measured_for_it_and_nothing_is_made_twice(tree: Tree, archived: Tree) -> None:
    before = tree.contents()
    done = tree.snakemake("archive")
    assert NOTHING in done.stdout + done.stderr, done.stderr
    assert tree.contents() == before
    content = (tree.root / ARCHIVE).read_bytes()
    (tree.root / ARCHIVE).unlink()
    assert tree.plan() == set()
    assert tree.run("archive", **whose(archived)) == ["archive_study", "archive"]
    assert (tree.root / ARCHIVE).read_bytes() == content


def test_an_edit_of_the_source_makes_it_again_and_measures_nothing(tree: Tree) -> None:
    tree.write("README.md", "# Another\n")
    assert tree.plan("archive") == {"archive_study", "archive"}
    assert tree.plan() == set()


def test_what_is_measured_again_is_archived_again(tree: Tree, config: dict[str, Any]) -> None:
    config["comparisons"]["lm"]["variants"]["bf16"]["batch"] = 8
    tree.configure(config)
    assert tree.plan("archive") == {*runs("lm/bf16"), *REPORTING, "archive_study", "archive"}


def test_a_comparison_that_is_gone_leaves_no_figure_that_is_asked_for(tree: Tree, config: dict[str, Any]) -> None:
    """Its figures are removed in a call that began with them as inputs."""
    del config["comparisons"]["vit"]
    tree.configure(config)
    assert set(tree.run()) == REPORTING
    assert tree.plan() == set()
    assert not list(tree.root.glob("results/cpu/figures/vit-*"))


PLANTED = "{{ 7 * 191 }} {% for %} <script>alert(1)</script> **bold** `code` |sub|"


def test_snakemakes_report_shows_our_figures_with_captions_and_categories(tree: Tree, config: dict[str, Any]) -> None:
    """What a title holds is text there: no template, no markup, no script."""
    config["comparisons"]["lm"]["title"] = PLANTED
    tree.configure(config)
    assert set(tree.run()) == REPORTING
    captions = tree.root / "results/cpu/figures/lm-speedup.rst"
    captions.write_text(captions.read_text() + rst_of(PLANTED))
    done = tree.snakemake("--report", "report.zip")
    assert done.returncode == 0, done.stderr
    with ZipFile(tree.root / "report.zip") as packed:
        shown = {Path(name).name: packed.read(name) for name in packed.namelist()}
    figures = {path.name: path.read_bytes() for path in tree.root.glob("results/cpu/figures/*.svg")}
    assert len(figures) == 4 and {name: shown[name] for name in figures} == figures
    page = shown["report.html"].decode()
    results, categories = (
        json.loads(re.search(rf"var {name} = (\{{.*?\}});\s*</script>", page, re.DOTALL)[1])
        for name in ("results", "categories")
    )
    captions = json.loads(tree.read("results/cpu/figures/captions.json"))
    assert categories.keys() == captions.keys() == CONFIG["comparisons"].keys()
    for comparison, kinds in captions.items():
        (paths,) = categories[comparison].values()
        drawn = {f"results/cpu/figures/{figure['file']}.svg": figure for figure in kinds.values() if figure["file"]}
        assert set(paths) == drawn.keys()
        for path, figure in drawn.items():
            assert results[path]["labels"] == {"figure": figure["title"]}
            said = f"{figure['title']}. {figure['caption'].replace('`', '')}"
            assert plain(results[path]["caption"]).startswith(" ".join(said.split()))
    (planted,) = [result["caption"] for result in results.values() if "Planted" in result["caption"]]
    assert "Planted. {{ 7 * 191 }} {% for %} <script>alert(1)</script> **bold** code |sub|" in plain(planted)
    assert "<script" not in planted and "<b>" not in planted


def rst_of(text: str) -> str:
    from halfstep.report.rst import caption

    return "\n" + caption("Planted", text)


def plain(caption: str) -> str:
    """A caption's text without its tags."""
    return " ".join(html.unescape(re.sub(r"</?[a-z][^>]*>", "", caption)).split())
