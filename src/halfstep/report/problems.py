"""What did not run, and why: the runs that are not ok, and what the machine lacks."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from halfstep.records import TABLE_STATUSES
from halfstep.report import wording
from halfstep.report.results import Results
from halfstep.report.tables import Row

SNAKEMAKE = "snakemake --cores 1"
LONGEST_REASON = 600  # characters; the whole reason is in tables/runs.csv
LAUNCH_BOUND = 0.1  # share of the step in which the GPU idles, from which on the CPU is said to set the pace
IN_IMAGE = " --use-singularity"  # for runs that were made in the image
# in the order in which a reader should know of them
REMEDIES: dict[str, str] = {
    "missing": f"`{SNAKEMAKE}` measures them.",
    "stale": f"`{SNAKEMAKE}` measures them again; where it sees nothing to do (results copied without their "
    "metadata), `make remeasure STATUS=stale` does.",
    "failed": "After mending the cause, `make remeasure STATUS=failed`.",
    "timeout": "`make remeasure STATUS=timeout` tries again; a larger `timeout_s` measures the whole study again.",
    "out_of_memory": "Take a smaller batch. On a GPU that others had filled: `make remeasure STATUS=out_of_memory`.",
    "invalid": "Their numbers enter no ratio. After mending the cause, `make remeasure STATUS=invalid`.",
    "disturbed": "Their numbers enter no ratio. On a quiet machine, `make remeasure STATUS=disturbed`.",
    "unsupported": "`halfstep doctor` says what is missing and what to do; then `make remeasure STATUS=unsupported`.",
}
assert set(REMEDIES) == set(TABLE_STATUSES) - {"ok"}


@dataclass(frozen=True)
class Problem:
    """Runs of one status: what it means, what to do, and (comparison, variant, replicates, reason) for each."""

    status: str
    runs: int
    meaning: str
    remedy: str
    lines: list[tuple[str, str, str, str]]


def problems(runs: Iterable[Row], image: bool = False) -> list[Problem]:
    """The runs that are not ok, by status, then variant and reason; `runs` holds one row each.

    `image`: they are made in the image, and so again only with the flag for it.
    """
    grouped: dict[str, dict[tuple[str, str, str], list[int]]] = {status: {} for status in REMEDIES}
    rows = list(runs)
    for row in rows:
        if row["status"] != "ok":
            key = row["comparison"], row["variant"], row["reason"]
            grouped[row["status"]].setdefault(key, []).append(int(row["replicate"]))
    remedies = REMEDIES | {"disturbed": REMEDIES["disturbed"] + _paced_by_cpu(rows)}
    return [
        Problem(
            wording.status(status),
            sum(map(len, lines.values())),
            TABLE_STATUSES[status],
            _with_flag(remedies[status]) if image else remedies[status],
            [(f"`{key[0]}`", f"`{key[1]}`", wording.ranges(n), _cut(key[2])) for key, n in lines.items()],
        )
        for status, lines in grouped.items()
        if lines
    ]


def _paced_by_cpu(rows: Iterable[Row]) -> str:
    """How many of the disturbed runs waited for the CPU, whose load nothing else shows, and what avoids that."""
    waiting = [
        row
        for row in rows
        if row["status"] == "disturbed"
        and row["idle_ms"]
        and float(row["idle_ms"]) > LAUNCH_BOUND * float(row["step_ms_mean"])
    ]
    if not waiting:
        return ""
    return (
        f" In {wording.count(len(waiting), 'run')} of these the GPU idled for over {wording.percent(LAUNCH_BOUND)} of "
        "the step: the CPU's launches set the pace, and vary with its load. `compile: graphs` or a larger batch avoids "
        "that."
    )


def _with_flag(remedy: str) -> str:
    return re.sub(r"make remeasure STATUS=\w+", rf"\g<0> ARGS={IN_IMAGE.strip()}", remedy).replace(
        f"`{SNAKEMAKE}`", f"`{SNAKEMAKE}{IN_IMAGE}`"
    )


def _cut(reason: str) -> str:
    return reason if len(reason) <= LONGEST_REASON else f"{reason[:LONGEST_REASON]} …"


def missing_capabilities(results: Results) -> list[list[str]]:
    """Lines of name, status, detail and remedy of what the doctor would have something done about.

    Only where a run is unsupported, and one line per remedy: else they explain nothing that is in the report.
    What a library has removed is a fact, and nothing to do anything about.
    """
    if not any(row["status"] == "unsupported" for row in results.one_per_run):
        return []
    by_remedy: dict[str, list[tuple[str, str, str]]] = {}
    for entry in results.doctor.get("capabilities") or []:
        if isinstance(entry, dict) and entry.get("remedy") and entry.get("status") != "removed":
            found = str(entry.get("name")), str(entry.get("status")), str(entry.get("detail") or "")
            by_remedy.setdefault(str(entry["remedy"]), []).append(found)
    return [
        [*("; ".join(dict.fromkeys(cells)) for cells in zip(*found, strict=True)), remedy]
        for remedy, found in by_remedy.items()
    ]
