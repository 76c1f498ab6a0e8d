"""`halfstep verify`: an archive is right, or what is not is named; it is refused where it might do harm."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from zipfile import ZipFile

import pytest
from archives import archived, changed, make_small_scope, make_source, members, replaced
from PIL import Image
from typer.testing import CliRunner

from halfstep.cli import app

SCOPE = "results/h200"
RUN = f"{SCOPE}/runs/vit/eager/rep1"
RIGHT = ("Every record is of the study", *map(str, range(10)))
"""how what is right begins: with a number, most of it"""


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory, scopes: SimpleNamespace) -> Path:
    """As it is made, figures and all. Only to be read."""
    folder = tmp_path_factory.mktemp("drawn")
    return archived(make_small_scope(scopes, folder), make_source(folder / "source"), folder / "halfstep-h200.zip")


@pytest.fixture(scope="module")
def sketched(tmp_path_factory: pytest.TempPathFactory, scopes: SimpleNamespace) -> Path:
    """The same with a word for each figure, for `archive`."""
    folder = tmp_path_factory.mktemp("sketched")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("halfstep.report.style.save", sketch)
        return archived(make_small_scope(scopes, folder), make_source(folder / "source"), folder / "halfstep-h200.zip")


@pytest.fixture
def archive(sketched: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One whose figures take no time to draw: not now, and not when it is verified."""
    monkeypatch.setattr("halfstep.report.style.save", sketch)
    return sketched


def sketch(figure: object, stem: Path) -> None:
    stem.parent.mkdir(parents=True, exist_ok=True)
    for suffix in (".svg", ".pdf", ".png"):
        stem.with_suffix(suffix).write_text(f"{stem.name}\n")


def verified(archive: Path) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["verify", str(archive)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert "\x1b" not in result.output
    return result.exit_code, result.output


def wrong(archive: Path) -> list[str]:
    """What differs, of an archive in which something does."""
    code, output = verified(archive)
    *found, last = output.splitlines()
    sentences = [line for line in found if not line.startswith(RIGHT)]
    count = "one thing is wrong" if len(sentences) == 1 else f"{len(sentences)} things are wrong"
    assert (code, last) == (1, f"{archive}: {count}"), output
    return sentences


def test_it_is_right_as_it_was_made(drawn: Path) -> None:
    code, output = verified(drawn)
    files = len(members(drawn)) - 1
    assert (code, output.splitlines()) == (
        0,
        [
            f"{files} files are those of SHA256SUMS.",
            "Every record is of the study: the hash of its configuration is the same.",
            "27 tables, reports and vector figures follow from the runs byte for byte, and 4 figures pixel for pixel.",
            f"{drawn}: all is right",
        ],
    )


def test_it_needs_no_torch_writes_nothing_here_and_runs_nothing_of_it(drawn: Path, tmp_path: Path) -> None:
    """In a process that can import no torch, in folders that are empty afterwards too."""
    with changed(drawn, tmp_path / "a.zip") as folder:
        (folder / "source/src/halfstep/cli.py").write_text("raise SystemExit('this was executed')\n")
    (tmp_path / "a").rename(tmp_path / "elsewhere")
    home, here, temporary = (tmp_path / name for name in ("home", "here", "temporary"))
    for folder in (home, here, temporary):
        folder.mkdir()
    program = """
import sys
class NoTorch:
    def find_spec(self, name, *_):
        if name == "torch":
            raise ImportError("torch was asked for")
sys.meta_path.insert(0, NoTorch())
from halfstep.cli import main
main()
"""
    environment = {**os.environ, "HOME": str(home), "TMPDIR": str(temporary), "PYTHONHASHSEED": "5"}
    command = [sys.executable, "-c", program, "verify", tmp_path / "a.zip"]
    done = subprocess.run(command, cwd=here, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.splitlines()[-1:]) == (0, [f"{tmp_path / 'a.zip'}: all is right"]), done
    assert [path for folder in (here, temporary) for path in folder.rglob("*")] == []


def test_a_changed_byte_in_each_file_is_named(archive: Path, tmp_path: Path) -> None:
    data = archive.read_bytes()
    noise = random.Random(7)
    with ZipFile(archive) as packed:
        entries = [entry for entry in packed.infolist() if entry.file_size]
    assert len(entries) > 60
    for entry in entries:
        start = entry.header_offset + 30 + len(entry.filename.encode())
        place = start + noise.randrange(entry.file_size)
        flipped = data[:place] + bytes([data[place] ^ 1 << noise.randrange(8)]) + data[place + 1 :]
        (tmp_path / "a.zip").write_bytes(flipped)
        (sentence,) = wrong(tmp_path / "a.zip")
        assert sentence.startswith(f"{entry.filename} cannot be read: Bad CRC-32")


def test_a_changed_byte_of_the_zip_file_itself_is_named(archive: Path, tmp_path: Path) -> None:
    data = archive.read_bytes()
    noise = random.Random(8)
    with ZipFile(archive) as packed:
        places = [entry.header_offset + noise.randrange(30) for entry in packed.infolist()[::4]]
        places += [noise.randrange(packed.start_dir, len(data)) for _ in places]
    for place in places:
        (tmp_path / "a.zip").write_bytes(
            data[:place] + bytes([data[place] ^ 1 << noise.randrange(8)]) + data[place + 1 :]
        )
        code, output = verified(tmp_path / "a.zip")
        assert code in (1, 2) and len(output.strip()) > len("things are wrong"), place


def flip(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-2] + b"?\n")


