"""What goes into an archive: raw results as the scope's folder has them, and all that is made of them, made again."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from halfstep.archive.layout import IMAGE, is_made
from halfstep.records import SUMMARY_COLUMNS, RecordError, one_per_run, read_csv, read_record
from halfstep.report.parity import PARITY_COLUMNS

KINDS = (".csv", ".json", ".txt")
"""of raw files; what is made of them has its own"""
NOT_RESULTS = ("cache", "logs", "archive")
"""folders of a scope that say nothing about a measurement: compiled kernels, what our own commands printed, archives"""
IMAGE_FILES = ("digest", "packages.json")


def raw_files(scope_dir: Path) -> list[str]:
    """Names, relative to the scope's folder, of what the rest is made of: by kind, whatever the folders are called."""
    return [name for name in _results(scope_dir) if Path(name).suffix in KINDS]


def left_out(scope_dir: Path) -> list[str]:
    """What else lies there that a study does not leave."""
    return [name for name in _results(scope_dir) if Path(name).suffix not in KINDS]


def _results(scope_dir: Path) -> Iterator[str]:
    for path in sorted(scope_dir.rglob("*")):
        name = path.relative_to(scope_dir).as_posix()
        first = name.split("/")[0]
        hidden = any(part.startswith(".") for part in name.split("/"))
        if path.is_file() and not hidden and first not in NOT_RESULTS and not is_made(name):
            yield name


def copy_raw(scope_dir: Path, target: Path) -> None:
    for name in raw_files(scope_dir):
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(scope_dir / name, target / name)


@dataclass(frozen=True)
class Recorded:
    """One folder with a record: a run, or whatever else a rule measured or trained."""

    folder: str  # relative to the scope's
    record: dict[str, Any]

    @property
    def started(self) -> datetime | None:
        return _time(self.record.get("started"))

    @property
    def ended(self) -> datetime | None:
        return _time(self.record.get("ended"))

    @property
    def took(self) -> timedelta:
        return self.ended - self.started if self.started and self.ended else timedelta()


def recorded(scope_dir: Path) -> list[Recorded]:
    """Every folder with a readable record, by name."""
    found = []
    for path in sorted(scope_dir.rglob("record.json")):
        try:
            found.append(Recorded(path.parent.relative_to(scope_dir).as_posix(), read_record(path.parent)))
        except RecordError:
            continue
    return found


def stale_runs(results_dir: Path) -> list[str]:
    """The runs of a collected scope whose files are not those of the study, each with its reason."""
    tables = results_dir / "tables"
    found = [
        (f"{row['comparison']}/{row['variant']} rep{row['replicate']}", row)
        for row in one_per_run(read_csv(tables / "runs.csv", SUMMARY_COLUMNS))
    ]
    found += [
        (f"{row['family']}/{row['recipe']} seed{row['seed']}", row)
        for row in read_csv(tables / "parity.csv", PARITY_COLUMNS)
    ]
    return [f"{name} ({row['reason']})" for name, row in found if row["status"] == "stale"]


def _time(text: Any) -> datetime | None:
    try:
        return datetime.fromisoformat(text)
    except (TypeError, ValueError):
        return None


def copy_image(places: Iterable[Path], digests: set[str], target: Path) -> list[str]:
    """Copy digest and bill of materials of the images that the records name; returns the digests that are not there.

    `places` are the folders in which images are made.
    """
    there: dict[str, Path] = {}
    for place in places:
        for path in sorted(place.glob("*/digest")):
            there.setdefault(path.read_text(encoding="utf-8").strip(), path.parent)
    for digest in sorted(digests & there.keys()):
        folder = target / IMAGE / there[digest].name
        folder.mkdir(parents=True, exist_ok=True)
        for name in IMAGE_FILES:
            shutil.copyfile(there[digest] / name, folder / name)
    return sorted(digests - there.keys())
