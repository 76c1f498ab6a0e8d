"""`halfstep image`: the image as one file, its digest and its bill of materials, built or fetched."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import signal
import socket
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from halfstep.image import builders, sif
from halfstep.image.commands import GIB, ImageError
from halfstep.image.settings import Container
from halfstep.records import write_json, write_text

UNFINISHED = ".unfinished-"
KEPT = "kept"
"""Folder with the image that was made last, which Snakemake does not know: it removes a rule's output before it runs
the rule anew, and what took minutes to make would be gone with a build that then fails."""
FILES = SIF, PACKAGES, DIGEST = "halfstep.sif", "packages.json", "digest"
MADE_OF = "made-of"  # the builder's ID of the image, or the name that it was fetched by
LOCK = ".lock"


def make(target: str, container: Container, folder: Path) -> None:
    """Write `halfstep.sif`, `packages.json` and `digest` to the folder, the digest last, and `build.log`.

    The digest of an image that is built is that of its configuration, which is the same for the same content,
    whatever built or packed it; of an image that is fetched it is the one it is fetched by. Where the image is the one
    that was made last, it is not made again. Who else makes one in this folder is waited for.

    Raises:
        ImageError: it cannot be built or fetched.
    """
    for number in (signal.SIGTERM, signal.SIGHUP):
        # a lost terminal and the end of a job tidy up as Ctrl-C does: gigabytes lie in TMPDIR
        if signal.getsignal(number) == signal.SIG_DFL:  # nohup ignores it
            signal.signal(number, lambda number, _: sys.exit(128 + number))
    sif.apptainer()  # it is there, before anything is built
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "build.log"
    with _alone(folder, log):
        log.write_bytes(b"")
        for left in folder.glob(f"{UNFINISHED}*"):  # by a call that was killed
            shutil.rmtree(left)
        _make(target, container, folder, log)


def _make(target: str, container: Container, folder: Path, log: Path) -> None:
    kept = folder / KEPT
    with tempfile.TemporaryDirectory(dir=folder, prefix=UNFINISHED) as work:
        if container.image is None:
            builder = builders.choose(container.builder)
            made_of = _build(builder, target, container, Path(work), log)
        else:
            made_of = container.image
        if _is_of(kept, made_of):
            _tell("it is the one that was made last", log)
        else:
            new = Path(work, KEPT)
            new.mkdir()
            if container.image is None:
                _save(builder, made_of, target, container, new, log)
            else:
                _fetch(container.image, new, log)
            (new / MADE_OF).write_text(made_of, encoding="utf-8")
            if kept.exists():
                shutil.rmtree(kept)
            new.rename(kept)
        for name in FILES:
            _link(kept / name, Path(work, name))
            Path(work, name).replace(folder / name)
    _tell((folder / DIGEST).read_text(encoding="utf-8").strip(), log)


def mismatch(folder: Path) -> str | None:
    """Why the three files in a folder are not one image; None if they are.

    A SIF that was cut short, or another that was copied over it, would be measured in under this one's name.
    """
    remedy = f"Remove {folder / SIF}, and the next call makes it anew, with the files beside it."
    try:
        found = {DIGEST: (folder / DIGEST).read_text(encoding="utf-8").strip(), SIF: sif.identity(folder / SIF)}
        packages = json.loads((folder / PACKAGES).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        return f"The image in {folder} cannot be read: {error}. {remedy}"
    said = {DIGEST: packages.get("digest"), SIF: packages.get("sif")}
    for name in found:
        if found[name] != said[name]:
            beside = f"{folder / name} is not the file that was written with {folder / PACKAGES}"
            return f"{beside}: one of them was changed, replaced or cut short. {remedy}"
    return None


def _is_of(kept: Path, made_of: str) -> bool:
    """Whether the image that was made last is this one, and whole."""
    source = kept / MADE_OF
    return source.exists() and source.read_text(encoding="utf-8") == made_of and mismatch(kept) is None


@contextmanager
def _alone(folder: Path, log: Path) -> Iterator[None]:
    """Nobody else makes an image in this folder: another call, or what one that was killed has left running."""
    with (folder / LOCK).open("a+", encoding="utf-8") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            _tell(f"process {lock.read()} makes it already, and is waited for", log)
            fcntl.flock(lock, fcntl.LOCK_EX)
        except OSError as error:  # a network's file system that has none
            _tell(f"the disk has no locks ({error.strerror}): see to it that no other call makes it", log)
        lock.truncate(0)
        lock.write(f"{os.getpid()} on {socket.gethostname()}")
        lock.flush()
        yield


def _build(builder: str, target: str, container: Container, work: Path, log: Path) -> str:
    _tell(f"building the target {target} with {builder}", log)
    given = container.build_args.model_dump(exclude_none=True)
    return builders.build(builder, target, {name: str(value) for name, value in given.items()}, work, log)


def _save(builder: str, image: str, target: str, container: Container, new: Path, log: Path) -> None:
    archive = new.with_name("image.tar")
    builders.save(builder, image, target, archive, log)
    digest = config_digest(archive)
    size = archive.stat().st_size / GIB
    _tell(f"making a SIF of its {size:.1f} GiB, which takes minutes", log)
    sif.convert(f"docker-archive:{archive}", size, new / SIF, log)
    given = container.build_args.model_dump(exclude_none=True, exclude={"BUILD_JOBS"})
    _describe(new, digest, f"{builders.DOCKERFILE}, target {target}", given)


def _fetch(image: str, new: Path, log: Path) -> None:
    _tell(f"fetching {image}", log)
    sif.convert(image, None, new / SIF, log)
    _describe(new, image.partition("@")[2], image, {})


def _describe(new: Path, digest: str, source: str, build_args: dict[str, Any]) -> None:
    packages = sif.contents(new / SIF)
    about = {"digest": digest, "source": source, "build_args": build_args, "sif": sif.identity(new / SIF)}
    write_json(new / PACKAGES, {**about, **packages})
    write_text(new / DIGEST, f"{digest}\n")


def _link(kept: Path, name: Path) -> None:
    """The same file under a second name, as new as an output of this call; a copy where a disk has no such names."""
    try:
        os.link(kept, name)
    except OSError:
        shutil.copyfile(kept, name)
    os.utime(name)


def config_digest(archive: Path) -> str:
    """The digest of an image's configuration, from an archive of the form of `docker save`.

    Raises:
        ImageError: the archive does not hold one image.
    """
    with tarfile.open(archive) as tar:
        manifest = tar.extractfile("manifest.json")
        images = json.load(manifest) if manifest else []
        config = tar.extractfile(images[0]["Config"]) if len(images) == 1 else None
        if config is None:
            raise ImageError(f"{archive} holds {len(images)} images, and should hold one.")
        return f"sha256:{hashlib.sha256(config.read()).hexdigest()}"


def _tell(what: str, log: Path) -> None:
    print(f"image: {what} ({log})", file=sys.stderr, flush=True)
