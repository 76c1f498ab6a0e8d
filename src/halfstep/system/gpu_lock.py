"""One measurement at a time on a GPU, whoever starts it, on the host or in a container.

A lock is a file that is named after the GPU and locked by flock(2): the kernel lets go of it when its process ends,
however that ends. The file says who holds it, and stays: once removed, two processes could lock two files of one name.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from datetime import datetime
from pathlib import Path

import psutil

# not in TMPDIR, which differs between users and jobs; the rules bind this path into the container
FOLDER = Path("/tmp/halfstep-gpu-locks")


def lock_folder(folder: Path = FOLDER) -> Path:
    """The folder of the locks, made if need be: every user may lock there, and remove only what is their own.

    Raises:
        OSError: it cannot be made.
    """
    try:
        folder.mkdir()
    except FileExistsError:
        return folder
    folder.chmod(0o1777)  # not by mkdir's mode, from which the umask is taken
    return folder


class GpuLock:
    """The lock of one GPU; open from the start, held from a successful `acquire` to `release`.

    Raises:
        OSError: the lock's file cannot be made or opened.
    """

    def __init__(self, uuid: str, purpose: str, folder: Path = FOLDER) -> None:
        """`purpose`: what the GPU is wanted for, to tell those who wait."""
        self.path = lock_folder(folder) / f"{uuid}.lock"
        self.purpose = purpose
        self._descriptor = _open(self.path)

    def acquire(self) -> bool:
        """Take the lock if it is free, and say whether it is ours now."""
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        since = datetime.now().astimezone().isoformat(sep=" ", timespec="seconds")
        self._write(f"{self.purpose} (process {os.getpid()} of {_user()}, since {since})")
        return True

    def holder(self) -> str:
        """Who holds it: what for, process, user and since when."""
        return os.pread(self._descriptor, 1000, 0).decode("utf-8", "replace").strip() or "a process that has just begun"

    def release(self) -> None:
        """Let go of it, held or not."""
        os.close(self._descriptor)

    def _write(self, text: str) -> None:
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, f"{text}\n".encode("utf-8", "backslashreplace"), 0)


def _open(path: Path) -> int:
    """A descriptor of the lock's file, which every user may write to.

    It appears under its name only once it may be: and it is opened without O_CREAT, with which the kernel refuses
    another user's file in a folder like /tmp (fs.protected_regular).
    """
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        return os.open(path, flags)
    except FileNotFoundError:
        handle, fresh = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        os.fchmod(handle, 0o666)
        try:
            os.link(fresh, path)
        except FileExistsError:  # another was faster
            return os.open(path, flags)
        return os.dup(handle)
    finally:
        os.close(handle)
        Path(fresh).unlink()


def _user() -> str:
    try:
        return psutil.Process().username()
    except (psutil.Error, KeyError):  # a number without a name, as in many containers
        return f"user {os.getuid()}"
