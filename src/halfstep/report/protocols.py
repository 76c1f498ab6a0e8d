"""Which time of a run counts, by the protocol of its comparison: the one place that decides it."""

from __future__ import annotations

from collections.abc import Mapping

from halfstep.records import as_cell
from halfstep.runs import ARTICLE_WINDOW, SMOKE_WINDOW, Scope

Row = dict[str, str]

STEP_TIME: dict[str, str] = {"fair": "step_ms_median", "article": "host_ms_mean"}
"""protocol: the column of a run that is its step time"""


def by_protocol(run: Mapping[str, str], protocol: str) -> Row:
    """A run's row with its `protocol`, its `step_ms`, and what follows from that time by it."""
    row = {**run, "protocol": protocol, "step_ms": ""}
    if row["status"] != "ok":
        return row
    row["step_ms"] = row[STEP_TIME[protocol]]
    if protocol == "fair":
        return row
    step_ms, median = float(row["step_ms"]), float(row["step_ms_median"])
    for rate in ("samples_per_s", "model_tflop_per_s", "peak_share"):
        row[rate] = as_cell(float(row[rate]) * median / step_ms) if row[rate] else ""
    if row["idle_ms"]:
        row["idle_ms"] = as_cell(step_ms - float(row["kernel_ms"]))
    return row


def shown_time(run: Row) -> str:
    """The step time of a run that `by_protocol` gave, whatever its status: to be seen, and to enter no number."""
    return run[STEP_TIME[run["protocol"]]]


def clock(protocol: str, scope: Scope) -> str:
    """How a step time that is not the median of the window came about, in words; empty for the median."""
    window = SMOKE_WINDOW if scope.scale == "smoke" else ARTICLE_WINDOW
    return f"mean of {window.min_steps} steps on the host's clock" if protocol == "article" else ""
