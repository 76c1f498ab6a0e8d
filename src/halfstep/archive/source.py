"""The source that results are archived with: its commit and what was changed since, or, without git, as it is."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import subprocess
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path

from halfstep.mistakes import StudyError

# Files that git does not know count where they can be part of a measurement; what else lies about is nobody's business.
NEW_FILES_IN = ("src", "rules", "docker", "profiles", "Snakefile")
# without git, as .gitignore has it; so is what begins with a dot, but for these
LEFT_OUT = ("results", "build", "dist", "__pycache__")
DOTTED = (".ci", ".gitignore", ".dockerignore")


@dataclass(frozen=True)
class Source:
    """Which source it is; without git it has no commit, and `diff` is empty."""

    root: Path
    commit: str | None
    diff: bytes

    @property
    def words(self) -> str:
        if self.commit is None:
            return "the source as it lay there; it is no git repository, so that no commit is known"
        return f"commit {self.commit}" + (", and source.diff what was changed since" if self.diff else "")

    def state(self) -> str:
        """16 hex digits that are the same for the same source."""
        digest = hashlib.sha256(f"{self.commit}\n".encode() + self.diff)
        for name in () if self.commit else _files(self.root):
            digest.update(f"{name}\n".encode() + hashlib.sha256((self.root / name).read_bytes()).digest())
        return digest.hexdigest()[:16]

    def write(self, folder: Path) -> None:
        """Write it into an empty folder, without the diff."""
        if self.commit is not None:
            with tarfile.open(fileobj=io.BytesIO(_git(self.root, "archive", "--format=tar", self.commit))) as tar:
                tar.extractall(folder, filter="data")
            return
        for name in _files(self.root):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(self.root / name, folder / name)


def find_source(root: Path) -> Source:
    """The source in a folder with a Snakefile.

    Raises:
        StudyError: there is none, or git does not answer.
    """
    if not (root / "Snakefile").is_file() or not (root / "src" / "halfstep").is_dir():
        raise StudyError(
            f"{root} holds no Snakefile with src/halfstep beside it: the results are archived with their source, so "
            "archive them where they were made, by snakemake archive."
        )
    if not (root / ".git").exists():
        return Source(root, None, b"")
    commit = _git(root, "rev-parse", "HEAD").decode().strip()
    return Source(root, commit, _diff(root))


def _diff(root: Path) -> bytes:
    """From the commit to the working tree, with files that git does not know yet. The repository is not touched."""
    objects = _git(root, "rev-parse", "--path-format=absolute", "--git-path", "objects").decode().strip()
    with tempfile.TemporaryDirectory() as scratch:
        apart = {
            "GIT_INDEX_FILE": str(Path(scratch, "index")),
            "GIT_OBJECT_DIRECTORY": scratch,
            "GIT_ALTERNATE_OBJECT_DIRECTORIES": objects,
        }
        _git(root, "read-tree", "HEAD", **apart)
        _git(root, "add", "--update", ".", **apart)
        _git(root, "add", "--all", *(name for name in NEW_FILES_IN if (root / name).exists()), **apart)
        compare = ("diff-index", "--cached", "--patch", "--binary", "--full-index", "--no-renames", "HEAD")
        return _git(root, *compare, "--", ".", ":(exclude)results", **apart)


def _git(root: Path, *arguments: str, **environment: str) -> bytes:
    git = shutil.which("git")
    if git is None:
        raise StudyError(f"{root} is a git repository, and git is not on the PATH: it says which commit this is.")
    done = subprocess.run(
        [git, "-C", str(root), *arguments],
        env={**os.environ, "LC_ALL": "C", **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace").strip().splitlines() or [f"exit code {done.returncode}"]
        raise StudyError(f"{root}: git {arguments[0]} failed: {said[0]}")
    return done.stdout


def _files(root: Path) -> list[str]:
    """Files of a source without git, sorted: none that are made, hidden, or links."""
    found = []
    for folder, names, files in os.walk(root):
        names[:] = [name for name in names if _belongs(name)]
        found += [
            Path(folder, name).relative_to(root).as_posix()
            for name in files
            if _belongs(name) and not Path(folder, name).is_symlink()
        ]
    return sorted(found)


def _belongs(name: str) -> bool:
    hidden = name.startswith(".") and name not in DOTTED
    return not hidden and name not in LEFT_OUT and not name.endswith((".egg-info", ".pyc"))
