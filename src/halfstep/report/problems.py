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
MUCH_IDLE = 0.1  # share of the step without a kernel of the run, from which on waiting is worth a word
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

HEADINGS = ("comparison", "variant", "replicates", "reason")
CAPABILITY_HEADINGS = ("capability", "status", "detail", "what to do")


@dataclass(frozen=True)
class Problem:
    """Runs of one status: what it means, what to do, and (comparison, variant, replicates, reason) for each."""

    status: str
    runs: int
    meaning: str
    remedy: str
    lines: list[tuple[str, str, str, str]]

    @property
    def heading(self) -> str:
        return f"{self.status[0].upper()}{self.status[1:]}: {wording.count(self.runs, 'run')}"

    @property
    def explanation(self) -> str:
        return f"That is: {self.meaning}. {self.remedy}"


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
    remedies = REMEDIES | {"disturbed": REMEDIES["disturbed"] + _waiting(rows)}
    return [
        Problem(
            wording.status(status),
            sum(map(len, lines.values())),
            TABLE_STATUSES[status],
            _with_flag(remedies[status]) if image else remedies[status],
            [(f"`{key[0]}`", f"`{key[1]}`", wording.ranges(n), shorten(key[2])) for key, n in lines.items()],
        )
        for status, lines in grouped.items()
        if lines
    ]


def tally(runs: Iterable[Row], found: Iterable[Problem]) -> tuple[str, str]:
    """How many runs are ok, and what the others are; the second is empty where all are ok."""
    rows = list(runs)
    ok = sum(row["status"] == "ok" for row in rows)
    others = ", ".join(f"{problem.runs} {problem.status}" for problem in found)
    return f"{ok} of {len(rows)} runs are ok.", f"The others: {others}" if others else ""


def _waiting(rows: Iterable[Row]) -> str:
    """How many of the disturbed runs waited for much of their step, and for what it may have been."""
    waited = [
        row
        for row in rows
        if row["status"] == "disturbed"
        and row["idle_ms"]
        and float(row["idle_ms"]) > MUCH_IDLE * float(row["step_ms_median"])
    ]
    if not waited:
        return ""
    return (
        f" In {wording.count(len(waited), 'run')} of these the GPU ran no kernel of theirs for over "
        f"{wording.percent(MUCH_IDLE)} of the step: unless another process had it, they waited for the CPU, and so for "
        "its load. `compile: graphs` or a larger batch avoids waiting for launches."
    )


def _with_flag(remedy: str) -> str:
    return re.sub(r"make remeasure STATUS=\w+", rf"\g<0> ARGS={IN_IMAGE.strip()}", remedy).replace(
        f"`{SNAKEMAKE}`", f"`{SNAKEMAKE}{IN_IMAGE}`"
    )


def shorten(reason: str) -> str:
    """What of a reason stands in a table of the report."""
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
