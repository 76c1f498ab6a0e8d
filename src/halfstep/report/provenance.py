"""Where the runs come from: their environments, the code that measured them, their sittings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from halfstep.report import wording
from halfstep.report.results import Results
from halfstep.report.wording import EMPTY, digits

FIRST_KEYS = ("gpu", "cpu", "driver", "cuda", "cudnn", "torch", "python")


def environments(results: Results) -> tuple[list[str], list[list[str]]]:
    """Headings and lines of the table of environments: a column for each that runs were made in."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for record in results.records:
        if record.get("environment"):  # a run that ended before its process could say has none
            groups.setdefault(str(record.get("environment_hash") or EMPTY), []).append(record)
    found = {name: records[0]["environment"] for name, records in groups.items()}
    keys = {key for environment in found.values() for key in environment}
    ordered = [key for key in FIRST_KEYS if key in keys] + sorted(keys - set(FIRST_KEYS))
    lines = [[key, *(str(environment.get(key, EMPTY)) for environment in found.values())] for key in ordered]
    lines += [
        ["GPU memory (GiB)", *(_gpu(records, "memory_total_gib") for records in groups.values())],
        ["power limit (W)", *(_gpu(records, "power_limit_w") for records in groups.values())],
        ["CPU threads", *(_values(map(_threads, records)) for records in groups.values())],
        ["image", *(_values(record.get("image") for record in records) for records in groups.values())],
        ["runs", *(_runs(records) for records in groups.values())],
    ]
    return ["what", *(f"environment `{name}`" for name in groups)], lines


def _gpu(records: list[dict[str, Any]], key: str) -> str:
    values = ((record.get("gpu") or {}).get(key) for record in records)
    return _values(digits(value, 4) if isinstance(value, int | float) else value for value in values)


def _threads(record: dict[str, Any]) -> Any:
    """Torch's own threads; the record also says which OMP_NUM_THREADS it was given."""
    threads = record.get("threads")
    return threads.get("torch") if isinstance(threads, dict) else threads


def _values(values: Iterable[Any]) -> str:
    return ", ".join(dict.fromkeys(str(value) for value in values if value is not None)) or EMPTY


def _runs(records: list[dict[str, Any]]) -> str:
    counts = Counter(str(record.get("comparison")) for record in records)
    return ", ".join(f"{name}: {n}" for name, n in counts.items())


def code_versions(results: Results) -> str:
    """The fingerprints of the code that measured, if they are few: they differ by recipe and workload."""
    counts = Counter(str(record.get("code_hash") or EMPTY) for record in results.records)
    if len(counts) > 4:
        return f"{len(counts)} fingerprints, in the column `code_hash` of `tables/runs.csv`"
    return ", ".join(f"`{name}` ({wording.count(n, 'run')})" for name, n in counts.items()) or EMPTY


def sittings(results: Results) -> str:
    """How many sittings, and when they were."""
    starts = sorted(str(record["started"]) for record in results.records if record.get("started"))
    ends = sorted(str(record["ended"]) for record in results.records if record.get("ended"))
    n = len({record.get("sitting") for record in results.records})
    when = f", from {starts[0]} to {ends[-1]}" if starts and ends else ""
    return wording.count(n, "sitting") + when
