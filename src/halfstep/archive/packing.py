"""A zip file whose bytes follow from its members alone, and how one is unpacked that nobody vouches for.

Members are stored, not compressed: how well zlib compresses differs between its builds, and so would the archive. It
also means that no archive unpacks to more than its own size.
"""

from __future__ import annotations

import errno
import hashlib
import shutil
import stat
import zipfile
from pathlib import Path, PurePosixPath
from struct import error as StructError

from halfstep.archive.layout import SOURCE, SUMS

DATE = (1980, 1, 1, 0, 0, 0)  # the first that a zip file can say
PLAIN, PROGRAM = 0o644, 0o755
MOST_MEMBERS = 200_000
MOST_BYTES = 4 * 1024**3  # ten times what ten thousand runs take
LONGEST_NAME, LONGEST_PART = 1000, 255  # bytes
CHUNK = 1 << 20
UNREADABLE = (zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError, StructError, ValueError)
"""what zipfile raises for files that are none of its kind"""


class Refused(Exception):
    """The file is no archive of ours, or one that might do harm; the message says why."""


def pack(folder: Path, archive: Path) -> None:
    """Write all that is below `folder` into one zip file, in the order of the names. Only the source has programs."""
    found = {path.relative_to(folder).as_posix() + "/" * path.is_dir(): path for path in folder.rglob("*")}
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_STORED) as packed:
        for name in sorted(found):
            path = found[name]
            if path.is_dir():  # readers of RO-Crates look for the folders that it describes
                packed.writestr(_entry(name, 0, stat.S_IFDIR | PROGRAM), b"")
                continue
            program = name.startswith(f"{SOURCE}/") and path.stat().st_mode & stat.S_IXUSR
            entry = _entry(name, path.stat().st_size, stat.S_IFREG | (PROGRAM if program else PLAIN))
            with path.open("rb") as source, packed.open(entry, "w") as target:
                shutil.copyfileobj(source, target, CHUNK)


def _entry(name: str, size: int, mode: int) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(name, DATE)
    entry.create_system = 3  # Unix, wherever it is packed
    entry.external_attr = mode << 16
    entry.file_size = size
    return entry


def unpack(archive: Path, folder: Path) -> dict[str, str]:
    """Unpack into an empty folder, once it is clear that nothing can land outside it or fill the disk.

    Returns:
        By name the members that cannot be read whole, and why.

    Raises:
        Refused: it is no zip file, or holds what `pack` never writes.
    """
    try:
        with zipfile.ZipFile(archive) as packed:
            entries = packed.infolist()
            _check(entries, archive.stat().st_size)
            return {entry.filename: why for entry in entries if (why := _extract(packed, entry, folder))}
    except UNREADABLE as error:
        raise Refused(f"is not a whole zip file: {_words(error)}") from error
    except OSError as error:
        if error.errno != errno.EINVAL:  # a place before the file's beginning
            raise
        raise Refused("is not a whole zip file: it says that its members lie outside it") from error


def _check(entries: list[zipfile.ZipInfo], size: int) -> None:
    if size > MOST_BYTES:
        raise Refused(f"is larger than {MOST_BYTES:,} bytes")
    if len(entries) > MOST_MEMBERS:
        raise Refused(f"has {len(entries):,} members, and more than {MOST_MEMBERS:,} are not read")
    names: set[str] = set()
    files: set[str] = set()
    for entry in entries:
        name = entry.filename.removesuffix("/")
        if why := _bad_name(name):
            raise Refused(f"has a member named {name!r}, which {why}")
        if name in names:
            raise Refused(f"has two members named {name!r}")
        names.add(name)
        kind = stat.S_IFMT(entry.external_attr >> 16)
        if kind != (stat.S_IFDIR if entry.is_dir() else stat.S_IFREG):
            what = "a link" if kind == stat.S_IFLNK else "neither a file nor a folder"
            raise Refused(f"has a member {name!r} that is {what}")
        if not entry.is_dir():
            files.add(name)
        if entry.flag_bits & 1:
            raise Refused(f"has a member {name!r} that is encrypted")
        if entry.compress_type != zipfile.ZIP_STORED or entry.compress_size != entry.file_size:
            raise Refused(f"has a member {name!r} that is compressed, and an archive holds its members as they are")
    if sum(entry.file_size for entry in entries) > size:
        raise Refused("says that its members are larger than itself")
    for name in names:
        for parent in list(PurePosixPath(name).parents)[:-1]:
            if str(parent) in files:
                raise Refused(f"has members {str(parent)!r} and {name!r}, of which one would be a folder of the other")


def _bad_name(name: str) -> str | None:
    """Why a member cannot be unpacked under this name; None if it can."""
    if not name.isprintable() or "\\" in name or ":" in name or len(name.encode()) > LONGEST_NAME:
        return "is no name that halfstep gives"
    if name.startswith("/"):
        return "would land outside the folder that it is unpacked in"
    if any(part in ("", ".", "..") for part in name.split("/")):
        return "may land outside the folder that it is unpacked in"
    if ".git" in name.lower().split("/"):
        return "would be run by git"
    if any(len(part.encode()) > LONGEST_PART for part in name.split("/")):
        return "is too long"
    return None


def _extract(packed: zipfile.ZipFile, entry: zipfile.ZipInfo, folder: Path) -> str | None:
    """Write one member, a new file; why it cannot be read whole, if so."""
    path = folder / entry.filename
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        if entry.is_dir():
            path.mkdir(exist_ok=True)
            return None if entry.file_size == 0 else "a folder with content"
        with packed.open(entry) as source, path.open("xb") as target:
            shutil.copyfileobj(source, target, CHUNK)
        path.chmod(PROGRAM if entry.external_attr >> 16 & stat.S_IXUSR else PLAIN)
    except UNREADABLE as error:
        path.unlink(missing_ok=True)
        return _words(error)
    return None


def sums(folder: Path) -> str:
    """SHA256SUMS of all other files below a folder, as `sha256sum --check` reads it."""
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    return "".join(f"{sha256(folder / name)}  {name}\n" for name in names if name != SUMS)


def sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def first_difference(archive: Path, again: Path) -> str | None:
    """Where an archive's bytes are not those that packing its members again gives; None if they are."""
    place = 0
    with archive.open("rb") as ours, again.open("rb") as theirs:
        while (one := ours.read(CHUNK)) == (other := theirs.read(CHUNK)):
            if not one:
                return None
            place += len(one)
    place += next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    with zipfile.ZipFile(again) as packed:
        entries = sorted(packed.infolist(), key=lambda entry: entry.header_offset)
        if place >= packed.start_dir:
            return f"byte {place}, in the list of members at its end"
        entry = max((entry for entry in entries if entry.header_offset <= place), key=lambda entry: entry.header_offset)
        return f"byte {place}, in the entry of {entry.filename}"


def _words(error: Exception) -> str:
    return " ".join("".join(c if c.isprintable() else "?" for c in str(error)).split()) or type(error).__name__
