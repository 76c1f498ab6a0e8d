"""`halfstep image`: the image as one file, its digest and its bill of materials, built or fetched."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import tarfile
import tempfile
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
SIF, PACKAGES, DIGEST = "halfstep.sif", "packages.json", "digest"
MADE_OF = "made-of"  # the builder's ID of the image, or the name that it was fetched by


def make(target: str, container: Container, folder: Path) -> None:
    """Write `halfstep.sif`, `packages.json` and `digest` to the folder, the digest last, and `build.log`.

    The digest of an image that is built is that of its configuration, which is the same for the same content,
    whatever built or packed it; of an image that is fetched it is the one it is fetched by. Where the image is the one
    that was made last, it is not made again.

    Raises:
        ImageError: it cannot be built or fetched.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for left in folder.glob(f"{UNFINISHED}*"):  # by a call that was killed
        shutil.rmtree(left)
    log = folder / "build.log"
    log.write_bytes(b"")
    sif.apptainer()  # it is there, before anything is built
    kept = folder / KEPT
    with tempfile.TemporaryDirectory(dir=folder, prefix=UNFINISHED) as work:
        if container.image is None:
            builder = builders.choose(container.builder)
            made_of = _build(builder, target, container, Path(work), log)
        else:
            made_of = container.image
        if (kept / MADE_OF).exists() and (kept / MADE_OF).read_text(encoding="utf-8") == made_of:
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
        for name in (SIF, PACKAGES, DIGEST):
            _link(kept / name, Path(work, name))
            Path(work, name).replace(folder / name)
    _tell((folder / DIGEST).read_text(encoding="utf-8").strip(), log)


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
    write_json(new / PACKAGES, {"digest": digest, "source": source, "build_args": build_args, **packages})
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
