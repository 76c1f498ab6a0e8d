"""What can be wrong with an image's build ends in a sentence with the remedy; nothing half made is left."""

from __future__ import annotations

import fcntl
import json
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from registry import serving
from small_image import DIGEST, SIF, path_without, with_small_image
from tree import Tree, clean_environment

pytestmark = pytest.mark.image
FOLDER = "results/image/cpu"
MAKE = ("python3", "-m", "halfstep", "image", "cpu", FOLDER)


@pytest.fixture
def tree(base_image: str, tmp_path: Path) -> Tree:
    return with_small_image(tmp_path / "tree", base_image)


def container(tree: Tree, **keys: object) -> None:
    """Another `container:` in the study."""
    text = tree.read("config.yaml")
    tree.write("config.yaml", text[: text.index("container:")] + f"container: {json.dumps(keys)}\n")


def trouble(tree: Tree, *parts: str, command: tuple[str, ...] = MAKE, **environment: str) -> None:
    """The command ends with a sentence that has these parts, and leaves nothing but its log and its lock."""
    done = tree.call(*command, **{"PYTHONPATH": "src", **environment})
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    sentence = done.stderr.splitlines()[-1]
    assert [part for part in parts if part not in sentence] == [], sentence
    assert {path.name for path in (tree.root / FOLDER).glob("*")} <= {"build.log", ".lock"}


def stand_in_builder(folder: Path, name: str, script: str) -> str:
    """A PATH on which a builder comes first that fails as no real one can be made to fail here."""
    folder.mkdir()
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)
    return f"{folder}:{clean_environment()['PATH']}"


@pytest.mark.skipif(shutil.which("docker") is None, reason="docker's client is not on the PATH")
def test_no_daemon(tree: Tree, tmp_path: Path) -> None:
    container(tree, builder="docker")
    parts = (
        "its daemon does not answer (Cannot connect to the Docker daemon at unix:///",
        "start it",
        "container: {image:",
    )
    trouble(tree, *parts, DOCKER_HOST=f"unix://{tmp_path}/none.sock")


def test_a_daemon_that_lets_nobody_in(tree: Tree, tmp_path: Path) -> None:
    container(tree, builder="docker")
    said = "permission denied while trying to connect to the Docker daemon socket at unix:///var/run/docker.sock"
    path = stand_in_builder(tmp_path / "bin", "docker", f"echo '{said}' >&2; exit 1")
    trouble(tree, "does not let this user in", "usermod -aG docker", PATH=path)


def test_a_builder_that_is_not_there(tree: Tree, tmp_path: Path) -> None:
    container(tree, builder="podman")
    path = path_without(tmp_path / "bin", "podman")
    trouble(tree, "container.builder is 'podman', and there is no podman on the PATH", PATH=path)


@pytest.mark.parametrize(
    ("base", "parts"),
    [
        ("registry.invalid/base:1", ("needs the network", "registry.invalid", "http_proxy", "build.log")),
        ("localhost/no-such-image:1", ("localhost/no-such-image:1 is not in buildah's store", "buildah images")),
        ("no-such-image", ("The base image no-such-image was not found", "container.build_args.BASE_IMAGE")),
    ],
)
def test_no_base_image(base: str, parts: tuple[str, ...], tree: Tree) -> None:
    container(tree, builder="buildah", build_args={"BASE_IMAGE": base})
    trouble(tree, *parts)


def test_a_registry_without_the_base_image(tree: Tree, tmp_path: Path) -> None:
    with serving(tmp_path) as address:
        registries = tmp_path / "registries.conf"
        registries.write_text(f'[[registry]]\nlocation = "{address}"\ninsecure = true\n')
        container(tree, builder="buildah", build_args={"BASE_IMAGE": f"{address}/base:1"})
        parts = (f"The base image {address}/base:1 was not found", "manifest unknown", "buildah login")
        trouble(tree, *parts, CONTAINERS_REGISTRIES_CONF=str(registries))


@pytest.mark.parametrize(
    ("command", "parts"),
    [
        (
            "apt-get update -o Acquire::Retries=0 && apt-get install -y no-such-package",
            ("needs the network", "deb.invalid"),
        ),
        ("echo 'error: no kernel image'; exit 3", ("buildah ended with exit code", "build.log")),
    ],
)
def test_a_build_that_fails(command: str, parts: tuple[str, ...], tree: Tree) -> None:
    source = "echo 'deb http://deb.invalid/debian bookworm main' > /etc/apt/sources.list"
    tree.write("docker/Dockerfile", f"ARG BASE_IMAGE\nFROM ${{BASE_IMAGE}} AS cpu\nRUN {source} && {command}\n")
    trouble(tree, *parts)


