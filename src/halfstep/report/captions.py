"""Captions: what there is to see in a figure, said from the same numbers that draw it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median, quantiles

from halfstep.report import wording
from halfstep.report.charts import time_axis
from halfstep.report.results import ComparisonResult
from halfstep.report.tables import FUSIBLE, GEMMS
from halfstep.report.wording import code, digits, percent

UNKNOWN_SHARE = 0.02  # from here on, kernels that the table of kinds does not know are a finding


def _replicates(comparison: ComparisonResult) -> str:
    counts = sorted({int(variant.row["ok"]) for variant in comparison.measured})
    many = f"{counts[0]} to {counts[-1]} replicates" if len(counts) > 1 else wording.count(counts[0], "replicate")
    return f"{many} per variant"


def _clock(comparison: ComparisonResult) -> str:
    """That step times are not medians on the device's clock, where they are not."""
    return f" By the article's protocol: {comparison.clock}." if comparison.clock else ""


def _unmeasured(comparison: ComparisonResult) -> str:
    absent = [
        f"`{variant.name}` ({wording.status(variant.row['status'])})"
        for variant in comparison.variants
        if not variant.measured
    ]
    return f" Without a number: {wording.join(absent)}." if absent else ""


def speedup(comparison: ComparisonResult, machine: str) -> str:
    ranking = comparison.ranking
    struck = [v.name for v in comparison.measured if v.struck and v.speedup and v.speedup.value is not None]
    ratios = {v.name: v.speedup for v in comparison.measured if v.speedup and v.name not in struck}
    with_value = {name: ratio for name, ratio in ratios.items() if ratio.value is not None}
    if not with_value:
        why = f"Every speed-up over `{comparison.baseline}` is struck out, since a side of it trains out of bounds."
        return f"{why}{_clock(comparison)} {machine}.{_unmeasured(comparison)}"
    best = max(with_value, key=lambda name: with_value[name].value or 0)
    if (with_value[best].value or 0) > 1:
        text = f"`{best}` has the highest speed-up over `{comparison.baseline}`: {wording.ratio(with_value[best])}."
    else:
        text = (
            f"No variant is faster than the baseline `{comparison.baseline}`; closest is `{best}`: "
            f"{wording.ratio(with_value[best])}."
        )
    if ranking and ranking.best == best and (tied := [n for n in ranking.tied if n != comparison.baseline]):
        text += f" It cannot be told apart from {wording.tied(tied, ranking.ratios)}."
    slower = [name for name, ratio in with_value.items() if ratio.below_one]
    within = [name for name, ratio in with_value.items() if ratio.low and not ratio.above_one and not ratio.below_one]
    if slower:
        text += f" Slower than the baseline: {code(slower)}."
    if within:
        text += f" Not to be told apart from the baseline: {wording.tied(within, with_value)}."
    pairs = sorted({ratio.pairs for ratio in with_value.values() if ratio.method == "paired"})
    if pairs:
        n = str(pairs[0]) if len(pairs) == 1 else f"{pairs[0]} to {pairs[-1]}"
        text += (
            f" Dots: geometric mean over {n} paired replicates; bars: 95 % interval (Student's t on the log ratios)."
        )
    unpaired = [name for name, ratio in with_value.items() if ratio.method == "unpaired"]
    single = [name for name, ratio in with_value.items() if ratio.method == "single"]
    if unpaired:
        text += f" Diamonds ({code(unpaired)}): replicates unpaired, Welch's interval."
    if single:
        text += f" Hollow, without an interval: {code(single)} (one pair)."
    if struck:
        text += f" Struck out (crosses, dotted), since a side trains out of bounds: {code(struck)}."
    no_ratio = [f"`{name}` ({ratio.reason})" for name, ratio in ratios.items() if ratio.value is None]
    if no_ratio:
        text += f" No ratio: {wording.join(no_ratio)}."
    return f"{text}{_clock(comparison)} {machine}.{_unmeasured(comparison)}"


def spread(comparison: ComparisonResult, steps: Mapping[str, Mapping[int, Sequence[float]]], machine: str) -> str:
    within = {}
    for name, replicates in steps.items():
        for replicate, times in replicates.items():
            cuts = quantiles(times, n=20, method="inclusive") if len(times) > 1 else times
            within[name, replicate] = (cuts[-1] - cuts[0]) / median(times)
    name, replicate = max(within, key=lambda key: within[key])
    widest = (
        f"The steps of `{name}` vary most, in replicate {replicate}: 5th to 95th percentile span "
        f"{percent(within[name, replicate])} of its median."
    )
    middle = "mean" if comparison.clock else "median"
    timed = int(median(len(times) for replicates in steps.values() for times in replicates.values()))
    return (
        f"{widest} {_between(comparison)} "
        f"Left: all timed steps; right: the same against the variant's own {middle}. A box per replicate, from top to "
        "bottom: quartiles and median, whiskers to the last steps within the 5th to 95th percentile, the others as "
        "points; skipped steps are left out. "
        f"{_replicates(comparison)}, about {timed} steps each.{_clock(comparison)} {machine}.{_unmeasured(comparison)}"
    )


def _between(comparison: ComparisonResult) -> str:
    """How far the replicates of a variant lie apart at most."""
    between = {v.name: v.require("step_ms_max") / v.require("step_ms_min") - 1 for v in comparison.measured}
    farthest = max(between, key=lambda name: between[name])
    middle = "Means" if comparison.clock else "Medians"
    return f"{middle} of replicates differ by at most {percent(between[farthest])} (`{farthest}`)."


