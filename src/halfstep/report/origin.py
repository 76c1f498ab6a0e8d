"""Whether the files of a folder are those of the run that the study names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any

from halfstep.records import STATUSES, RecordError
from halfstep.runs import Run

Row = dict[str, str]
APPLIED = {"gemm": str, "parameters": int}  # what tables and report read of it


def check_record(record: Mapping[str, Any], identity: Mapping[str, Any], run: Run, code: str | None) -> None:
    """Raise RecordError unless this is the record of this run, as configured, by this code."""
    found = {name: record.get(name) for name in identity}
    if found != dict(identity):
        raise RecordError(f"the record is of another run: {'/'.join(map(str, found.values()))}")
    if record.get("status") not in tuple(STATUSES):
        raise RecordError(f"the record has the unknown status {record.get('status')!r}")
    for name in ("environment", "gpu", "run", "applied"):
        if not isinstance(record.get(name) or {}, dict):
            raise RecordError(f"record.json: {name} is {record[name]!r}")
    applied = record.get("applied") or {}
    for name, kind in APPLIED.items():
        if applied.get(name) is not None and not isinstance(applied[name], kind):
            raise RecordError(f"record.json: applied.{name} is {applied[name]!r}")
    if record.get("run_hash") != run.hash():
        raise RecordError(f"made by another configuration: {_differences(record.get('run'), run)}")
    if code is not None and record.get("code_hash") != code:
        raise RecordError("made by another version of the code that measures")


def _differences(found: Any, run: Run) -> str:
    """Which keys of the record's run are not the study's."""
    asked = run.model_dump()
    if not isinstance(found, dict):
        return "the record does not say which"
    keys = [name for name in asked if found.get(name) != asked[name]]
    if len(keys) > 1:  # the modules follow from the settings
        keys = [name for name in keys if name != "modules"]
    return "; ".join(f"{name} was {found.get(name)}, now {asked[name]}" for name in keys) or "its hash is another"


def check_numbers(file: str, rows: Sequence[Row], columns: Sequence[str], *, finite: bool) -> None:
    """Raise RecordError at a cell that is no number; a decimal comma is none."""
    for row in rows:
        for name in columns:
            try:
                if row[name] and finite and not isfinite(float(row[name])):
                    raise ValueError
                float(row[name] or 0)
            except ValueError as error:
                raise RecordError(f"{file}: {name} is not a number: {row[name]!r}") from error
