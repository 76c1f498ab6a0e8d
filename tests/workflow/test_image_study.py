"""The study in an image, by the real builder and Apptainer; the image is a small one, and a stand-in measures."""

from __future__ import annotations

import json
import shutil
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from small_image import DIGEST, KEPT, SIF, path_without, with_small_image
from tree import REPORTING, Tree, runs

from halfstep.system.gpu_lock import GpuLock

pytestmark = pytest.mark.image
FLAG = "--use-singularity"
SCOPE = "results/cpu-image"
FOLDER = f"{SCOPE}/runs/lm/bf16/rep1"
RECORD = f"{FOLDER}/record.json"
EVERY_RUN = runs("lm/fp32", "lm/bf16")
EVERYTHING = EVERY_RUN | {"build_image", "probe_system"} | REPORTING


@pytest.fixture(scope="session")
def in_image(base_image: str, tmp_path_factory: pytest.TempPathFactory) -> Tree:
    """A tree after one complete call in the image. Only to be copied."""
    tree = with_small_image(tmp_path_factory.mktemp("image") / "tree", base_image)
    # a dry run before there is an image
    assert tree.plan(FLAG) == EVERYTHING
    assert not (tree.root / "results").exists()
    home = tree.root.parent / "home"
    for folder in (home, tree.root):  # the home outside, and what is the home inside
        user_site = folder / ".local/lib/python3.11/site-packages"
        user_site.mkdir(parents=True)
        (user_site / "planted.py").touch()
    path = home / ".local/lib/python3.11/site-packages"
    assert set(tree.run(FLAG, HOME=str(home), PYTHONPATH=str(path))) == EVERYTHING
    return tree


@pytest.fixture
def tree(in_image: Tree, tmp_path: Path) -> Iterator[Tree]:
    """A copy, which is not kept: each holds an image."""
    yield in_image.copy(tmp_path / "tree")
    shutil.rmtree(tmp_path / "tree")


def records(tree: Tree) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted((tree.root / SCOPE).glob("runs/*/*/*/record.json"))]


def test_each_record_names_the_image(in_image: Tree) -> None:
    digest = in_image.read(DIGEST).strip()
    assert digest.startswith("sha256:") and len(digest) == 71
    assert {record["image"] for record in records(in_image)} == {digest}
    assert len(records(in_image)) == len(EVERY_RUN)
    report = in_image.read(f"{SCOPE}/report.md")
    assert f"| image | {digest} |" in report
    assert f"```sh\nsnakemake --cores 1 {FLAG}\n```" in report


def test_parity_runs_are_made_in_the_image(tree: Tree) -> None:
    record = f"{SCOPE}/parity/lm+adam_fused+layernorm/bf16/seed1/record.json"
    assert tree.run(record, FLAG, "--config", "parity=always") == ["train_recipe lm+adam_fused+layernorm/bf16/1"]
    found = json.loads(tree.read(record))
    assert (found["status"], found["image"]) == ("ok", tree.read(DIGEST).strip())


def test_what_is_in_the_image_is_written_down(in_image: Tree) -> None:
    packages = json.loads(in_image.read("results/image/cpu/packages.json"))
    assert packages["digest"] == in_image.read(DIGEST).strip()
    assert packages["source"] == "docker/Dockerfile, target cpu"
    listed = in_image.call("apptainer", "exec", SIF, "pip", "list", "--format", "json")
    inside = {package["name"]: package["version"] for package in json.loads(listed.stdout)}
    assert packages["python"] == inside and "typer" in inside
    version = in_image.call("apptainer", "exec", SIF, "dpkg-query", "-f", "${Version}", "-W", "python3").stdout
    assert version and packages["debian"]["python3"] == version


def test_nothing_of_the_host_gets_in(in_image: Tree) -> None:
    log = in_image.read(f"{FOLDER}/log.txt")
    path = json.loads(next(line for line in log.splitlines() if line.startswith("sys.path: ")).partition(": ")[2])
    assert "planted: False" in log
    assert str(in_image.root / "src") in path
    assert sysconfig.get_path("purelib") not in path
    assert [place for place in path if ".local" in place or ".venv" in place] == []


def test_other_arguments_let_nothing_of_the_host_in(tree: Tree) -> None:
    (tree.root / RECORD).unlink()
    assert tree.run(FLAG, "--singularity-args=--nv", RECORD, STAND_IN_TORCH="the host's") == [
        "measure_variant lm/bf16/1"
    ]
    assert json.loads(tree.read(RECORD))["environment"]["torch"] == "1.0"


