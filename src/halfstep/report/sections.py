"""The report's tables as rows of text: variants, runs that are not ok, environments."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from halfstep.records import TABLE_STATUSES
from halfstep.report import wording
from halfstep.report.results import ComparisonResult, Results, VariantResult
from halfstep.report.statistics import Ratio
from halfstep.report.tables import Row, number
from halfstep.report.wording import EMPTY, code, digits, percent

SNAKEMAKE = "snakemake --cores 1"
UNLIKE = 0.05  # a replicate farther than this from its siblings, or its mean from its median, is a finding
MOSTLY = 0.5  # share of telemetry samples
LONGEST_REASON = 600  # characters; the whole reason is in tables/runs.csv
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


def variant_headings(comparison: ComparisonResult) -> list[str]:
    sample = wording.singular(comparison.unit)
    found = [
        "variant", "batch", "step ms", f"{comparison.unit}/s", "speed-up", "n", "peak allocated GiB",
        "model TFLOP/s (of peak)", f"mJ/{sample}", "first step s (compiling s)", "status",
    ]  # fmt: skip
    if comparison.clock:
        found[2] = "mean step ms"
        found[-1:] = ["run time s", "final loss", "status"]
    return found


def variant_cells(variant: VariantResult) -> list[str]:
    """One line of a comparison's table; the status says how many replicates are ok where not all are."""
    row, speedup = variant.row, variant.speedup
    energy, compiling = variant["energy_j_per_sample"], variant["compile_s"]
    tflops = digits(variant["model_tflop_per_s"])
    if variant["peak_share"] is not None:
        tflops += f" ({percent(variant['peak_share'])})"
    asked, ok = int(row["replicates"]), int(row["ok"])
    return [
        f"`{variant.name}`",
        row["batch"],
        digits(variant["step_ms"], 4),
        digits(variant["samples_per_s"]),
        "baseline" if speedup is None else wording.ratio(speedup),
        _n(speedup),
        digits(variant["peak_allocated_gib"]),
        tflops,
        digits(None if energy is None else energy * 1e3),
        digits(variant["first_step_s"]) + (f" ({digits(compiling)})" if compiling is not None else ""),
        *(_whole_run(variant) if row["protocol"] == "article" else ()),
        "ok" if ok == asked else f"ok {ok} of {asked}" if ok else wording.status(row["status"]),
    ]


def _whole_run(variant: VariantResult) -> list[str]:
    """Run time and final loss of the window: the article's protocol gives each variant the same number of steps."""
    step_ms, steps = variant["step_ms"], variant["steps"]
    return [
        digits(None if step_ms is None or steps is None else step_ms * steps / 1e3),
        digits(variant["loss_last"], 4),
    ]


def _n(speedup: Ratio | None) -> str:
    """How many replicates a ratio rests on, and by which method."""
    if speedup is None or not speedup.method:
        return EMPTY
    if speedup.method == "unpaired":
        return f"{speedup.n_baseline} and {speedup.n_variant}, unpaired"
    return wording.count(speedup.pairs, "pair")


def ratio_notes(comparison: ComparisonResult) -> list[str]:
    """Why a measured variant has no ratio, no interval or no pairs, and what gives it one."""
    return [
        f"`{variant.name}`: {variant.speedup.reason}. {_remedy(comparison, variant, variant.speedup)}"
        for variant in comparison.measured
        if variant.speedup and variant.speedup.reason
    ]


def _remedy(comparison: ComparisonResult, variant: VariantResult, speedup: Ratio) -> str:
    if speedup.method == "single" and int(variant.row["replicates"]) < 2:
        return "It takes `replicates: 2` or more."
    return f"`make remeasure COMPARISON={comparison.name}` measures both sides in one sitting."


def settings(results: Results, comparison: ComparisonResult) -> str:
    """What the variants were set to beside precision and compilation; a value is followed by those that differ."""
    parts = []
    for key in ("weights", "optimizer", "norm", "data"):
        names: dict[str, list[str]] = {}
        for variant in comparison.variants:
            names.setdefault(variant.row[key], []).append(variant.name)
        several = len(names) > 1
        values = (f"`{value}`" + (f" ({code(used)})" if several else "") for value, used in names.items())
        parts.append(f"{key} {wording.join(values)}")
    counts = {
        int(n)
        for record in results.records
        if record.get("comparison") == comparison.name and (n := (record.get("applied") or {}).get("parameters"))
    }
    if counts:
        parts.append(f"{wording.join(f'{n:,}' for n in sorted(counts))} parameters")
    return f"Settings: {', '.join(parts)}."


def flops(comparison: ComparisonResult) -> str:
    """Model FLOPs of one sample, and the stated peaks that the shares are of; empty without FLOPs."""
    per_sample = [
        tflop / variant.require("samples_per_step")
        for variant in comparison.measured
        if (tflop := variant["model_tflop_per_step"]) is not None
    ]
    if not per_sample:
        return ""
    sample, value = wording.singular(comparison.unit), per_sample[0]
    amount = f"{digits(value, 4)} TFLOP" if value >= 0.1 else f"{digits(value * 1e3, 4)} GFLOP"
    text = f"Model FLOPs: {amount} per {sample}"
    if abs(value - 1) < 0.005:
        text += f", so TFLOP/s and {comparison.unit}/s are almost the same number here"
    peaks: dict[str, list[str]] = {}
    for variant in comparison.measured:
        if variant["peak_share"] is not None:
            peaks.setdefault(variant.row["peak_tflop_per_s"], []).append(variant.name)
    if peaks:
        stated = wording.join(f"{peak} for {code(names)}" for peak, names in peaks.items())
        text += f". Stated dense peak in TFLOP/s: {stated}"
    return f"{text}."


