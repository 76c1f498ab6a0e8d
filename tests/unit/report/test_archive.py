"""`halfstep archive`: what is in it, where it is from, and who is not in it."""

from __future__ import annotations

import getpass
import json
import os
import re
import shutil
import socket
from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace

import pytest
from archives import CONFIG, archived, git, make_small_scope, make_source, members
from parity_runs import write_parity
from typer.testing import CliRunner

from halfstep.archive import make
from halfstep.archive.names import Names
from halfstep.cli import app
from halfstep.mistakes import StudyError
from halfstep.report.collect import collect
from halfstep.report.figures import plot
from halfstep.report.write import write_report
from halfstep.study import validate


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return make_source(tmp_path / "source")


@pytest.fixture
def scope(tmp_path: Path, scopes: SimpleNamespace) -> Path:
    return make_small_scope(scopes, tmp_path)


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures are files, and not drawn: most tests here look at other things."""

    def save(figure: object, stem: Path) -> None:
        stem.parent.mkdir(parents=True, exist_ok=True)
        for suffix in (".svg", ".pdf", ".png"):
            stem.with_suffix(suffix).write_text("a figure\n")

    monkeypatch.setattr("halfstep.report.style.save", save)


@pytest.mark.usefixtures("drawn")
def test_it_holds_all_that_a_reader_needs(scope: Path, source: Path, tmp_path: Path) -> None:
    plot(scope)
    write_report(scope)
    found = members(archived(scope, source, tmp_path / "a.zip"))
    ours = {
        path.relative_to(scope.parents[1]).as_posix(): path.read_bytes() for path in scope.rglob("*") if path.is_file()
    }
    assert {name: content for name, content in found.items() if name.startswith("results/")} == ours
    assert "results/h200/runs/vit/fp32/rep1/record.json" in found  # out of memory is a result
    theirs = {path.relative_to(source).as_posix() for path in source.rglob("*") if path.is_file()}
    assert {name.removeprefix("source/") for name in found if name.startswith("source/")} == theirs
    beside = {
        "README.md",
        "SHA256SUMS",
        "archive.json",
        "ro-crate-metadata.json",
        "config.yaml",
        "LICENSE",
        "CITATION.cff",
    }
    assert {name for name in found if not name.startswith(("results/", "source/"))} == beside


@pytest.mark.usefixtures("drawn")
def test_the_same_results_give_the_same_bytes(scope: Path, source: Path, tmp_path: Path) -> None:
    """Elsewhere, later, with other times of files, and whoever collected them before."""
    first = archived(scope, source, tmp_path / "a.zip")
    elsewhere = tmp_path / "elsewhere" / "results" / "h200"
    shutil.copytree(scope, elsewhere, copy_function=shutil.copyfile)
    shutil.rmtree(elsewhere / "tables")
    for path in elsewhere.rglob("*"):
        os.utime(path, (10**9, 10**9))
    (elsewhere / "logs").mkdir()
    (elsewhere / "logs" / "collect_runs.log").write_text("another call\n")
    assert archived(elsewhere, source, tmp_path / "b.zip").read_bytes() == first.read_bytes()


@pytest.mark.usefixtures("drawn")
def test_whatever_a_study_leaves_is_taken_by_its_kind(scope: Path, source: Path, tmp_path: Path, capsys) -> None:
    run = scope / "runs/vit/eager/rep1"
    other = scope / "parity/vit/bf16/seed1"
    other.mkdir(parents=True)
    for name, there in (("record.json", True), ("curve.csv", False), ("log.txt", False)):
        (other / name).write_bytes((run / name).read_bytes() if there else b"1,2\n")
    for left in (
        "cache/vit/a.json",
        "logs/a.txt",
        "archive/older.json",
        ".hidden.csv",
        "runs/vit/model.pt",
        "notes.docx",
    ):
        (scope / left).parent.mkdir(parents=True, exist_ok=True)
        (scope / left).write_text("not for others\n")
    found = members(archived(scope, source, tmp_path / "a.zip"))
    assert {name for name in found if "/parity/" in name} == {
        f"results/h200/parity/vit/bf16/seed1/{name}" for name in ("record.json", "curve.csv", "log.txt")
    }
    assert not any(b"not for others" in content for content in found.values())
    assert "| raw results | `results/h200/parity/` |" in found["README.md"].decode()
    assert "left out, since they are no results of a study: notes.docx, runs/vit/model.pt" in capsys.readouterr().err


@pytest.mark.usefixtures("drawn")
def test_what_the_source_was_is_said(scope: Path, source: Path, tmp_path: Path) -> None:
    (source / "results").mkdir()
    (source / "results/big.csv").write_text("not the source\n")
    (source / ".venv").mkdir()
    (source / ".venv/secret").write_text("not the source\n")
    without = members(archived(scope, source, tmp_path / "a.zip"))
    assert json.loads(without["archive.json"])["source"] == {"commit": None, "changed": False}
    assert "it is no git repository, so that no commit is known" in without["README.md"].decode()
    assert not any(b"not the source" in content for content in without.values())

    (source / ".gitignore").write_text("/results/\n/.venv/\n")
    git(source, "init", "--quiet")
    git(source, "add", ".")
    git(source, "commit", "--quiet", "--message", "All")
    commit = git(source, "rev-parse", "HEAD")
    clean = members(archived(scope, source, tmp_path / "b.zip"))
    assert json.loads(clean["archive.json"])["source"] == {"commit": commit, "changed": False}
    assert "source.diff" not in clean and f"commit {commit}" in clean["README.md"].decode()
    assert b"ada@example.org" not in b"".join(clean.values())

    (source / "src/halfstep/code.py").write_text("# another\n")
    (source / "src/halfstep/mine.py").write_text("# a new recipe\n")
    (source / "letter.txt").write_text("to nobody here\n")
    (source / "run.sh").unlink()
    before = git(source, "status", "--porcelain"), git(source, "count-objects")
    dirty = members(archived(scope, source, tmp_path / "c.zip"))
    assert (git(source, "status", "--porcelain"), git(source, "count-objects")) == before
    assert json.loads(dirty["archive.json"])["source"] == {"commit": commit, "changed": True}
    assert dirty["source/src/halfstep/code.py"] == b"# a source\n"
    assert not any(b"to nobody here" in content for content in dirty.values())
    unpacked = tmp_path / "unpacked"
    for name, content in dirty.items():
        if name.startswith("source/"):
            (unpacked / name).parent.mkdir(parents=True, exist_ok=True)
            (unpacked / name).write_bytes(content)
    (unpacked / "source.diff").write_bytes(dirty["source.diff"])
    git(unpacked / "source", "apply", "../source.diff")
    assert (unpacked / "source/src/halfstep/code.py").read_text() == "# another\n"
    assert (unpacked / "source/src/halfstep/mine.py").read_text() == "# a new recipe\n"
    assert not (unpacked / "source/run.sh").exists()


HOMES = ("/home/ada", "/data/people/ada.l")


@pytest.fixture
def ada(monkeypatch: pytest.MonkeyPatch) -> None:
    """She calls it, on a host of her own."""
    monkeypatch.setenv("HOME", HOMES[1])
    monkeypatch.setattr(getpass, "getuser", lambda: "ada")
    monkeypatch.setattr(socket, "gethostname", lambda: "h200.example.org")


@pytest.mark.usefixtures("drawn", "ada")
def test_nobody_is_named_in_what_programs_wrote(
    scope: Path, source: Path, tmp_path: Path, scopes: SimpleNamespace
) -> None:
    study = validate(CONFIG)
    said = f'OSError: {HOMES[0]}/x and {HOMES[1]}/y, "ada" on h200.example.org (/scratch/ada/z), but not adamant'
    behaviour = {"status": "failed", "reason": said}
    scopes.write_run(
        scope, study, ("vit", "blocks", 2), behaviour, messages=[{"text": said}], applied={"path": HOMES[0]}
    )
    (scope / "runs/vit/blocks/rep2/log.txt").write_text(f"{said}\nFile {HOMES[1]}/halfstep/a.py\n")
    doctor = json.loads((scope / "system/doctor.json").read_text())
    doctor["machine"]["where"] = f"ada@h200:{HOMES[0]}"
    (scope / "system/doctor.json").write_text(json.dumps(doctor))
    collect(scope, study)
    found = members(archived(scope, source, tmp_path / "a.zip"))
    clean = 'OSError: ~/x and ~/y, "<user>" on <host> (/scratch/<user>/z), but not adamant'
    record = json.loads(found["results/h200/runs/vit/blocks/rep2/record.json"])
    assert (record["reason"], record["messages"], record["applied"]) == (clean, [{"text": clean}], {"path": "~"})
    assert record["run"]["device"] == "h200"  # her host's name, and the device's
    assert found["results/h200/runs/vit/blocks/rep2/log.txt"].decode() == f"{clean}\nFile ~/halfstep/a.py\n"
    assert json.loads(found["results/h200/system/doctor.json"])["machine"]["where"] == "<user>@<host>:~"
    assert clean.replace('"', '""') in found["results/h200/tables/runs.csv"].decode()
    for name, content in found.items():
        for secret in (*HOMES, "ada@", '"ada"', "example.org", "/ada/"):
            assert secret.encode() not in content, name


@pytest.mark.usefixtures("drawn", "ada")
@pytest.mark.parametrize("where", ["config.yaml", "src/halfstep/code.py", "title"])
def test_a_home_in_what_a_person_wrote_is_refused_until_it_is_asked_for(
    where: str, scope: Path, source: Path, tmp_path: Path
) -> None:
    if where == "title":
        collect(scope, validate({**CONFIG, "title": f"From {HOMES[1]}"}))
    else:
        with (source / where).open("a") as stream:
            stream.write(f"# see {HOMES[1]}/notes\n")
    with pytest.raises(StudyError, match=r"The path of your home stands in .*, line \d+.*say --keep-names"):
        archived(scope, source, tmp_path / "a.zip")
    assert not (tmp_path / "a.zip").exists()
    kept = members(archived(scope, source, tmp_path / "a.zip", keep_names=True))
    assert any(HOMES[1].encode() in content for content in kept.values())


def test_the_names_are_those_of_this_process() -> None:
    found = Names.here()
    assert str(Path.home()) in found.homes
    assert getpass.getuser() in {*found.words, "root"} and socket.gethostname() in {*found.words, "localhost"}


@pytest.mark.usefixtures("drawn")
def test_runs_of_another_study_are_not_archived_as_those_of_this_one(scope: Path, source: Path, tmp_path: Path) -> None:
    other = deepcopy(CONFIG)
    other["comparisons"]["vit"]["variants"]["eager"]["batch"] = 64
    collect(scope, validate(other))
    with pytest.raises(StudyError, match=r"2 runs cannot .*vit/eager rep1 \(made by another .*STATUS=stale"):
        archived(scope, source, tmp_path / "a.zip")


@pytest.mark.usefixtures("drawn")
def test_nor_are_parity_runs_of_another_study(scope: Path, source: Path, tmp_path: Path) -> None:
    bf16 = "vit_huge+adam_fused+layernorm/bf16 seed1"
    write_parity(scope, validate(CONFIG), change=lambda key: {"run_hash": "f00"} if key.recipe.name == "bf16" else {})
    with pytest.raises(StudyError, match=rf"1 run cannot .*{re.escape(bf16)} \(made by another configuration"):
        archived(scope, source, tmp_path / "a.zip")


@pytest.mark.usefixtures("drawn")
def test_what_is_not_as_one_would_expect_is_said(
    scope: Path, source: Path, tmp_path: Path, scopes: SimpleNamespace, capsys
) -> None:
    config = source / "config.yaml"
    config.write_text(
        config.read_text().replace("replicates: 2", "replicates: 3").replace("fp32, batch", "tf32, batch")
    )
    scopes.write_run(scope, validate(CONFIG), ("vit", "eager", 1), scopes.behaviour["eager"], image="sha256:abc")
    found = members(archived(scope, source, tmp_path / "a.zip"))["README.md"].decode()
    assert "not quite the study that was measured" in found
    assert "they differ in replicates, comparisons.vit.variants.fp32.precision." in found
    assert "Runs were made in the image sha256:abc, which lies in results/image/ no more" in found
    assert "6 of 6 runs were measured by another version of the code" in found
    assert "not quite the study" in capsys.readouterr().err


@pytest.mark.usefixtures("drawn")
def test_an_image_comes_with_its_bill_of_materials(
    scope: Path, source: Path, tmp_path: Path, scopes: SimpleNamespace
) -> None:
    scopes.write_run(scope, validate(CONFIG), ("vit", "eager", 1), scopes.behaviour["eager"], image="sha256:abc")
    for target, digest in (("cuda", "sha256:abc"), ("cpu", "sha256:def")):
        folder = scope.parent / "image" / target
        folder.mkdir(parents=True)
        (folder / "digest").write_text(f"{digest}\n")
        (folder / "packages.json").write_text('{"python": {"torch": "2.11.0"}}\n')
        (folder / "halfstep.sif").write_text("large\n")
    found = members(archived(scope, source, tmp_path / "a.zip"))
    assert {name for name in found if "/image/" in name} == {
        "results/image/cuda/digest", "results/image/cuda/packages.json"
    }  # fmt: skip
    assert '"sha256": "abc"' in found["ro-crate-metadata.json"].decode()


@pytest.mark.usefixtures("drawn")
def test_the_reviewer_is_told_how_long_it_takes_and_how_far_off_it_may_be(
    scope: Path, source: Path, tmp_path: Path
) -> None:
    found = members(archived(scope, source, tmp_path / "a.zip"))["README.md"].decode()
    assert "The runs took 4 min in all" in found  # six of 40 s
    assert "The step times of one variant's replicates differ here by " in found
    assert "halfstep verify halfstep-h200.zip" in found and "pip install -r archive/source/requirements.lock" in found


def test_the_command_says_what_is_wrong(scope: Path, source: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(make, "ROOT", tmp_path / "nowhere")
    result = CliRunner().invoke(app, ["archive", str(scope)])
    assert result.exit_code == 2 and "holds no Snakefile with src/halfstep beside it" in result.stderr
    result = CliRunner().invoke(app, ["archive", str(tmp_path)])
    assert result.exit_code == 2 and "study.json is not there" in result.stderr
    monkeypatch.setattr(make, "ROOT", source)
    (source / "CITATION.cff").write_text("title: halfstep\n")
    result = CliRunner().invoke(app, ["archive", str(scope)])
    assert result.exit_code == 2 and "should name version and authors: KeyError: 'authors'" in result.stderr
    assert not (scope / "archive").exists()
