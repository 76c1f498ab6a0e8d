"""The report's sections of training comparisons: their table, and the sentences around it."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from halfstep.report import wording
from halfstep.report.results import ComparisonResult, Results, VariantResult
from halfstep.report.statistics import Ratio
from halfstep.report.tables import number
from halfstep.report.wording import EMPTY, code, digits, percent

UNLIKE = 0.05  # a replicate farther than this from its siblings, or its mean from its median, is a finding
MOSTLY = 0.5  # share of telemetry samples


def variant_headings(comparison: ComparisonResult) -> list[str]:
    sample = wording.singular(comparison.unit)
    found = [
        "variant", "batch", "step ms", f"{comparison.unit}/s", "speed-up", "n", "parity", "peak allocated GiB",
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
        _speedup(variant),
        _n(speedup),
        row["parity"],
        digits(variant["peak_allocated_gib"]),
        tflops,
        digits(None if energy is None else energy * 1e3),
        digits(variant["first_step_s"]) + (f" ({digits(compiling)})" if compiling is not None else ""),
        *(_whole_run(variant) if row["protocol"] == "article" else ()),
        "ok" if ok == asked else f"ok {ok} of {asked}" if ok else wording.status(row["status"]),
    ]


def _speedup(variant: VariantResult) -> str:
    text = "baseline" if variant.speedup is None else wording.ratio(variant.speedup)
    return wording.strike(text) if variant.struck and text != EMPTY else text


def struck(comparison: ComparisonResult) -> list[str]:
    """Why speed-ups are struck out; in one sentence where it is the baseline's doing."""
    names: dict[str, list[str]] = {}
    for variant in comparison.variants:
        if variant.struck and variant.speedup and variant.speedup.value is not None:
            names.setdefault(variant.struck, []).append(variant.name)
    return [
        f"Struck out: {why}." if why.startswith(f"{code(found)} ") else f"Struck out: {code(found)}, since {why}."
        for why, found in names.items()
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
    """What the variants were set to; where they differ a value is followed by those that have it."""
    parts = []
    for key in ("precision", "compile", "weights", "optimizer", "norm", "data"):
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


def introduction(results: Results, comparison: ComparisonResult) -> str:
    """Which comparison it is, and what its variants were set to."""
    named = f"Comparison `{comparison.name}`; the baseline is `{comparison.baseline}`."
    return f"{named} {settings(results, comparison)}"


def protocol(comparison: ComparisonResult) -> str:
    """How it was timed where not as the others; empty where as they."""
    if not comparison.clock:
        return ""
    return (
        f"By the article's protocol: a DataLoader in the step, and as step time the {comparison.clock}. Ratios, "
        "ranking and figures of this comparison go by it. Run time and final loss are those of the window, of the same "
        "number of steps for all."
    )


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