def test_an_image_without_python(tree: Tree) -> None:
    tree.write("docker/Dockerfile", "FROM scratch AS cpu\nCOPY docker/Dockerfile /\n")
    trouble(tree, "python3 does not run in it")


@pytest.fixture
def on_a_small_disk(tmp_path: Path) -> Callable[[Path, str], tuple[str, ...]]:
    """A command that runs with a file system of a size at a folder, which no other process sees."""

    def command(folder: Path, size: str) -> tuple[str, ...]:
        folder.mkdir(parents=True, exist_ok=True)
        return (
            "unshare",
            "--mount",
            "sh",
            "-c",
            f"mount -t tmpfs -o size={size} tmpfs '{folder}' && exec {' '.join(MAKE)}",
        )

    return command


def test_no_room_to_unpack(tree: Tree, tmp_path: Path, on_a_small_disk: Callable[[Path, str], tuple[str, ...]]) -> None:
    work = tmp_path / "work"
    parts = (
        "Apptainer needs about 0.",
        f"GiB in {work} (APPTAINER_TMPDIR), where 0.0 GiB are free",
        "Set APPTAINER_TMPDIR",
    )
    trouble(tree, *parts, command=on_a_small_disk(work, "20m"), APPTAINER_TMPDIR=str(work))


def test_no_room_for_the_image(tree: Tree, on_a_small_disk: Callable[[Path, str], tuple[str, ...]]) -> None:
    folder = tree.root / FOLDER
    parts = ("The disk is full", "GiB as an archive", f"GiB are free in {FOLDER}")
    trouble(tree, *parts, command=on_a_small_disk(folder, "20m"))


def test_no_room_in_the_builders_store(
    tree: Tree, base_image: str, tmp_path: Path, on_a_small_disk: Callable[[Path, str], tuple[str, ...]]
) -> None:
    store = tmp_path / "store"
    there = subprocess.run(["buildah", "info", "--format", "{{.store.GraphRoot}}"], capture_output=True, text=True)
    conf = tmp_path / "storage.conf"
    conf.write_text(
        f'[storage]\ndriver = "overlay"\ngraphroot = "{store}/graph"\nrunroot = "{store}/run"\n'
        f'[storage.options]\nadditionalimagestores = ["{there.stdout.strip()}"]\n'
    )
    tree.edit("docker/Dockerfile", "ENV PATH", "RUN head --bytes 30M /dev/urandom > /random\nENV PATH")
    container(tree, builder="buildah", build_args={"BASE_IMAGE": base_image})
    parts = ("The disk is full", f"in buildah's store {store}/graph, where 0.0 GiB are free", "buildah rmi --prune")
    trouble(tree, *parts, command=on_a_small_disk(store, "20m"), CONTAINERS_STORAGE_CONF=str(conf))


def test_no_room_for_a_layer(
    tree: Tree, base_image: str, tmp_path: Path, on_a_small_disk: Callable[[Path, str], tuple[str, ...]]
) -> None:
    """Of which buildah says no more than that a pipe was closed."""
    work = tmp_path / "work"
    container(tree, builder="buildah", build_args={"BASE_IMAGE": base_image})
    tree.edit("docker/Dockerfile", "ENV PATH", "RUN head --bytes 30M /dev/urandom > /random\nENV PATH")
    parts = ("The disk is full", f"GiB in {work} (TMPDIR), where 0.0 GiB are free", "move the store or TMPDIR")
    trouble(tree, *parts, command=on_a_small_disk(work, "10m"), TMPDIR=str(work))


def test_nowhere_to_unpack(tree: Tree, tmp_path: Path) -> None:
    parts = (f"unpacked in {tmp_path}/none (APPTAINER_TMPDIR), and there is no such folder",)
    trouble(tree, *parts, APPTAINER_TMPDIR=f"{tmp_path}/none")


def test_a_folder_that_cannot_be_written(tree: Tree) -> None:
    (tree.root / "results").mkdir()
    tree.write("results/image", "")
    trouble(tree, "The image cannot be written: results/image/cpu: Not a directory")