# what is done to the files, and what is named although the checksums are mended
TAMPERED: dict[str, tuple[Callable[[Path], object], list[str]]] = {
    "a step's time": (
        lambda folder: replaced({"0,window,": "0,window,9"}, folder / RUN / "steps.csv"),
        ["The run vit/eager rep1 (summary.csv is not of steps.csv", f"{SCOPE}/report.md is not what the runs give"],
    ),
    "a number of a run": (
        lambda folder: replaced({",640,": ",630,"}, folder / RUN / "summary.csv"),
        [f"{SCOPE}/tables/runs.csv is not what the runs give", f"{SCOPE}/tables/variants.csv is not what"],
    ),
    "a run's batch": (
        lambda folder: replaced({'"batch": 128': '"batch": 64'}, folder / RUN / "record.json"),
        ["The run vit/eager rep1 ("],
    ),
    "a run's hash": (
        lambda folder: replaced({'"run_hash": "': '"run_hash": "0'}, folder / RUN / "record.json"),
        ["The run vit/eager rep1 (made by another configuration"],
    ),
    "the study": (
        lambda folder: replaced({'"batch": 128': '"batch": 64'}, folder / SCOPE / "study.json"),
        ["The run vit/fp32 rep1 (made by another configuration: batch was 128, now 64)"],
    ),
    "a column's name": (
        lambda folder: replaced({"step_ms_median": "step_median"}, folder / RUN / "summary.csv"),
        ["The run vit/eager rep1 (summary.csv does not have the columns"],
    ),
    "a table": (
        lambda folder: replaced({"paired": "pairde"}, folder / SCOPE / "tables/speedups.csv"),
        [f"{SCOPE}/tables/speedups.csv is not what the runs give: line 3 is 'vit,blocks,,fair,eager"],
    ),
    "a LaTeX table": (
        lambda folder: flip(folder / SCOPE / "tables/vit-variants.tex"),
        [f"{SCOPE}/tables/vit-variants.tex is not what the runs give: line "],
    ),
    "the report": (
        lambda folder: replaced({"use `blocks`": "use `eager`"}, folder / SCOPE / "report.md"),
        [f"{SCOPE}/report.md is not what the runs give: line "],
    ),
    "a vector figure": (
        lambda folder: flip(folder / SCOPE / "figures/vit-speedup.pdf"),
        [f"{SCOPE}/figures/vit-speedup.pdf is not what the runs give: its bytes differ"],
    ),
    "a file's absence": (
        lambda folder: (folder / RUN / "record.json").unlink(),
        [f"{SCOPE}/tables/runs.csv is not what the runs give"],
    ),
    "a figure's absence": (
        lambda folder: (folder / SCOPE / "figures/vit-speedup.png").unlink(),
        [f"{SCOPE}/figures/vit-speedup.png follows from the runs and is not there"],
    ),
    "a figure more": (
        lambda folder: shutil.copy(folder / SCOPE / "figures/vit-speedup.png", folder / SCOPE / "figures/vit-best.png"),
        [f"{SCOPE}/figures/vit-best.png does not follow from the runs"],
    ),
    "a study that asks for the moon": (
        lambda folder: replaced({'"replicates": 2': '"replicates": 1000000000'}, folder / SCOPE / "study.json"),
        [f"{SCOPE}/study.json: it asks for 3,000,000,000 runs"],
    ),
    "a study that is none": (
        lambda folder: replaced({'"workload": "vit_huge"': '"workload": "vit"'}, folder / SCOPE / "study.json"),
        ["study.json: comparisons.vit.workload = 'vit' is unknown"],
    ),
    "a record that would clear the screen": (
        lambda folder: replaced({'"comparison": "vit"': '"comparison": "\\u001b[2J"'}, folder / RUN / "record.json"),
        ["The run vit/eager rep1 (the record is of another run: [2J/eager/1)"],
    ),
    "a record that is none": (
        lambda folder: replaced({'"applied": {': '"applied": [1], "was": {'}, folder / RUN / "record.json"),
        ["The run vit/eager rep1 (record.json: applied is [1]) is not of the study"],
    ),
}


@pytest.mark.parametrize("what", TAMPERED)
def test_what_was_tampered_with_is_named(what: str, archive: Path, tmp_path: Path) -> None:
    tamper, named = TAMPERED[what]
    with changed(archive, tmp_path / "a.zip") as folder:
        tamper(folder)
    found = wrong(tmp_path / "a.zip")
    assert all(any(part in sentence for sentence in found) for part in named), found


