"""What may lie around a call: another folder, another locale, something else where results/latest should be."""

from __future__ import annotations

from pathlib import Path

import pytest
from tree import Tree


def test_another_directory_is_refused(tree: Tree, tmp_path: Path) -> None:
    """There `src/` would not be this code: another halfstep would measure, under this one's fingerprint."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "config.yaml").write_text(tree.read("config.yaml"))
    before = tree.contents()
    done = tree.snakemake("--directory", str(elsewhere))
    assert done.returncode == 2
    assert f"Call snakemake in {tree.root} " in done.stderr
    assert not (elsewhere / "results").exists()
    assert tree.contents() == before


def test_a_tree_is_called_by_another_name(tree: Tree, tmp_path: Path) -> None:
    link = tmp_path / "link with späces"
    link.symlink_to(tree.root)
    assert Tree(link).plan() == set()


def test_any_title_in_any_locale(tree: Tree) -> None:
    tree.configure(tree.read("config.yaml").replace("title: A study", r'title: "Été 😀 | <b> $HOME\x7f"'))
    tree.run(LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")
    assert "# Été 😀 &#124; &lt;b&gt; \\$HOME\n" in tree.read("results/cpu/report.md")


def test_a_study_longer_than_a_variable_may_be(tree: Tree) -> None:
    """Linux hands no process an argument or a variable of more than 128 KiB: a study of 800 variants is as long."""
    title = "A study " * 20_000
    tree.configure(tree.read("config.yaml").replace("title: A study", f"title: {title}"))
    tree.run()
    assert f"# {title.rstrip()}\n" in tree.read("results/cpu/report.md")


@pytest.mark.parametrize("kind", ["folder", "file"])
def test_what_is_no_link_of_ours_is_left_alone(kind: str, tree: Tree) -> None:
    latest = tree.root / "results/latest"
    latest.unlink()
    kept = latest / "mine" if kind == "folder" else latest
    kept.parent.mkdir(exist_ok=True)
    kept.write_text("mine")
    done = tree.snakemake()
    assert done.returncode == 0 and "Traceback" not in done.stderr
    assert "results/latest does not point to results/cpu" in done.stderr
    assert kept.read_text() == "mine"
