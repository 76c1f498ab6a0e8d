"""The last line of a call: where the report is, and how many of its runs have no number.

Little is imported here, since Snakemake's own process prints it too.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from halfstep.records import SUMMARY_COLUMNS, TABLE_STATUSES, RecordError, one_per_run, read_csv


def last_line(folder: Path) -> str:
    """One line for people and scripts: between `report: ` and ` (` stands the page's path.

    Statuses are named as `halfstep runs --status` and `make remeasure STATUS=` take them. Parity runs are not timed.
    """
    return f"report: {folder / 'report.html'} (plain text: report.md); {_without_number(folder)}"


def _without_number(folder: Path) -> str:
    try:
        runs = one_per_run(read_csv(folder / "tables" / "runs.csv", SUMMARY_COLUMNS))
    except RecordError as error:
        return f"its runs cannot be counted: {error}"
    counts = Counter(run["status"] for run in runs)
    listed = ", ".join(f"{counts[status]} {status}" for status in TABLE_STATUSES if status != "ok" and counts[status])
    if not listed:
        return "every timed run has a number"
    without = len(runs) - counts["ok"]
    return f"{without} of {len(runs)} timed runs {'has' if without == 1 else 'have'} no number: {listed}"