def test_what_no_report_can_be_made_of_is_no_traceback(archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All that strangers' results have led to so far is a sentence of its own; this is for what is still to come."""

    def fail(*_: object) -> None:
        raise KeyError("spread")

    monkeypatch.setattr("halfstep.archive.verify.rebuild", fail)
    assert wrong(archive) == ["Tables, figures and report cannot be made from these runs: KeyError: 'spread'"]


def test_every_file_that_is_not_its_checksums_is_named(archive: Path, tmp_path: Path) -> None:
    with changed(archive, tmp_path / "a.zip", sums=False) as folder:
        for name in members(archive).keys() - {"SHA256SUMS", "archive.json", f"{SCOPE}/study.json"}:
            with (folder / name).open("ab") as stream:
                stream.write(b"\n")
    named = {sentence.split(" ")[0] for sentence in wrong(tmp_path / "a.zip") if "is not the file that" in sentence}
    assert named == members(archive).keys() - {"SHA256SUMS", "archive.json", f"{SCOPE}/study.json"}


def test_figures_are_compared_by_their_pixels(drawn: Path, tmp_path: Path) -> None:
    figure = f"{SCOPE}/figures/vit-speedup.png"
    with changed(drawn, tmp_path / "a.zip") as folder, Image.open(folder / figure) as image:
        image.load()
        image.save(folder / figure, compress_level=1)
    assert members(tmp_path / "a.zip")[figure] != members(drawn)[figure]
    assert verified(tmp_path / "a.zip")[0] == 0
    with changed(drawn, tmp_path / "b.zip") as folder, Image.open(folder / figure) as image:
        image.putpixel((10, 20), (1, 2, 3, 255))
        image.save(folder / figure)
    assert wrong(tmp_path / "b.zip") == [
        f"{figure} is not what the runs give: pixels differ between (10, 20) and (11, 21)"
    ]
    with changed(drawn, tmp_path / "c.zip") as folder:
        Image.new("1", (30_000, 30_000)).save(folder / figure)  # 0.9 GB once it is read
    (sentence,) = wrong(tmp_path / "c.zip")
    assert "it cannot be read as an image" in sentence or "30000x30000 pixels and should have" in sentence


def refused(archive: Path) -> str:
    code, output = verified(archive)
    assert code == 2, output
    return output


@pytest.mark.parametrize(
    "name", ["archive.json", "ro-crate-metadata.json", "README.md", "config.yaml", "source/Snakefile"]
)
def test_what_lacks_a_part_is_refused(name: str, archive: Path, tmp_path: Path) -> None:
    with changed(archive, tmp_path / "a.zip") as folder:
        (folder / name).unlink()
    assert f"lacks {name}" in refused(tmp_path / "a.zip")


def test_what_is_no_archive_of_ours_is_refused(archive: Path, tmp_path: Path) -> None:
    with changed(archive, tmp_path / "a.zip", sums=False) as folder:
        (folder / "SHA256SUMS").unlink()
    assert "lacks SHA256SUMS" in refused(tmp_path / "a.zip")
    with changed(archive, tmp_path / "a.zip", sums=False) as folder:
        (folder / "SHA256SUMS").write_text("0123  README.md\n")
    assert "a SHA256SUMS whose line 1 is no checksum" in refused(tmp_path / "a.zip")
    with changed(archive, tmp_path / "a.zip") as folder:
        (folder / "empty").mkdir()
    assert "holds 'empty', which SHA256SUMS does not list" in refused(tmp_path / "a.zip")
    for old, new, reason in (
        ('"format": 1', '"format": 2', "is of format 2, and this halfstep reads format 1"),
        ('"scope": "h200"', '"scope": "../../../.."', "names a scope '../../../..' of which there are no results"),
        ('"scope": "h200"', '"scope": "b200"', "names a scope 'b200' of which there are no results"),
        ('"scope"', '"scape"', "no archive.json that says what it holds"),
    ):
        with changed(archive, tmp_path / "a.zip") as folder:
            replaced({old: new}, folder / "archive.json")
        assert reason in refused(tmp_path / "a.zip")
    (tmp_path / "b.zip").write_text("hello\n")
    assert "b.zip is not a whole zip file: File is not a zip file." in refused(tmp_path / "b.zip")


def test_a_file_that_is_not_there_is_said_in_a_sentence(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "halfstep", "verify", tmp_path / "none.zip"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (2, f"{tmp_path / 'none.zip'}: No such file or directory\n")


def test_other_libraries_are_named_where_something_differs(archive: Path, tmp_path: Path) -> None:
    with changed(archive, tmp_path / "a.zip") as folder:
        about = json.loads((folder / "archive.json").read_text())
        about["drawn_by"]["matplotlib"] = "3.4.2"
        (folder / "archive.json").write_text(json.dumps(about))
    assert "3.4.2" not in verified(tmp_path / "a.zip")[1]
    with changed(tmp_path / "a.zip", tmp_path / "b.zip") as folder:
        flip(folder / SCOPE / "figures/vit-speedup.svg")
    assert "Tables and figures were made by matplotlib 3.4.2 (here " in verified(tmp_path / "b.zip")[1]