def test_nothing_is_left_beside_the_results(in_image: Tree, base_image: str, tmp_path: Path) -> None:
    before = {path.name for path in with_small_image(tmp_path / "fresh", base_image).root.iterdir()}
    after = {path.name for path in in_image.root.iterdir()}
    assert after - before == {"results", ".snakemake", ".local"}  # the last is planted
    assert {path.name for path in (in_image.root / ".local").iterdir()} == {"lib"}
    assert list((in_image.root / "results/image/cpu").glob(".unfinished*")) == []


def test_a_comment_measures_nothing_again(tree: Tree) -> None:
    before, digest, kept = records(tree), tree.read(DIGEST), (tree.root / KEPT).stat().st_ino
    tree.edit("docker/Dockerfile", "ENV PATH", "# where Python is\nENV PATH")
    assert set(tree.run(FLAG)) == {"build_image"} | REPORTING
    assert (records(tree), tree.read(DIGEST)) == (before, digest)
    assert {(tree.root / name).stat().st_ino for name in (SIF, KEPT)} == {kept}  # nor is a SIF made again
    assert tree.plan(FLAG) == set()


def test_a_build_that_fails_costs_no_image(tree: Tree, base_image: str) -> None:
    before, kept, config = records(tree), (tree.root / KEPT).stat().st_ino, tree.read("config.yaml")
    tree.write("config.yaml", config.replace(base_image, "localhost/no-such-image"))
    assert "Error in rule build_image" in tree.snakemake(FLAG).stderr
    tree.write("config.yaml", config)
    assert set(tree.run(FLAG)) == {"build_image"} | REPORTING
    assert {(tree.root / name).stat().st_ino for name in (SIF, KEPT)} == {kept}
    assert records(tree) == before


def test_a_changed_image_measures_all_again(tree: Tree) -> None:
    before = tree.read(DIGEST)
    tree.write("docker/Dockerfile", tree.read("docker/Dockerfile").replace("ENV PATH", "ENV CHANGED=1 PATH"))
    assert set(tree.run(FLAG)) == EVERYTHING
    assert tree.read(DIGEST) != before
    assert len(list((tree.root / KEPT).parents[1].rglob("*.sif"))) == 2  # the same one, under two names
    assert (tree.root / SIF).samefile(tree.root / KEPT)
    assert {record["image"] for record in records(tree)} == {tree.read(DIGEST).strip()}
    assert tree.plan(FLAG) == set()


def test_a_lost_file_is_made_again(tree: Tree) -> None:
    before = records(tree)
    (tree.root / SIF).unlink()
    assert set(tree.run(FLAG)) == {"build_image"} | REPORTING
    assert (tree.root / SIF).exists() and records(tree) == before


@pytest.mark.parametrize("name", [SIF, DIGEST])
def test_files_that_do_not_belong_together(name: str, tree: Tree) -> None:
    """Nothing is measured in them; nor is the image that was made last, the same file, taken for whole."""
    before, digest = records(tree), tree.read(DIGEST)
    with (tree.root / name).open("r+b") as stream:
        stream.truncate(60)
    done = tree.snakemake(FLAG, "--forcerun", RECORD)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert f"{name} is not the file that was written with" in done.stderr and f"Remove {SIF}" in done.stderr
    (tree.root / SIF).unlink()
    assert set(tree.run(FLAG)) == {"build_image"} | REPORTING
    assert (records(tree), tree.read(DIGEST)) == (before, digest)
    (tree.root / RECORD).unlink()
    assert tree.run(FLAG, RECORD) == ["measure_variant lm/bf16/1"]
    assert json.loads(tree.read(RECORD))["status"] == "ok"


def test_host_and_image_do_not_touch_each_other(tree: Tree) -> None:
    before = {path: file for path, file in tree.contents().items() if path.startswith((SCOPE, "results/image"))}
    assert tree.plan() == EVERYTHING - {"build_image"}
    record = RECORD.replace("cpu-image", "cpu")
    assert tree.run(record, HALFSTEP_IMAGE=f"sha256:{'0' * 64}") == ["measure_variant lm/bf16/1"]
    assert json.loads(tree.read(record))["image"] == "host"
    assert tree.plan(FLAG) == set()
    assert {path: file for path, file in tree.contents().items() if path in before} == before


def test_chosen_runs_are_measured_again(tree: Tree) -> None:
    listed = tree.halfstep("runs", "results/latest", "--status", "ok").stdout.split()
    assert len(listed) == len(EVERY_RUN)
    assert tree.plan("--forcerun", listed[0], FLAG) == runs("lm/fp32", replicates=1) | REPORTING


