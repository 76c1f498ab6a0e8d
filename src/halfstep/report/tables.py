"""The tables of a study, made from the rows of its runs: their columns, and how each number comes about.

Only runs with status ok enter a number. Cells are text; what was not measured is empty.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import floor, isfinite, log10
from pathlib import Path
from statistics import fmean, median

from halfstep.claims import PROTOCOLS
from halfstep.kernel_kinds import KINDS, kind_of
from halfstep.records import RESULT_COLUMNS, TABLE_STATUSES, read_csv
from halfstep.report.origin import check_numbers
from halfstep.report.statistics import Timing, compare, geometric_mean, rank

Row = dict[str, str]
Numbers = Sequence[float]

IDLE = "idle"
# what a compiler fuses into one kernel; the split between them then says little
FUSIBLE = ("norm", "pointwise", "cast/scale", "copy")
GEMMS = ("GEMM", "FP8 GEMM")

SETTINGS = (
    "workload",
    "precision",
    "weights",
    "compile",
    "optimizer",
    "norm",
    "gemm",
    "data",
    "memory_cap_gib",
    "batch",
)

NUMERIC = [name for name in RESULT_COLUMNS if name not in ("sample_unit", "compile_cache", "value")]
"""results that are numbers"""

PROTOCOL = "what a replicate's step time is: `fair`: step_ms_median, `article`: host_ms_mean of runs.csv"

# column: (meaning, the run's column, how the ok replicates make one number)
AGGREGATES: dict[str, tuple[str, str, Callable[[Numbers], float]]] = {
    "samples_per_step": ("samples in one step", "samples_per_step", median),
    "step_ms": ("geometric mean of the replicates' step times by `protocol` (ms)", "step_ms", geometric_mean),
    "step_ms_min": ("smallest of the replicates' step times (ms)", "step_ms", min),
    "step_ms_max": ("largest of the replicates' step times (ms)", "step_ms", max),
    "step_ms_p05": ("median of the replicates' 5th percentiles, always as in runs.csv (ms)", "step_ms_p05", median),
    "step_ms_p95": ("median of the replicates' 95th percentiles, always as in runs.csv (ms)", "step_ms_p95", median),
    "wall_ms_mean": ("median of the replicates' wall clock per step (ms)", "wall_ms_mean", median),
    "samples_per_s": (
        "geometric mean of the replicates' samples per second",
        "samples_per_s",
        geometric_mean,
    ),
    "steps": ("most timed steps of a replicate", "steps", max),
    "skipped_steps": ("timed steps that GradScaler skipped, all replicates", "skipped_steps", sum),
    "startup_s": ("median time from process start to the first step (s)", "startup_s", median),
    "graph_breaks": ("most graph breaks of a replicate", "graph_breaks", max),
    "peak_allocated_gib": ("highest peak of allocated memory (GiB)", "peak_allocated_gib", max),
    "peak_reserved_gib": ("highest peak of reserved memory (GiB)", "peak_reserved_gib", max),
    "loss_last": ("median loss of the last timed step", "loss_last", median),
    "model_tflop_per_step": ("model FLOPs of one step (TFLOP)", "model_tflop_per_step", median),
    "model_tflop_per_s": ("geometric mean of model TFLOP/s", "model_tflop_per_s", geometric_mean),
    "peak_tflop_per_s": ("stated peak for the precision of the matrix products (TFLOP/s)", "peak_tflop_per_s", median),
    "peak_share": ("geometric mean of the share of the stated peak", "peak_share", geometric_mean),
    "gb_per_s": ("operators: geometric mean of GB/s", "gb_per_s", geometric_mean),
    "max_abs_error": ("operators: largest difference from a float64 reference", "max_abs_error", max),
    "sqnr_db": ("operators: lowest SQNR against a float64 reference (dB)", "sqnr_db", min),
    "kernel_ms": ("mean time per step in which a kernel ran (ms)", "kernel_ms", fmean),
    "idle_ms": ("mean time per step in which none ran (ms)", "idle_ms", fmean),
    "power_w_mean": ("mean power of the board (W)", "power_w_mean", fmean),
    "power_limit_w": ("lowest enforced power limit (W)", "power_limit_w", min),
    "energy_j_per_step": ("mean energy of the board per step (J)", "energy_j_per_step", fmean),
    "sm_clock_mhz_mean": ("mean SM clock (MHz)", "sm_clock_mhz_mean", fmean),
    "temperature_c_max": ("highest GPU temperature (deg C)", "temperature_c_max", max),
    "power_capped_share": ("mean share of telemetry samples at the power limit", "power_capped_share", fmean),
}
COLD: dict[str, tuple[str, str]] = {
    "first_step_s": ("median first step where no compile cache was reused (s)", "first_step_s"),
    "compile_s": ("median time in torch.compile where no compile cache was reused (s)", "compile_s"),
}
VARIANTS_COLUMNS: dict[str, str] = {
    "comparison": "comparison in config.yaml",
    "variant": "variant in that comparison, in the order of config.yaml",
    "case": "what an operator was called on; empty for training steps",
    "is_baseline": "1 for the comparison's baseline",
    **dict.fromkeys(SETTINGS, "as in runs.csv"),
    "protocol": PROTOCOL,
    "replicates": "replicates that the study asks for",
    **{status: f"replicates with this status: {meaning}" for status, meaning in TABLE_STATUSES.items()},
    "status": "`ok` if one replicate is, else the most frequent status",
    "reason": "reason of that status",
    "sample_unit": "what a sample is: images or tokens; calls for an operator",
    "value": "operator dtypes: the value that the case names",
    **{column: meaning for column, (meaning, _, _) in AGGREGATES.items()},
    "energy_j_per_sample": "energy_j_per_step / samples_per_step (J)",
    **{column: meaning for column, (meaning, _) in COLD.items()},
    "first_step_warm_s": "median first step where the compile cache was reused (s)",
    "parity": "whether it trains as fp32 does, by the verdicts of parity.csv: the worst of its recipes' and its own; "
    "empty for an operator",
    "parity_why": "which of them, and why it is not `within`",
}
SPEEDUPS_COLUMNS: dict[str, str] = {
    "comparison": "comparison in config.yaml",
    "variant": "variant that is not the baseline",
    "case": "what an operator was called on; empty for training steps",
    "protocol": PROTOCOL,
    "baseline": "variant it is compared with",
    "speedup": "time per sample of the baseline over the variant's: above 1 the variant is faster",
    "speedup_low": "lower end of the 95 % interval",
    "speedup_high": "upper end of the 95 % interval",
    "pairs": "replicates measured on both sides on one GPU in one sitting and environment",
    "n_baseline": "ok replicates of the baseline that could enter",
    "n_variant": "ok replicates of the variant that could enter",
    "method": "`paired` (Student's t on the log ratios), `unpaired` (Welch's t on the logs), `single` (one pair, no "
    "interval) or empty (no ratio)",
    "reason": "why there is no ratio, no interval or no pairing",
    "struck": "why the ratio must not be used: which side trains out of bounds; empty where it may",
}
RANKING_COLUMNS: dict[str, str] = {
    "comparison": "comparison in config.yaml",
    "variant": "measured variant that is not the fastest, and does not train out of bounds",
    "fastest": "variant with the least time per sample (geometric mean), of those that do not train out of bounds",
    "ratio": "time per sample of the variant over the fastest's: how many times as fast the fastest is",
    "low": "lower end of the 95 % interval",
    "high": "upper end of the 95 % interval",
    "pairs": "replicates measured on both sides on one GPU in one sitting and environment",
    "method": "as in speedups.csv",
    "reason": "why there is no ratio, no interval or no pairing",
}
KERNELS_TABLE_COLUMNS: dict[str, str] = {
    "comparison": "comparison in config.yaml",
    "variant": "variant in that comparison",
    "kind": f"kind of kernel, or `{IDLE}`: step time in which no kernel ran",
    "ms_per_step": "mean over the ok replicates with a profile of the summed duration in one step (ms)",
    "share": "share of the sum over all kinds and idle",
    "replicates": "ok replicates with a profile",
}


# columns of all tables together, since a name means the same in each
NUMBERS = frozenset(
    {
        *NUMERIC, *AGGREGATES, *COLD, *TABLE_STATUSES, *PROTOCOLS, "replicate", "replicates", "energy_j_per_sample",
        "first_step_warm_s", "speedup", "pairs", "n_baseline", "n_variant", "ratio", "low", "high", "ms_per_step",
        "share", "seed", "steps", "final_loss", "reference_loss", "deviation", "visible", "own_deviation",
        "norm_deviation", "norm_visible", "parameters_trained", "skipped_steps",
    }
)  # fmt: skip
NUMBER_ENDS = ("_low", "_high", "_pairs", "_share")


def read_table(path: Path, columns: Mapping[str, str]) -> list[Row]:
    """The rows of one of our tables, as `read_csv` gives them.

    Raises:
        RecordError: as `read_csv`; or a cell is no number where one belongs, as after a program with decimal commas has
            saved the table.
    """
    rows = read_csv(path, columns)
    numbers = [name for name in columns if name in NUMBERS or name.endswith(NUMBER_ENDS)]
    check_numbers(path.name, rows, numbers, finite=False)
    return rows


def number(text: str) -> float | None:
    """A cell's number; None where it is empty or not finite."""
    value = float(text) if text else float("nan")
    return value if isfinite(value) else None