def times(comparison: ComparisonResult, machine: str) -> str:
    """Of the chart with a dot per replicate, which only the page has."""
    struck = any(v.row[status] != "0" for v in comparison.variants for status in ("invalid", "disturbed"))
    crosses = " Crosses: invalid or disturbed, and in no number." * struck
    return (
        f"{_between(comparison)} A dot per replicate: the {'mean' if comparison.clock else 'median'} of its steps."
        f"{crosses} The axis does not start at 0.{_clock(comparison)} {machine}.{_unmeasured(comparison)}"
    )


def memory(comparison: ComparisonResult, frontier: Sequence[str], machine: str) -> str:
    points = [variant for variant in comparison.usable if variant["peak_allocated_gib"] is not None]
    fast = max(points, key=lambda variant: variant.require("samples_per_s"))
    small = min(points, key=lambda variant: variant.require("peak_allocated_gib"))

    def numbers(name: str) -> str:
        point = comparison[name]
        return f"{digits(point['samples_per_s'])} {comparison.unit}/s at {digits(point['peak_allocated_gib'])} GiB"

    if fast is small:
        text = f"`{fast.name}` is both fastest and smallest: {numbers(fast.name)}."
    else:
        text = (
            f"`{fast.name}` is fastest ({numbers(fast.name)}), `{small.name}` needs least memory "
            f"({numbers(small.name)}); the line joins the variants that no other beats in both: {code(frontier)}."
        )
    if comparison[comparison.baseline] in points and comparison.baseline not in (fast.name, small.name):
        text += f" Baseline `{comparison.baseline}`: {numbers(comparison.baseline)}."
    if comparison.outside:
        text += f" Out of bounds in training (hollow), and not counted: {code(v.name for v in comparison.outside)}."
    return (
        f"{text} Throughput: geometric mean of the replicates; memory: highest peak of torch's allocator after "
        f"the warm-up. The axes do not start at 0. {_replicates(comparison)}.{_clock(comparison)} {machine}."
        f"{_unmeasured(comparison)}"
    )


def kernels(comparison: ComparisonResult, machine: str) -> str:
    """Says what changes from the baseline to the fastest profiled variant, what may be fused taken together."""
    factors, unit = time_axis(comparison)
    profiled = [variant for variant in comparison.measured if variant.kernels]
    scaled = {
        variant.name: {kind: ms * factors[variant.name] for kind, ms in variant.kernels.items()} for variant in profiled
    }
    in_bounds = [variant for variant in profiled if variant.usable] or profiled
    fast = min(in_bounds, key=lambda variant: variant.require("step_ms") * factors[variant.name]).name
    base = comparison.baseline
    if base in scaled and fast != base:
        compiled = comparison[fast].row["compile"] != "none" == comparison[base].row["compile"]
        text = f"From `{base}` to `{fast}`, the fastest here: {_changes(scaled[base], scaled[fast], unit, compiled)}"
    else:
        most = max(scaled[fast], key=lambda kind: scaled[fast][kind])
        share = scaled[fast][most] / sum(scaled[fast].values())
        text = f"`{fast}`, the fastest here, spends most of its step in {most}: {percent(share)}."
    idle = {variant.name: variant.idle_share or 0 for variant in profiled}
    lazy = max(idle, key=lambda name: idle[name])
    if idle[lazy] >= 0.05:
        text += f" The GPU idles most in `{lazy}`: {percent(idle[lazy])} of the step."
    unknown = {name: kinds.get("other", 0) / sum(kinds.values()) for name, kinds in scaled.items()}
    vague = [name for name, share in unknown.items() if share > UNKNOWN_SHARE]
    if vague:
        most = max(vague, key=lambda name: unknown[name])
        text += (
            f" More than {UNKNOWN_SHARE * 100:g} % of the time is of no known kind (`other`) in "
            f"{wording.count(len(vague), 'variant')}, at most {percent(unknown[most])} (`{most}`)."
        )
    return (
        f"{text} Arithmetic means over replicates of a profiled step outside the timed window, so a bar's total is not "
        f"quite the step time above, a geometric mean; idle: the unprofiled {'step' if comparison.clock else 'median'} "
        f"less the time in which a kernel ran.{_clock(comparison)} {machine}.{_unmeasured(comparison)}"
    )


def _changes(before: Mapping[str, float], after: Mapping[str, float], unit: str, compiled: bool) -> str:
    """What may be fused, together; matrix products where they change; other kinds where it matters to the step."""
    kinds = list(dict.fromkeys([*before, *after]))
    fused = [kind for kind in FUSIBLE if kind in kinds]
    groups = {"GEMM": [kind for kind in GEMMS if kind in kinds]}
    groups |= {kind: [kind] for kind in kinds if kind not in (*FUSIBLE, *GEMMS)}
    text = []
    if fused:
        go = "together go" if len(fused) > 1 else "goes"
        fuses = "; Inductor fuses them into pointwise kernels" * (compiled and len(fused) > 1)
        text.append(f"{wording.join(fused)} {go} from {_span(before, after, fused)} {unit}{fuses}.")
    step = sum(before.values())
    for name, members in groups.items():
        old, new = _sum(before, members), _sum(after, members)
        if abs(new - old) > (0.02 * old if name == "GEMM" else 0.05 * step):
            text.append(f"{name[0].upper()}{name[1:]} goes from {_span(before, after, members)}.")
    return " ".join(text) or f"no kind of kernel changes by much ({unit})."


def _sum(times: Mapping[str, float], kinds: Sequence[str]) -> float:
    return sum(times.get(kind, 0) for kind in kinds)


def _span(before: Mapping[str, float], after: Mapping[str, float], kinds: Sequence[str]) -> str:
    return f"{digits(_sum(before, kinds))} to {digits(_sum(after, kinds))}"