def test_results_on_another_disk(in_image: Tree, tmp_path: Path) -> None:
    """In a folder that the container does not have by itself: Snakemake gives it another home."""
    tree = in_image.copy(tmp_path / "tree")
    with tempfile.TemporaryDirectory(dir=Path.home()) as disk:
        shutil.move(tree.root / "results", f"{disk}/results")
        (tree.root / "results").symlink_to(f"{disk}/results")
        (tree.root / RECORD).unlink()
        assert tree.run(FLAG, RECORD) == ["measure_variant lm/bf16/1"]
        assert json.loads(tree.read(RECORD))["status"] == "ok"


def test_folders_that_the_site_binds(in_image: Tree, tmp_path: Path) -> None:
    """By Apptainer's older name, beside those that we bind: the scope is a link to one disk, its runs to another."""
    tree = in_image.copy(tmp_path / "tree")
    with (
        tempfile.TemporaryDirectory(dir=Path.home()) as disk,
        tempfile.TemporaryDirectory(dir=Path.home()) as another,
    ):
        for path, place in ((f"{SCOPE}/runs", f"{another}/runs"), (SCOPE, f"{disk}/scope")):
            shutil.move(tree.root / path, place)
            (tree.root / path).symlink_to(place)
        (tree.root / RECORD).unlink()
        assert tree.run(FLAG, RECORD, SINGULARITY_BIND=another) == ["measure_variant lm/bf16/1"]
        assert json.loads(tree.read(RECORD))["status"] == "ok"


@pytest.mark.parametrize("spelling", ["--use-apptainer", "--software-deployment-method=apptainer"])
def test_other_spellings(spelling: str, tree: Tree) -> None:
    assert tree.plan(spelling) == set()


def test_kill_nine_of_snakemake(tree: Tree) -> None:
    (tree.root / RECORD).unlink()
    tree.write("hang", "")
    with tree.started(FLAG, RECORD, until="hanging") as call:
        inside = [call.one("halfstep.measure.child"), call.one("-m", "halfstep", "run")]
        assert all(SIF in str(process.environ().get("APPTAINER_CONTAINER")) for process in inside)
        call.process.kill()
        call.process.wait()
        assert call.survivors() == []
    assert tree.processes() == []
    assert not (tree.root / RECORD).exists()


def test_without_nv_no_run_of_a_gpu_is_measured(base_image: str, tmp_path: Path) -> None:
    """Nor on the CPU instead; and the image is the one for GPUs."""
    tree = with_small_image(tmp_path / "tree", base_image, device="h200", replicates=1)
    command = ("snakemake", "--cores", "1", FLAG, "--singularity-args=--cleanenv")
    done = tree.call("env", "--unset=CUDA_VISIBLE_DEVICES", *command)
    assert done.returncode == 0, done.stderr
    rows = tree.rows("results/h200-image/tables/runs.csv")
    assert {row["status"] for row in rows} == {"unsupported"} and len(rows) == 2
    (reason,) = {row["reason"] for row in rows}
    assert reason.startswith("no GPU is visible in the container; --nv is missing")
    packages = json.loads(tree.read("results/image/cuda/packages.json"))
    assert packages["labels"]["target"] == "cuda"
    assert not (tree.root / "results/image/cpu").exists()


def test_the_gpus_lock_is_shared_with_the_host(base_image: str, tmp_path: Path) -> None:
    """Also where the container has a /tmp of its own."""
    tree = with_small_image(tmp_path / "tree", base_image, device="h200")
    uuid = f"GPU-{uuid4()}"
    tree.write("gpu", uuid)
    record = RECORD.replace("cpu-image", "h200-image")
    lock = GpuLock(uuid, "another study")
    try:
        assert lock.acquire()
        arguments = (FLAG, "--singularity-args=--nv --cleanenv --contain", record)
        with tree.started(*arguments, until="lm/bf16 rep1: waits for the GPU, which another study (process ") as call:
            lock.release()
            code, output = call.end()
    finally:
        lock.path.unlink()
    assert code == 0, output
    assert json.loads(tree.read(record))["gpu"]["uuid"] == uuid


def test_no_builder(tree: Tree, tmp_path: Path) -> None:
    """The call says so and ends with an error, and what was there before stays."""
    (tree.root / SIF).unlink()
    done = tree.call(
        "snakemake", "--cores", "1", FLAG, PATH=path_without(tmp_path / "bin", "docker", "podman", "buildah")
    )
    assert done.returncode == 1
    assert "No builder is on the PATH" in done.stderr and "container: {image: docker://" in done.stderr
    assert "Traceback" not in done.stderr
    assert len(records(tree)) == len(EVERY_RUN)
