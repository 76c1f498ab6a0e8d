"""A small scope, a source and their archive, for the tests of archiving and verifying."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from zipfile import ZipFile

import pytest

from halfstep.archive import make, packing

PROJECT = Path(__file__).parents[3]
FILES = ("Snakefile", "CITATION.cff", "LICENSE", "requirements.lock", "requirements-train.lock", "docker/Dockerfile")
COMPARISON = {
    "workload": "vit_huge",
    "baseline": "eager",
    "variants": {
        "fp32": {"precision": "fp32", "batch": 128},
        "eager": {"precision": "bf16", "batch": 128},
        "blocks": {"precision": "bf16", "compile": "blocks", "batch": 128},
    },
}
CONFIG: dict[str, Any] = {"title": "A small study", "replicates": 2, "comparisons": {"vit": COMPARISON}}


def make_source(root: Path) -> Path:
    """A source that has what an archive needs of one."""
    for name in FILES:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(PROJECT / name, root / name)
    (root / "src/halfstep").mkdir(parents=True)
    (root / "src/halfstep/code.py").write_text("# a source\n")
    (root / "run.sh").write_text("#!/bin/sh\n")
    (root / "run.sh").chmod(0o755)
    (root / "config.yaml").write_text("title: A small study\nreplicates: 2\ncomparisons:\n  vit:\n" + VARIANTS)
    return root


VARIANTS = """\
    workload: vit_huge
    baseline: eager
    variants:
      fp32: {precision: fp32, batch: 128}
      eager: {precision: bf16, batch: 128}
      blocks: {precision: bf16, compile: blocks, batch: 128}
"""


def git(root: Path, *arguments: str) -> str:
    who = ("-c", "user.name=Ada", "-c", "user.email=ada@example.org")
    done = subprocess.run(["git", "-C", root, *who, *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def make_small_scope(scopes: SimpleNamespace, folder: Path) -> Path:
    """`results/h200` below a folder: two variants measured, one out of memory."""
    scope_dir = folder / "results" / "h200"
    scopes.make(scope_dir, CONFIG, scopes.behaviour)
    return scope_dir


def archived(scope_dir: Path, source: Path, out: Path, **arguments: Any) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(make, "ROOT", source)
        make.archive(scope_dir, out, **arguments)
    return out


def members(archive: Path) -> dict[str, bytes]:
    with ZipFile(archive) as packed:
        return {name: packed.read(name) for name in packed.namelist() if not name.endswith("/")}


@contextmanager
def changed(archive: Path, out: Path, sums: bool = True) -> Iterator[Path]:
    """The folder of an archive's members; what is done to it is packed again, with fitting checksums if asked."""
    folder = out.with_suffix("")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    assert packing.unpack(archive, folder) == {}
    yield folder
    if sums:
        (folder / "SHA256SUMS").write_text(packing.sums(folder), encoding="utf-8")
    packing.pack(folder, out)


def replaced(text: Mapping[str, str], path: Path) -> None:
    """Replace what stands in a file at least once."""
    content = path.read_text(encoding="utf-8")
    for old, new in text.items():
        assert old in content, f"{path} holds no {old!r}"
        content = content.replace(old, new)
    path.write_text(content, encoding="utf-8")