def test_an_apptainer_that_is_killed_leaves_nothing(tree: Tree, tmp_path: Path) -> None:
    """As the kernel does when memory runs out; what it unpacked is gigabytes."""
    work = tmp_path / "work"
    work.mkdir()
    environment = {**clean_environment(), "PYTHONPATH": "src", "APPTAINER_TMPDIR": str(work)}
    with subprocess.Popen(MAKE, cwd=tree.root, env=environment, stderr=subprocess.PIPE, text=True) as make:
        while not list(work.glob("*/*")):
            assert make.poll() is None
        for child in psutil.Process(make.pid).children():
            child.kill()
        _, said = make.communicate()
    assert make.returncode == 2 and "apptainer was killed by SIGKILL" in said, said
    assert list(work.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM])
def test_a_call_that_is_ended_leaves_nothing(number: signal.Signals, tree: Tree, tmp_path: Path) -> None:
    """As when its terminal is lost."""
    work = tmp_path / "work"
    work.mkdir()
    environment = {**clean_environment(), "PYTHONPATH": "src", "APPTAINER_TMPDIR": str(work)}
    # under nohup SIGHUP would be ignored, and rightly
    listening = ("env", f"--default-signal={number.name.removeprefix('SIG')}", *MAKE)
    with subprocess.Popen(listening, cwd=tree.root, env=environment, stderr=subprocess.PIPE, text=True) as make:
        while not list(work.glob("*/*")):
            assert make.poll() is None
        make.send_signal(number)
        _, said = make.communicate()
    assert make.returncode == 128 + number and "Traceback" not in said, said
    assert list(work.iterdir()) == []
    assert {path.name for path in (tree.root / FOLDER).iterdir()} == {"build.log", ".lock"}


def test_another_call_is_waited_for(tree: Tree) -> None:
    (tree.root / FOLDER).mkdir(parents=True)
    container(tree, builder="buildah", build_args={"BASE_IMAGE": "no-such-image"})
    with (tree.root / FOLDER / ".lock").open("w") as lock:
        lock.write("1234 on a.node")
        lock.flush()
        fcntl.flock(lock, fcntl.LOCK_EX)
        environment = {**clean_environment(), "PYTHONPATH": "src"}
        with subprocess.Popen(MAKE, cwd=tree.root, env=environment, stderr=subprocess.PIPE, text=True) as make:
            assert make.stderr is not None
            assert "process 1234 on a.node makes it already, and is waited for" in make.stderr.readline()
            assert make.poll() is None and not (tree.root / FOLDER / "build.log").exists()
            fcntl.flock(lock, fcntl.LOCK_UN)
            _, said = make.communicate()
    assert make.returncode == 2 and "was not found" in said, said


def test_what_a_killed_call_left_is_removed(tree: Tree) -> None:
    left = tree.root / FOLDER / ".unfinished-abc"
    left.mkdir(parents=True)
    (left / "image.tar").write_text("half of it")
    container(tree, builder="buildah", build_args={"BASE_IMAGE": "no-such-image"})
    trouble(tree, "was not found")


@pytest.fixture(scope="module")
def published(base_image: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small image as a registry has it."""
    folder = tmp_path_factory.mktemp("published")
    tree = with_small_image(folder / "tree", base_image)
    build = f"buildah build --layers --build-arg BASE_IMAGE={base_image} --target cpu --iidfile id"
    push = f"buildah push --quiet $(cat id) oci:{folder}/layout:it"
    done = tree.call("sh", "-c", f"{build} --file docker/Dockerfile . && {push}")
    assert done.returncode == 0, done.stderr
    return folder / "layout"


def test_a_published_image(published: Path, tree: Tree) -> None:
    (manifest,) = json.loads((published / "index.json").read_text())["manifests"]
    with serving(published) as address:
        name = f"docker://{address}/halfstep@{manifest['digest']}"
        container(tree, image=name)
        done = tree.call(*MAKE, PYTHONPATH="src", APPTAINER_NOHTTPS="1")
        assert done.returncode == 0, done.stderr
        assert tree.read(DIGEST).strip() == manifest["digest"]
        packages = json.loads(tree.read(f"{FOLDER}/packages.json"))
        assert packages["source"] == name and "typer" in packages["python"]
        assert (tree.root / SIF).exists()

        container(tree, image=f"docker://{address}/halfstep@sha256:{'0' * 64}")
        shutil.rmtree(tree.root / FOLDER)
        parts = ("could not be fetched", "manifest unknown", "See whether container.image names it rightly")
        trouble(tree, *parts, APPTAINER_NOHTTPS="1")


def test_a_published_image_out_of_reach(tree: Tree) -> None:
    container(tree, image=f"docker://registry.invalid/halfstep@sha256:{'0' * 64}")
    trouble(tree, "could not be fetched, since the network did not answer", "registry.invalid", "http_proxy")
