"""Apptainer or Singularity: from an archive or a published image to one file, and what is in it."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from halfstep.image.commands import CommandError, ImageError, ask, free_gib, on_path, run

# it is read once per process, so that packing it fast counts for more than packing it small
PACKING = "-comp gzip -Xcompression-level 1"
HEAD = 2**20  # bytes
UNPACKING = "halfstep-image-"  # how the folder's name begins that this happens in
UNPACKED = 2.2  # what unpacking and packing again takes for the time being, as a multiple of the archive


def apptainer() -> str:
    """The command that runs containers here.

    Raises:
        ImageError: there is none.
    """
    found = on_path("apptainer", "singularity")
    if found is None:
        raise ImageError(
            "--use-singularity runs the study in a container, and neither apptainer nor singularity is on the PATH: "
            "install one of them, load its module (module load apptainer), or leave the flag out, and everything runs "
            "on the host."
        )
    return found


def convert(source: str, size_gib: float | None, sif: Path, log: Path) -> None:
    """Make a SIF of `docker-archive:FILE`, of a size that is known, or of `docker://NAME@DIGEST`.

    Raises:
        ImageError: it cannot be made.
    """
    command = apptainer()
    work, name = unpacking_place()
    if not work.is_dir():
        raise ImageError(f"The image is to be unpacked in {work} ({name}), and there is no such folder: make it.")
    if size_gib is not None and (needed := UNPACKED * size_gib) > free_gib(work):
        raise _full(needed)
    prefix = command.upper()
    try:
        # in a folder of our own: an Apptainer that is killed leaves gigabytes behind
        with tempfile.TemporaryDirectory(dir=work, prefix=UNPACKING, ignore_cleanup_errors=True) as unpacked:
            variables = {f"{prefix}_TMPDIR": unpacked, f"{prefix}_MKSQUASHFS_ARGS": PACKING}
            # not into the cache under HOME, where nothing would use it again
            run([command, "build", "--disable-cache", str(sif), source], log, variables)
    except CommandError as error:
        if error.no_space:
            raise _full(UNPACKED * size_gib if size_gib else None, sif.parents[2]) from error
        if error.network:
            raise ImageError(
                f"{source} could not be fetched, since the network did not answer: {error.network}. Fetch it where "
                "there is one, such as a cluster's login node, or through a proxy (http_proxy, https_proxy)."
            ) from error
        if source.startswith("docker://"):
            raise ImageError(
                f"{source} could not be fetched: {error} See whether container.image names it rightly, and whether its "
                f"registry wants a login ({command} registry login)."
            ) from error
        raise


def contents(sif: Path) -> dict[str, Any]:
    """What is in it, asked inside: distribution, tools, Python and Debian packages with their versions, labels.

    Raises:
        ImageError: it does not run here, or has no Python.
    """
    command = apptainer()
    script = Path(__file__).with_name("contents.py").read_text(encoding="utf-8")
    # -I: nothing of the folder that we are in
    answer = ask([command, "--quiet", "exec", "--cleanenv", str(sif), "python3", "-I", "-"], script)
    if answer.returncode != 0:
        said = answer.stderr.strip().splitlines() or [f"exit code {answer.returncode}"]
        raise ImageError(f"The image is built, and python3 does not run in it ({sif}): {said[-1]}")
    labels = ask([command, "inspect", "--json", "--labels", str(sif)])
    found = json.loads(labels.stdout)["data"]["attributes"]["labels"] if labels.returncode == 0 else {}
    # the date of this conversion and the tool's version are the SIF's, not the image's
    own = {name: value for name, value in found.items() if not name.startswith("org.label-schema.")}
    return {"labels": own, **json.loads(answer.stdout)}


def identity(sif: Path) -> dict[str, Any]:
    """What tells one file from another without reading gigabytes: its size (bytes) and a hash of its head.

    Apptainer writes an ID into the head, another with every file that it makes.

    Raises:
        OSError: it cannot be read.
    """
    with sif.open("rb") as stream:
        head = hashlib.sha256(stream.read(HEAD)).hexdigest()
    return {"bytes": sif.stat().st_size, "head_sha256": head}


def unpacking_place() -> tuple[Path, str]:
    """The folder that images are unpacked in, and the variable that says so: Apptainer heeds its older name's too."""
    names = (f"{apptainer().upper()}_TMPDIR", "SINGULARITY_TMPDIR", "TMPDIR")
    name = next((name for name in names if os.environ.get(name)), None)
    return (Path(os.environ[name]), name) if name else (Path("/tmp"), "by default")


def _full(needed: float | None, folder: Path | None = None) -> ImageError:
    need = f"{needed:.1f} GiB" if needed else "two to three times the image's size"
    work, name = unpacking_place()
    where = f"{work} ({name}), where {free_gib(work):.1f} GiB are free"
    beside = f", and room for the SIF in {folder}, where {free_gib(folder):.1f} GiB are" if folder else ""
    return ImageError(
        f"The disk is full: to make a SIF of the image, Apptainer needs about {need} in {where}{beside}. "
        f"Set {apptainer().upper()}_TMPDIR to a folder on a disk with more room."
    )
