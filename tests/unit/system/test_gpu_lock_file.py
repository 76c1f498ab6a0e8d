from __future__ import annotations

import os
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from halfstep.system.gpu_lock import GpuLock, lock_folder

UUID = "GPU-made-up"
# another process, which says whether it got the lock and then holds it until its input ends
HOLD = """
import sys
from pathlib import Path
from halfstep.system.gpu_lock import GpuLock
lock = GpuLock(sys.argv[2], "lm/fp32 rep2", Path(sys.argv[1]))
print(lock.acquire(), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def other(tmp_path: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", HOLD, str(tmp_path / "locks"), UUID]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "True\n"
    return process


@pytest.mark.parametrize("how", ["ends", "is killed"])
def test_one_at_a_time(how: str, other: subprocess.Popen[str], tmp_path: Path) -> None:
    lock = GpuLock(UUID, "vit/bf16 rep1", tmp_path / "locks")
    assert not lock.acquire()
    assert lock.holder().startswith(f"lm/fp32 rep2 (process {other.pid} of ")
    if how == "is killed":
        other.kill()
    other.communicate()
    assert lock.acquire()
    assert lock.holder().startswith(f"vit/bf16 rep1 (process {os.getpid()} of ")
    lock.release()


def test_a_process_that_we_start_does_not_hold_it(tmp_path: Path) -> None:
    lock = GpuLock(UUID, "first", tmp_path / "locks")
    assert lock.acquire()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL):
        lock.release()
        again = GpuLock(UUID, "second", tmp_path / "locks")
        assert again.acquire()
        again.release()


def test_every_user_may_use_what_one_has_made(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        lock = GpuLock(UUID, "first", tmp_path / "locks")
    finally:
        os.umask(before)
    lock.release()
    assert stat.S_IMODE((tmp_path / "locks").stat().st_mode) == 0o1777
    assert stat.S_IMODE(lock.path.stat().st_mode) == 0o666
    assert [path.name for path in (tmp_path / "locks").iterdir()] == [f"{UUID}.lock"]


@pytest.mark.skipif(os.getuid() != 0, reason="only root can act as another user")
def test_another_users_lock() -> None:
    """In a folder like /tmp, where the kernel may refuse O_CREAT for another user's file (fs.protected_regular)."""
    with tempfile.TemporaryDirectory(dir="/tmp") as parent:
        Path(parent).chmod(0o755)
        folder = lock_folder(Path(parent, "locks"))
        first = GpuLock(UUID, "first", folder)
        assert first.acquire()
        child = os.fork()
        if child == 0:
            os.setgid(1234)
            os.setuid(1234)
            second = GpuLock(UUID, "second", folder)
            waits = not second.acquire() and second.holder().startswith("first ")
            first.release()  # the parent's copy of it is left
            mine = GpuLock(f"{UUID}-2", "mine", folder)
            os._exit(0 if waits and mine.acquire() else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        first.release()
        theirs = GpuLock(f"{UUID}-2", "root", folder)
        assert theirs.path.stat().st_uid == 1234 and theirs.acquire()
        theirs.release()


def test_no_link_is_followed(tmp_path: Path) -> None:
    folder = lock_folder(tmp_path / "locks")
    (folder / f"{UUID}.lock").symlink_to(tmp_path / "mine")
    (tmp_path / "mine").write_text("mine")
    with pytest.raises(OSError, match="symbolic links"):
        GpuLock(UUID, "first", folder)
    assert (tmp_path / "mine").read_text() == "mine"
