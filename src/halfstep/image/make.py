"""`halfstep image`: the image as one file, its digest and its bill of materials, built or fetched."""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
import tarfile
import tempfile
from pathlib import Path

from halfstep.image import builders, sif
from halfstep.image.commands import GIB, ImageError
from halfstep.image.settings import Container
from halfstep.records import write_json, write_text

UNFINISHED = ".unfinished-"


def make(target: str, container: Container, folder: Path) -> None:
    """Write `halfstep.sif`, `packages.json` and `digest` to the folder, the digest last, and `build.log`.

    The digest of an image that is built is that of its configuration, which is the same for the same content,
    whatever built or packed it; of an image that is fetched it is the one it is fetched by.

    Raises:
        ImageError: it cannot be built or fetched.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for left in folder.glob(f"{UNFINISHED}*"):  # by a call that was killed
        shutil.rmtree(left)
    log = folder / "build.log"
    log.write_bytes(b"")
    sif.apptainer()  # it is there, before anything is built
    with tempfile.TemporaryDirectory(dir=folder, prefix=UNFINISHED) as work:
        unfinished = Path(work, "halfstep.sif")
        if container.image is not None:
            _tell(f"fetching {container.image}", log)
            digest = container.image.partition("@")[2]
            sif.convert(container.image, None, unfinished, log)
        else:
            archive = Path(work, "image.tar")
            _build(target, container, archive, log)
            digest = config_digest(archive)
            _tell("making a SIF of it", log)
            sif.convert(f"docker-archive:{archive}", archive.stat().st_size / GIB, unfinished, log)
        packages = sif.contents(unfinished)
        unfinished.replace(folder / "halfstep.sif")
    source = container.image or f"{builders.DOCKERFILE}, target {target}"
    write_json(folder / "packages.json", {"digest": digest, "source": source, **packages})
    write_text(folder / "digest", f"{digest}\n")
    _tell(digest, log)


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


def _build(target: str, container: Container, archive: Path, log: Path) -> None:
    builder = builders.choose(container.builder)
    _tell(f"building the target {target} with {builder}", log)
    given = container.build_args.model_dump(exclude_none=True)
    image = builders.build(builder, target, {name: str(value) for name, value in given.items()}, archive.parent, log)
    builders.save(builder, image, target, archive, log)


def _tell(what: str, log: Path) -> None:
    print(f"image: {what} ({log})", file=sys.stderr, flush=True)