def power(comparison: ComparisonResult) -> str:
    """Whether the runs were at the power limit, and at what clocks; empty where nothing was sampled."""
    runs = [run for variant in comparison.measured for run in variant.ok_runs]
    limits = [limit for run in runs if (limit := number(run["power_limit_w"])) is not None]
    clocks = [clock for run in runs if (clock := number(run["sm_clock_mhz_mean"])) is not None]
    shares = {v.name: share for v in comparison.measured if (share := v["power_capped_share"]) is not None}
    parts = []
    if limits and shares:
        at = f"at the {_span(limits)} W power limit"
        capped = [name for name, share in shares.items() if share >= MOSTLY]
        free = [name for name in shares if name not in capped]
        if not free:
            parts.append(f"most of the time {at} in all runs")
        elif not capped:
            parts.append(f"seldom or never {at} in any run")
        elif len(free) <= len(capped):
            parts.append(f"most of the time {at} in all runs but those of {code(free)}")
        else:
            parts.append(f"most of the time {at} in the runs of {code(capped)} alone")
    if clocks:
        parts.append(f"mean SM clock {_span(clocks)} MHz")
    text = "; ".join(parts)
    return f"{text[0].upper()}{text[1:]}." if text else ""


def _span(values: Sequence[float]) -> str:
    low, high = f"{min(values):.0f}", f"{max(values):.0f}"
    return low if low == high else f"{low} to {high}"


def outliers(comparison: ComparisonResult) -> list[str]:
    """Replicates that are unlike their siblings or whose mean is unlike their median: they make intervals wide."""
    found = []
    for variant in comparison.measured:
        times = {int(run["replicate"]): float(run["step_ms"]) for run in variant.ok_runs}
        for replicate, siblings in _unlike(times).items():
            own = times[replicate]
            found.append(
                f"Replicate {replicate} of `{variant.name}` ran {percent(abs(own / siblings - 1))} "
                f"{'slower' if own > siblings else 'faster'} than the other{'s' * (len(times) > 2)} "
                f"({digits(own, 4)} against {digits(siblings, 4)} ms): expect wide intervals where it enters."
            )
        for run in variant.ok_runs:
            other, column, which, why = (
                ("CUDA events", "step_ms_mean", "the host's clock", "the host ran ahead of the GPU")
                if comparison.clock
                else ("the wall clock", "wall_ms_mean", "the median", "its steps are uneven")
            )
            own, mean = times[int(run["replicate"])], number(run[column])
            if mean is not None and abs(mean / own - 1) > UNLIKE:
                found.append(
                    f"In replicate {run['replicate']} of `{variant.name}` the mean step by {other} is "
                    f"{percent(abs(mean / own - 1))} {'above' if mean > own else 'below'} {which} "
                    f"({digits(mean, 4)} against {digits(own, 4)} ms): {why}."
                )
    return found


def _unlike(medians: dict[int, float]) -> dict[int, float]:
    """Replicates far from their siblings, each with the siblings' median; of two, the slower one.

    The farthest is taken out before the rest are looked at, so that one slow replicate makes no other a fast one.
    """
    found: dict[int, float] = {}
    rest = dict(sorted(medians.items(), key=lambda item: -item[1]))
    while len(rest) > 2 or (len(rest) == len(medians) == 2):
        siblings = {n: median(ms for other, ms in rest.items() if other != n) for n in rest}
        farthest = max(rest, key=lambda n: max(rest[n] / siblings[n], siblings[n] / rest[n]))
        if abs(rest[farthest] / siblings[farthest] - 1) <= UNLIKE:
            break
        found[farthest] = siblings[farthest]
        del rest[farthest]
    return found


@dataclass(frozen=True)
class Problem:
    """Runs of one status: what it means, what to do, and (comparison, variant, replicates, reason) for each."""

    status: str
    runs: int
    meaning: str
    remedy: str
    lines: list[tuple[str, str, str, str]]


def problems(runs: Iterable[Row]) -> list[Problem]:
    """The runs that are not ok, by status, then variant and reason; `runs` holds one row each."""
    grouped: dict[str, dict[tuple[str, str, str], list[int]]] = {status: {} for status in REMEDIES}
    for row in runs:
        if row["status"] != "ok":
            key = row["comparison"], row["variant"], row["reason"]
            grouped[row["status"]].setdefault(key, []).append(int(row["replicate"]))
    return [
        Problem(
            wording.status(status),
            sum(map(len, lines.values())),
            TABLE_STATUSES[status],
            REMEDIES[status],
            [(f"`{key[0]}`", f"`{key[1]}`", wording.ranges(n), _cut(key[2])) for key, n in lines.items()],
        )
        for status, lines in grouped.items()
        if lines
    ]


def _cut(reason: str) -> str:
    return reason if len(reason) <= LONGEST_REASON else f"{reason[:LONGEST_REASON]} …"


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
