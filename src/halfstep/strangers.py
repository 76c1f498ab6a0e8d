"""Records that are not those of the runs they lie with: of other settings, or of other code.

Snakemake knows which run a record is of by its own memory, .snakemake/. Results that were copied without it are
judged by their files' times alone, and it takes a stranger for what was asked for.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from halfstep.fingerprint import run_fingerprint
from halfstep.records import RecordError, read_record
from halfstep.runs import Run


def strangers(asked: Iterable[tuple[Path, Run]]) -> int:
    """How many of the records that are there are not of their run and the present code.

    Args:
        asked: each record.json, and the run that it should be of.
    """
    return sum(path.exists() and not _is_of(path, run) for path, run in asked)


def _is_of(path: Path, run: Run) -> bool:
    try:
        record = read_record(path.parent)
    except RecordError:
        return False
    return (record.get("run_hash"), record.get("code_hash")) == (run.hash(), run_fingerprint(run.modules.values()))