def cell(value: float | None) -> str:
    """Six significant digits, so that another machine's last bits give the same file."""
    if value is None:
        return ""
    if value == 0:
        return "0"
    decimals = 5 - floor(log10(abs(value)))
    text = f"{round(value, decimals):.{max(decimals, 0)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def timings(rows: Sequence[Row]) -> list[Timing]:
    """What the ok runs among `rows` (by protocol) give to a ratio."""
    return [
        Timing(
            int(row["replicate"]),
            row["gpu_uuid"],
            row["sitting"],
            row["environment"],
            float(row["step_ms"]) / float(row["samples_per_step"]),
        )
        for row in rows
        if row["status"] == "ok" and row["step_ms"]
    ]


def variant_row(rows: Sequence[Row], replicates: int, is_baseline: bool) -> Row:
    """The row of variants.csv for the runs of one variant (and case)."""
    counts = {status: sum(row["status"] == status for row in rows) for status in TABLE_STATUSES}
    status = "ok" if counts["ok"] else max(counts, key=lambda name: counts[name])
    ok = [row for row in rows if row["status"] == "ok"]
    cold = [row for row in ok if row["compile_cache"] != "warm"]
    warm = [row for row in ok if row["compile_cache"] == "warm"]
    energy, samples = (_aggregate(ok, name, fmean) for name in ("energy_j_per_step", "samples_per_step"))
    return {
        "comparison": rows[0]["comparison"],
        "variant": rows[0]["variant"],
        "case": rows[0]["case"],
        "is_baseline": "1" if is_baseline else "0",
        **{name: rows[0][name] for name in (*SETTINGS, "protocol")},
        "replicates": str(replicates),
        **{name: str(count) for name, count in counts.items()},
        "status": status,
        "reason": next(row["reason"] for row in rows if row["status"] == status),
        "sample_unit": ok[0]["sample_unit"] if ok else "",
        "value": ok[0]["value"] if ok else "",
        **{column: cell(_aggregate(ok, source, how)) for column, (_, source, how) in AGGREGATES.items()},
        "energy_j_per_sample": cell(energy / samples) if energy is not None and samples else "",
        **{column: cell(_aggregate(cold, source, median)) for column, (_, source) in COLD.items()},
        "first_step_warm_s": cell(_aggregate(warm, "first_step_s", median)),
    }


