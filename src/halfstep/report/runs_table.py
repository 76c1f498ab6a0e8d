"""The table of all runs, one line each: for the page, which folds it. All columns are in tables/runs.csv."""

from __future__ import annotations

from halfstep.report import wording
from halfstep.report.problems import shorten
from halfstep.report.protocols import by_protocol, shown_time
from halfstep.report.results import Results
from halfstep.report.tables import Row, number
from halfstep.report.wording import EMPTY, digits

HEADINGS = (
    "comparison", "variant", "replicate", "status", "step ms", "5th to 95th percentile", "peak allocated GiB", "mean W",
    "reason",
)  # fmt: skip


def lines(results: Results) -> list[list[str]]:
    """Numbers of a run that is not ok are struck out: they were measured and enter nothing."""
    return [
        _cells(by_protocol(row, results.study.comparisons[row["comparison"]].protocol)) for row in results.one_per_run
    ]


def _cells(run: Row) -> list[str]:
    names = [f"`{run['comparison']}`", f"`{run['variant']}`", run["replicate"], wording.status(run["status"])]
    reason = shorten(run["reason"]) or EMPTY
    if run["case"]:  # an operator has a time per case: they stand in its own table
        return [*names, EMPTY, EMPTY, EMPTY, EMPTY, reason]
    low, high = (_shown(run, run[name], 4) for name in ("step_ms_p05", "step_ms_p95"))
    return [
        *names,
        _shown(run, shown_time(run), 4),
        EMPTY if low == EMPTY else f"{low} to {high}",
        _shown(run, run["peak_allocated_gib"]),
        _shown(run, run["power_w_mean"]),
        reason,
    ]


def _shown(run: Row, text: str, significant: int = 3) -> str:
    shown = digits(number(text), significant)
    return shown if run["status"] == "ok" or shown == EMPTY else wording.strike(shown)
