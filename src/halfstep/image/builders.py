"""docker, podman and buildah: from docker/Dockerfile to an archive of the image."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from halfstep.image.commands import CommandError, ImageError, ask, free_gib, on_path, run

BUILDERS = ("docker", "podman", "buildah")
TARGETS = ("cpu", "cuda")
DOCKERFILE = Path("docker/Dockerfile")
# what the builder's store takes while it builds, and the image as an archive (GiB), both rounded up
STORE_GIB = {"cpu": 8, "cuda": 20}
ARCHIVE_GIB = {"cpu": 6, "cuda": 8}
PRUNE = {"docker": "docker image prune", "podman": "podman image prune", "buildah": "buildah rmi --prune"}
NO_BASE = re.compile(
    r"manifest unknown|manifest for \S+ not found|not found: manifest|pull access denied|repository does not exist"
    r"|requested access to the resource is denied|image not known|no such image|: not found$"
    r"|did not resolve to an alias",
    re.IGNORECASE | re.MULTILINE,
)
IN_THE_STORE = "localhost/"  # what podman and buildah call an image that no registry has
ELSE = (
    "or name a published image in config.yaml (container: {image: docker://…@sha256:…}), "
    "or leave --use-singularity out, and everything runs on the host"
)


def choose(builder: str) -> str:
    """The builder that is asked for, or with `auto` the first that is there and works.

    Raises:
        ImageError: it is not there, or its daemon does not answer.
    """
    if builder != "auto":
        if not on_path(builder):
            raise ImageError(
                f"container.builder is {builder!r}, and there is no {builder} on the PATH: install it, or name one of "
                f"{', '.join(BUILDERS)} that is there, {ELSE}."
            )
        if trouble := _trouble(builder):
            raise ImageError(f"{trouble}, {ELSE}.")
        return builder
    there = [name for name in BUILDERS if on_path(name)]
    if not there:
        raise ImageError(
            f"No builder is on the PATH: the image is built by docker, podman or buildah. Install one of them, {ELSE}."
        )
    troubles = {name: _trouble(name) for name in there}
    for name, trouble in troubles.items():
        if trouble is None:
            return name
    raise ImageError(f"{'; '.join(filter(None, troubles.values()))}, {ELSE}.")


def build(builder: str, target: str, build_args: Mapping[str, str], folder: Path, log: Path) -> str:
    """Build a target of docker/Dockerfile, with what earlier builds left in the builder's cache; the image's ID.

    Raises:
        ImageError: it cannot be built.
    """
    id_file = folder / "id"
    command = [builder, "build", "--target", target, "--tag", f"halfstep:{target}", "--iidfile", str(id_file)]
    if builder != "docker":  # which does so anyway
        command.append("--layers")
    for name, value in build_args.items():
        command += ["--build-arg", f"{name}={value}"]
    try:
        run([*command, "--file", str(DOCKERFILE), "."], log)
    except CommandError as error:
        raise _explained(error, builder, target, build_args.get("BASE_IMAGE"), log) from error
    return id_file.read_text(encoding="utf-8").strip()


def save(builder: str, image: str, target: str, archive: Path, log: Path) -> None:
    """Write an image to a file in the form of `docker save`.

    Raises:
        ImageError: it cannot be written.
    """
    commands = {
        "docker": ["docker", "save", "--output", str(archive), image],
        "podman": ["podman", "save", "--format", "docker-archive", "--output", str(archive), image],
        "buildah": ["buildah", "push", "--quiet", image, f"docker-archive:{archive}"],
    }
    try:
        run(commands[builder], log)
    except CommandError as error:
        if not error.no_space:
            raise
        raise ImageError(
            f"The disk is full: the image of the target {target} takes about {ARCHIVE_GIB[target]} GiB as an archive, "
            f"and {free_gib(archive.parent):.1f} GiB are free in {archive.parents[1]}{_layers(builder, target)}. "
            "Make room there."
        ) from error


def _trouble(builder: str) -> str | None:
    """Why a builder that is installed cannot build: docker needs a daemon, the others need none."""
    if builder != "docker":
        return None
    answer = ask(["docker", "version", "--format", "{{.Server.Version}}"])
    if answer.returncode == 0:
        return None
    if "permission denied" in answer.stderr.lower():
        return (
            "docker's daemon does not let this user in: join the group docker (usermod -aG docker USER, log in again)"
        )
    said = [line.strip() for line in answer.stderr.splitlines() if line.strip()] or ["it says nothing"]
    return f"docker is installed, and its daemon does not answer ({said[0]}): start it (systemctl start docker)"


def _explained(error: CommandError, builder: str, target: str, base: str | None, log: Path) -> ImageError:
    if error.no_space:
        store = _store(builder)
        elsewhere = "move the store" if builder == "docker" else "move the store or TMPDIR"
        return ImageError(
            f"The disk is full: building the target {target} takes up to {STORE_GIB[target]} GiB in {builder}'s store "
            f"{store}, where {free_gib(store):.1f} GiB are free{_layers(builder, target)}. Make room there "
            f"(`{PRUNE[builder]}` removes images without a name), or {elsewhere}."
        )
    named = f"The base image {base}" if base else f"The base image that {DOCKERFILE} names"
    if base and base.startswith(IN_THE_STORE) and IN_THE_STORE.rstrip("/") in (error.network or ""):
        return ImageError(
            f"{named} is not in {builder}'s store: see `{builder} images`, and name another in "
            "container.build_args.BASE_IMAGE."
        )
    if error.network:
        return ImageError(
            f"The build needs the network, and it did not answer: {error.network}. Build where there is one, such as a "
            "cluster's login node, or through a proxy (http_proxy, https_proxy); a base image that can be reached here "
            f"is named in container.build_args.BASE_IMAGE. The whole output is in {log}."
        )
    if NO_BASE.search(error.output):
        return ImageError(
            f"{named} was not found: {error} Name another in container.build_args.BASE_IMAGE, or log in to its "
            f"registry ({builder} login)."
        )
    return error


def _layers(builder: str, target: str) -> str:
    """Where podman and buildah put each layer on its way into the store and out of it; one is most of the image."""
    if builder == "docker":
        return ""
    work = Path(os.environ.get("TMPDIR") or "/var/tmp")
    return f", and a layer up to {ARCHIVE_GIB[target]} GiB in {work} (TMPDIR), where {free_gib(work):.1f} GiB are free"


def _store(builder: str) -> Path:
    """Where a builder keeps its images."""
    formats = {
        "docker": ["info", "--format", "{{.DockerRootDir}}"],
        "podman": ["info", "--format", "{{.Store.GraphRoot}}"],
        "buildah": ["info", "--format", "{{.store.GraphRoot}}"],
    }
    answer = ask([builder, *formats[builder]])
    return Path(answer.stdout.strip() or "/var/lib")
