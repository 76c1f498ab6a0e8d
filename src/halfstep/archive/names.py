"""Names of people and machines: taken out of what programs wrote, and refused in what a person wrote.

Programs write paths and names into their messages: a home becomes `~`, a user's or host's name `<user>` or `<host>`.
What a person wrote, the study and the source, is never altered; a path into the person's home is refused there.
"""

from __future__ import annotations

import csv
import getpass
import io
import json
import os
import re
import socket
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from halfstep.records import write_text

FREE_TEXT = ("reason", "messages", "detail", "remedy")
"""keys and columns that hold sentences: of a run's files, words are looked for in these alone; elsewhere `h200` is the
device, whatever the host is called"""
NOBODY = ("root", "localhost")
HOMES = r"(?<![\w.-])/(?:home|Users)/[^/\s:'\"`,;()<>\[\]{}|\\]+"  # of anybody: on another node they may be another's


@dataclass(frozen=True)
class Names:
    """Who and where: the homes, the longest first, and by name the word that stands in for it."""

    homes: tuple[str, ...]
    words: dict[str, str]

    @classmethod
    def here(cls) -> Names:
        """Those of this process: its user, its home, its host."""
        homes = _homes()
        host = socket.gethostname()
        words = dict.fromkeys((host, host.partition(".")[0]), "<host>")
        words |= dict.fromkeys((_user(), *(Path(home).name for home in homes)), "<user>")
        names = [word for word in words if word not in ("", *NOBODY) and not word.isdigit()]
        return cls(_longest_first(homes), {word: words[word] for word in _longest_first(names)})

    def without_homes(self, text: str) -> str:
        for home in self.homes:
            text = re.sub(_home(home), "~", text)
        return re.sub(HOMES, "~", text)

    def without(self, text: str) -> str:
        """The text without homes and names."""
        text = self.without_homes(text)
        for word, stand_in in self.words.items():
            text = re.sub(_word(word), stand_in, text)
        return text

    def clean(self, path: Path, of_run: bool) -> None:
        """Take them out of a file that programs wrote; one that holds none keeps its bytes."""
        old = path.read_bytes().decode("utf-8", "backslashreplace")
        if not self._any.search(old):
            return
        if path.suffix == ".json":
            new = self._json(old, of_run)
        elif path.suffix == ".csv":
            new = self._csv(old)
        else:
            new = self.without(old)
        if new != old:
            write_text(path, new)

    @cached_property
    def _any(self) -> re.Pattern[str]:
        names = [*map(_home, self.homes), *map(_word, self.words)]
        # JSON of ours is ASCII
        escaped = [re.escape(json.dumps(name)[1:-1]) for name in (*self.homes, *self.words) if not name.isascii()]
        return re.compile("|".join([HOMES, *names, *escaped]))

    def _json(self, text: str, of_run: bool) -> str:
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):  # not whole
            return self.without(text)
        cleaned = self._values(found, free=not of_run)
        return text if cleaned == found else json.dumps(cleaned, indent=1, sort_keys=True) + "\n"

    def _values(self, value: Any, free: bool) -> Any:
        if isinstance(value, dict):
            return {key: self._values(inner, free or key in FREE_TEXT) for key, inner in value.items()}
        if isinstance(value, list):
            return [self._values(inner, free) for inner in value]
        if isinstance(value, str):
            return self.without(value) if free else self.without_homes(value)
        return value

    def _csv(self, text: str) -> str:
        try:
            rows = list(csv.reader(io.StringIO(text, newline="")))
        except csv.Error:  # not whole
            return self.without(text)
        free = {place for place, name in enumerate(rows[0]) if name in FREE_TEXT}
        cleaned = [
            [self.without(cell) if place in free else self.without_homes(cell) for place, cell in enumerate(row)]
            for row in rows
        ]
        written = io.StringIO(newline="")
        csv.writer(written, lineterminator="\n").writerows(cleaned)
        return text if cleaned == rows else written.getvalue()

    def homes_in(self, path: Path) -> Iterator[int]:
        """Lines of a file that a person wrote on which their home stands."""
        wanted = [home for home in self.homes if Path(home).name not in NOBODY]
        if wanted:
            text = path.read_bytes().decode("utf-8", "replace")
            pattern = re.compile("|".join(map(_home, wanted)))
            yield from (number for number, line in enumerate(text.splitlines(), 1) if pattern.search(line))


def _homes() -> set[str]:
    """The home, and what it is where its path leads over links."""
    try:
        return {str(Path.home()), os.path.realpath(Path.home())} - {"/"}
    except RuntimeError:  # this user has none
        return set()


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container may know none
        return ""


def _longest_first(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(names, key=lambda name: (-len(name), name)))


def _home(path: str) -> str:
    return rf"{re.escape(path)}(?![\w.-])"


def _word(name: str) -> str:
    return rf"(?<![A-Za-z0-9_]){re.escape(name)}(?![A-Za-z0-9_])"
