"""How far a run is: a bar on a terminal, plain lines in a log."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Self

from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar


class Progress:
    def __init__(self, title: str) -> None:
        self.title = title
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self.bar = Bar(*columns, transient=True) if sys.stderr.isatty() else None
        self.task = self.bar.add_task(title, total=None) if self.bar else None

    def __enter__(self) -> Self:
        if self.bar:
            self.bar.start()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.bar:
            self.bar.stop()

    def phase(self, name: str) -> None:
        if self.bar and self.task is not None:
            self.bar.reset(self.task, description=f"{self.title}: {name}", total=None)
        else:
            print(f"{self.title}: {name}", file=sys.stderr, flush=True)

    def steps(self, done: int, total: int) -> None:
        if self.bar and self.task is not None:
            self.bar.update(self.task, completed=done, total=total)