def _aggregate(rows: Sequence[Row], column: str, how: Callable[[Numbers], float]) -> float | None:
    values = [value for row in rows if (value := number(row[column])) is not None]
    return how(values) if values else None


def speedup_row(baseline: str, baseline_rows: Sequence[Row], variant: Sequence[Row]) -> Row:
    """The row of speedups.csv for a variant's runs against those of the baseline."""
    ratio = compare(timings(baseline_rows), timings(variant))
    return {
        "comparison": variant[0]["comparison"],
        "variant": variant[0]["variant"],
        "case": variant[0]["case"],
        "protocol": variant[0]["protocol"],
        "baseline": baseline,
        "speedup": cell(ratio.value),
        "speedup_low": cell(ratio.low),
        "speedup_high": cell(ratio.high),
        "pairs": str(ratio.pairs),
        "n_baseline": str(ratio.n_baseline),
        "n_variant": str(ratio.n_variant),
        "method": ratio.method,
        "reason": ratio.reason,
    }


def ranking_rows(comparison: str, variants: Mapping[str, Sequence[Row]]) -> list[Row]:
    """The rows of ranking.csv: the fastest variant against each other one that was measured."""
    ranking = rank({name: timings(rows) for name, rows in variants.items()})
    if ranking is None:
        return []
    return [
        {
            "comparison": comparison,
            "variant": name,
            "fastest": ranking.best,
            "ratio": cell(ratio.value),
            "low": cell(ratio.low),
            "high": cell(ratio.high),
            "pairs": str(ratio.pairs),
            "method": ratio.method,
            "reason": ratio.reason,
        }
        for name, ratio in ranking.ratios.items()
    ]


def kernel_rows(comparison: str, variant: str, runs: Sequence[tuple[Row, Sequence[Row]]]) -> list[Row]:
    """The rows of the kernels table: `runs` holds a summary row and the rows of kernels.csv per ok replicate."""
    profiled = [(summary, kernels) for summary, kernels in runs if kernels]
    if not profiled:
        return []
    means = dict.fromkeys(KINDS, 0.0)
    for _, kernels in profiled:
        for kernel in kernels:
            # by today's table of kinds, which may know more than the run's own did
            means[kind_of(kernel["kernel"])] += float(kernel["ms_per_step"]) / len(profiled)
    idle = _aggregate([summary for summary, _ in profiled], "idle_ms", fmean)
    kinds: Mapping[str, float] = {**means, IDLE: idle or 0.0}
    total = sum(kinds.values())
    return [
        {
            "comparison": comparison,
            "variant": variant,
            "kind": kind,
            "ms_per_step": cell(ms),
            "share": cell(ms / total),
            "replicates": str(len(profiled)),
        }
        for kind, ms in kinds.items()
        if ms or (kind == IDLE and idle is not None)
    ]
