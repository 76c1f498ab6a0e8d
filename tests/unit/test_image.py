"""What of the image is seen without a builder: the containers' environment, and whether its files belong together."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from halfstep.image.commands import CommandError
from halfstep.image.inside import environment
from halfstep.image.make import DIGEST, FILES, PACKAGES, SIF, mismatch
from halfstep.image.sif import identity, unpacking_place

VARIABLES = ("APPTAINER_BIND", "SINGULARITY_BIND", "APPTAINER_TMPDIR", "SINGULARITY_TMPDIR", "TMPDIR")


@pytest.fixture(params=["apptainer", "singularity"])
def command(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The one of the two that is on the PATH, and none of their variables."""
    bin_ = tmp_path / "bin"
    bin_.mkdir()
    (bin_ / request.param).touch(0o755)
    monkeypatch.setenv("PATH", str(bin_))
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    return str(request.param)


def test_the_environment_is_clean_whatever_the_arguments(command: str) -> None:
    assert environment(Path("results/cpu-image"), gpu=False)[f"{command.upper()}_CLEANENV"] == "1"


def test_what_a_site_binds_stays(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also under the older name, which Apptainer leaves out where it finds its own."""
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setenv("SINGULARITY_BIND", "/scratch,/data:/mnt")
    outside, scope = tmp_path / "disk", tmp_path / "other/scope"
    outside.mkdir()
    scope.mkdir(parents=True)
    Path("results").symlink_to(outside)
    (outside / "cpu-image").symlink_to(scope)
    found = environment(Path("results/cpu-image"), gpu=False)
    expected = f"/scratch,/data:/mnt,{outside},{scope}"
    assert found[f"{command.upper()}_BIND"] == expected
    # a process below this one computes it anew
    monkeypatch.setenv(f"{command.upper()}_BIND", expected)
    assert environment(Path("results/cpu-image"), gpu=False)[f"{command.upper()}_BIND"] == expected


def test_where_it_is_unpacked(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert unpacking_place() == (Path("/tmp"), "by default")
    for name in ("TMPDIR", "SINGULARITY_TMPDIR", f"{command.upper()}_TMPDIR"):
        monkeypatch.setenv(name, f"/{name}")
        assert unpacking_place() == (Path(f"/{name}"), name)


def test_a_command_that_is_killed_says_so() -> None:
    error = CommandError(["apptainer", "build"], -9, "INFO: at it\n", Path("build.log"))
    assert str(error) == "apptainer was killed by SIGKILL: INFO: at it. The whole output is in build.log."


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """A folder with an image's three files."""
    folder = tmp_path / "image"
    folder.mkdir()
    (folder / SIF).write_bytes(os.urandom(3 * 2**20))
    (folder / DIGEST).write_text("sha256:1\n")
    (folder / PACKAGES).write_text(json.dumps({"digest": "sha256:1", "sif": identity(folder / SIF)}))
    assert mismatch(folder) is None
    return folder


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (lambda folder: os.truncate(folder / SIF, 2 * 2**20), f"{SIF} is not the file that was written with"),
        (lambda folder: (folder / SIF).write_bytes(os.urandom(3 * 2**20)), f"{SIF} is not the file that was written"),
        (lambda folder: (folder / DIGEST).write_text("sha256:2\n"), f"{DIGEST} is not the file that was written with"),
        (lambda folder: (folder / DIGEST).write_text(""), f"{DIGEST} is not the file that was written with"),
        (lambda folder: (folder / PACKAGES).write_text('{"digest": "sha256:1"}'), f"{SIF} is not the file that was"),
        (lambda folder: (folder / PACKAGES).write_text("{"), "cannot be read: "),
        *((lambda folder, name=name: (folder / name).unlink(), name) for name in FILES),
    ],
)
def test_files_that_do_not_belong_together(damage: Callable[[Path], object], expected: str, image: Path) -> None:
    damage(image)
    wrong = mismatch(image)
    assert wrong is not None and expected in wrong
    assert wrong.endswith(f"Remove {image / SIF}, and the next call makes it anew, with the files beside it.")


def test_a_copy_elsewhere_is_whole(image: Path) -> None:
    copy = image.rename(image.with_name("copied"))
    os.utime(copy / SIF, (0, 0))
    assert mismatch(copy) is None
