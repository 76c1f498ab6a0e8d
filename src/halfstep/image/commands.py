"""Running the tools that make the image: their output goes to a log, and what went wrong is said in a sentence."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

GIB = 2**30
LAST_LINES = 40
NETWORK = re.compile(
    r"no such host|name resolution|could not resolve|network is unreachable|connection refused|i/o timeout"
    r"|tls handshake timeout|connection timed out|no route to host|failed to establish a new connection"
    r"|(?:unable|failed) to connect to|proxyconnect",
    re.IGNORECASE,
)
# the last is all that buildah says where a layer has no room in TMPDIR
NO_SPACE = re.compile(
    r"no space left on device|disk quota exceeded|write failed because|storing layer \S+ to file", re.IGNORECASE
)


class ImageError(Exception):
    """The image cannot be had; the message says in a sentence why, and what to do."""


class CommandError(ImageError):
    """A tool ended with an error."""

    def __init__(self, command: Sequence[str], code: int, output: str, log: Path) -> None:
        self.output = output
        said = [line.strip() for line in output.splitlines() if line.strip()]
        ended = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        super().__init__(f"{command[0]} {ended}{': ' + said[-1] if said else ''}. The whole output is in {log}.")

    @property
    def network(self) -> str | None:
        """The line that tells of a network that did not answer."""
        return self._line(NETWORK)

    @property
    def no_space(self) -> bool:
        return self._line(NO_SPACE) is not None

    def _line(self, pattern: re.Pattern[str]) -> str | None:
        ends = self.output.splitlines()[-LAST_LINES:]  # not one from before, which a retry got over
        return next((line.strip() for line in reversed(ends) if pattern.search(line)), None)


def on_path(*names: str) -> str | None:
    """The first of some commands that is on the PATH."""
    return next((name for name in names if shutil.which(name)), None)


def run(command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None) -> None:
    """Run a command, with what it prints at the end of the log.

    Raises:
        CommandError: it ended with another exit code than 0.
    """
    with log.open("ab") as stream:
        start = stream.tell()
        stream.write(f"$ {' '.join(command)}\n".encode())
        stream.flush()
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(environment or {})},
        )
    if done.returncode != 0:
        with log.open("rb") as stream:
            stream.seek(start)
            output = stream.read().decode("utf-8", "replace").partition("\n")[2]
        raise CommandError(command, done.returncode, output, log)


def ask(command: Sequence[str], text: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command for what it prints, with `text` as its input."""
    return subprocess.run(command, input=text or "", capture_output=True, text=True)


def free_gib(path: Path) -> float:
    """Free space on the file system of a path (GiB)."""
    while not path.exists():
        path = path.parent
    return shutil.disk_usage(path).free / GIB
