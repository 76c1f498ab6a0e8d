"""The zip file of an archive: its bytes follow from its members, every other byte is noticed, and none does harm."""

from __future__ import annotations

import io
import os
import shutil
import stat
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from halfstep.archive import packing
from halfstep.archive.packing import DATE, Refused

SOURCES = Path(packing.__file__).parents[2]
FILES = {"SHA256SUMS": "x  y\n", "results/a/b.csv": "1,2\n3,4\n", "source/run.sh": "#!/bin/sh\n", "results/é.txt": "é"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        path = tmp_path / "folder" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    (tmp_path / "folder/source/run.sh").chmod(0o700)
    return tmp_path / "folder"


@pytest.fixture
def archive(folder: Path, tmp_path: Path) -> Path:
    packing.pack(folder, tmp_path / "a.zip")
    return tmp_path / "a.zip"


def noticed(archive: Path, work: Path) -> str:
    """What is wrong with an archive by its bytes alone; empty if nothing is."""
    unpacked, again = work / "unpacked", work / "again.zip"
    shutil.rmtree(unpacked, ignore_errors=True)
    unpacked.mkdir()
    try:
        damaged = packing.unpack(archive, unpacked)
    except Refused as error:
        return str(error)
    if damaged:
        return "; ".join(f"{name}: {why}" for name, why in damaged.items())
    packing.pack(unpacked, again)
    return packing.first_difference(archive, again) or ""


def test_unpacking_gives_what_was_packed(archive: Path, folder: Path, tmp_path: Path) -> None:
    assert noticed(archive, tmp_path) == ""
    unpacked = tmp_path / "unpacked"
    assert {str(path.relative_to(unpacked)) for path in unpacked.rglob("*") if path.is_file()} == set(FILES)
    assert all((unpacked / name).read_text(encoding="utf-8") == text for name, text in FILES.items())
    assert stat.S_IMODE((unpacked / "source/run.sh").stat().st_mode) == 0o755
    assert stat.S_IMODE((unpacked / "results/a/b.csv").stat().st_mode) == 0o644


def test_other_tools_read_it(archive: Path) -> None:
    with zipfile.ZipFile(archive) as packed:
        assert packed.testzip() is None
        assert set(packed.namelist()) == {*FILES, "results/", "results/a/", "source/"}


def test_the_same_files_give_the_same_bytes(archive: Path, folder: Path, tmp_path: Path) -> None:
    """Whatever their times, permissions and order on the disk, and the umask."""
    other = tmp_path / "other"
    for name in reversed(FILES):
        (other / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(folder / name, other / name)
        (other / name).chmod(0o777 if name.startswith("source/") else 0o600)
        os.utime(other / name, (10**9, 10**9))
    before = os.umask(0o077)
    try:
        packing.pack(other, tmp_path / "b.zip")
    finally:
        os.umask(before)
    assert (tmp_path / "b.zip").read_bytes() == archive.read_bytes()


@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13"])
def test_every_python_gives_the_same_bytes(version: str, archive: Path, folder: Path, tmp_path: Path) -> None:
    python = sys.executable if sys.version.startswith(f"{version}.") else shutil.which(f"python{version}")
    if python is None or subprocess.run([python, "-c", ""], capture_output=True, check=False).returncode:
        pytest.skip(f"no Python {version} is here")
    program = (
        "import pathlib, sys; from halfstep.archive import packing; packing.pack(*map(pathlib.Path, sys.argv[1:]))"
    )
    environment = {**os.environ, "PYTHONPATH": str(SOURCES)}
    subprocess.run([python, "-c", program, folder, tmp_path / "b.zip"], env=environment, check=True)
    assert (tmp_path / "b.zip").read_bytes() == archive.read_bytes()


def test_every_changed_byte_is_noticed(archive: Path, tmp_path: Path) -> None:
    """In the members, their headers, the list at the end: each byte, in one of several ways."""
    data, changed = archive.read_bytes(), tmp_path / "changed.zip"
    for place, byte in enumerate(data):
        flip = (0x01, 0x80, 0x20, 0xFF)[place % 4]
        changed.write_bytes(data[:place] + bytes([byte ^ flip]) + data[place + 1 :])
        assert noticed(changed, tmp_path), (place, flip)


@pytest.mark.parametrize("name", FILES)
def test_a_changed_byte_of_a_member_names_the_member(name: str, archive: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(archive) as packed:
        entry = packed.getinfo(name)
    data = bytearray(archive.read_bytes())
    start = entry.header_offset + 30 + len(name.encode())
    for place in range(start, start + entry.file_size):
        data[place] ^= 0x10
        archive.write_bytes(data)
        assert noticed(archive, tmp_path) == f"{name}: Bad CRC-32 for file {name!r}"
        data[place] ^= 0x10


def test_what_is_put_before_behind_or_cut_off_is_noticed(archive: Path, tmp_path: Path) -> None:
    data, changed = archive.read_bytes(), tmp_path / "changed.zip"
    for other in (b"MZ" + data, data + b"\0", data + data, b"", *(data[:cut] for cut in range(0, len(data), 9))):
        changed.write_bytes(other)
        assert noticed(changed, tmp_path), len(other)


def entry(name: str, mode: int = stat.S_IFREG | 0o644, compression: int = zipfile.ZIP_STORED) -> zipfile.ZipInfo:
    found = zipfile.ZipInfo(name, DATE)
    found.create_system, found.external_attr, found.compress_type = 3, mode << 16, compression
    return found


def write(path: Path, *members: tuple[zipfile.ZipInfo, bytes]) -> Path:
    with zipfile.ZipFile(path, "w") as packed:
        for info, content in members:
            packed.writestr(info, content)
    return path


HOSTILE: dict[str, tuple[Callable[[Path], Path], str]] = {
    **{
        f"named {name}": (lambda path, name=name: write(path, (entry(name), b"x")), "outside")
        for name in ("../evil", "/etc/evil", "a/../../evil", "a//evil", "./evil", "..")
    },
    "a backslash": (lambda path: write(path, (entry("..\\evil"), b"x")), "no name that halfstep gives"),
    "a drive": (lambda path: write(path, (entry("c:evil"), b"x")), "no name that halfstep gives"),
    "a repository": (lambda path: write(path, (entry("source/.git/config"), b"x")), "would be run by git"),
    "a line break": (lambda path: write(path, (entry("a\nevil"), b"x")), "no name that halfstep gives"),
    "a long name": (lambda path: write(path, (entry("evil" * 100), b"x")), "too long"),
    "a link": (lambda path: write(path, (entry("a", stat.S_IFLNK | 0o777), b"/etc/passwd")), "that is a link"),
    "a device": (lambda path: write(path, (entry("a", stat.S_IFCHR | 0o666), b"")), "neither a file nor a folder"),
    "a folder that is a file": (lambda path: write(path, (entry("a/", stat.S_IFREG), b"")), "neither a file nor"),
    "a bomb": (lambda path: write(path, (entry("a", compression=zipfile.ZIP_DEFLATED), b"0" * 10**7)), "compressed"),
    "a name twice": (lambda path: write(path, (entry("a"), b"x"), (entry("a"), b"y")), "two members named 'a'"),
    "a file as a folder": (lambda path: write(path, (entry("a"), b"x"), (entry("a/b"), b"y")), "folder of the other"),
    "overlapping members": (lambda path: overlapping(path), "larger than itself"),
    "no zip file": (lambda path: path.write_bytes(b"PK" + bytes(100)) and path, "not a whole zip file"),
}


def overlapping(path: Path) -> Path:
    """Many entries of the list lead to one member, so that it would be written again and again."""
    write(path, *((entry(f"{n:03}"), b"x" * (5000 if n == 0 else 0)) for n in range(50)))
    with zipfile.ZipFile(path) as packed:
        first, *rest = packed.infolist()
        for other in rest:
            other.header_offset, other.CRC = first.header_offset, first.CRC
            other.file_size = other.compress_size = first.file_size
        stream = io.BytesIO(path.read_bytes()[: packed.start_dir])
        stream.seek(0, io.SEEK_END)
        again = zipfile.ZipFile(path.with_suffix(".new"), "w")
        again.filelist, again._didModify = [first, *rest], True  # type: ignore[attr-defined]
        again.fp.write(stream.getvalue())  # type: ignore[union-attr]
        again.start_dir = packed.start_dir
        again.close()
    path.with_suffix(".new").replace(path)
    return path


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_archive_is_refused_with_a_reason_and_nothing_is_written(kind: str, tmp_path: Path) -> None:
    make, reason = HOSTILE[kind]
    target = tmp_path / "within" / "target"
    target.mkdir(parents=True)
    archive = make(tmp_path / "hostile.zip")
    with pytest.raises(Refused, match=reason):
        packing.unpack(archive, target)
    assert {path.name for path in tmp_path.rglob("*")} == {"within", "target", "hostile.zip"}


def test_too_much_is_refused_before_anything_is_unpacked(
    archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "target").mkdir()
    for limit, reason in (("MOST_MEMBERS", "has 7 members"), ("MOST_BYTES", "larger than 5 bytes")):
        with monkeypatch.context() as patch:
            patch.setattr(packing, limit, 5)
            with pytest.raises(Refused, match=reason):
                packing.unpack(archive, tmp_path / "target")
    assert list((tmp_path / "target").iterdir()) == []


def test_the_checksums_are_those_of_coreutils(folder: Path) -> None:
    (folder / "SHA256SUMS").write_text(packing.sums(folder), encoding="utf-8")
    done = subprocess.run(
        ["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=folder, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == len(FILES) - 1
