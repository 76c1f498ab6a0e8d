"""The sentences that a reader wants first: what kind of run this was, and what to use for each workload."""

from __future__ import annotations

from collections import Counter

from halfstep.report import wording
from halfstep.report.results import ComparisonResult, Results, VariantResult
from halfstep.report.statistics import Ranking
from halfstep.report.wording import code, digits
from halfstep.study import SMOKE_REPLICATES


def first_line(results: Results) -> str:
    """What kind of run this was: scale, device, replicates, host or image."""
    if not results.records:
        return (
            f"No run of this study has left a usable record for {results.folder.name}: there is nothing to read here."
        )
    if results.scope.scale == "smoke":
        return (
            f"Smoke run on {_device(results)}: tiny models, {SMOKE_REPLICATES} replicates; these figures test the "
            "pipeline and say nothing about precision or kernels."
        )
    images = Counter(str(record.get("image") or "host") for record in results.records)
    where = wording.join("on the host" if image == "host" else f"in the image {image[:19]}" for image in images)
    return f"Full study on {_device(results)}, {replicates(results)} per variant, {where}."


def _device(results: Results) -> str:
    if results.scope.device == "cpu":
        return f"a CPU ({results.machine})"
    gpus = {row["gpu_uuid"] for row in results.runs if row["gpu_uuid"]}
    return f"one {results.machine}" if len(gpus) < 2 else f"{len(gpus)} GPUs ({results.machine})"


def replicates(results: Results) -> str:
    """How many replicates the study asks for, over all comparisons."""
    counts = sorted({int(variant.row["replicates"]) for entry in results.comparisons for variant in entry.variants})
    return f"{counts[0]} to {counts[-1]} replicates" if len(counts) > 1 else wording.count(counts[0], "replicate")


def what_to_use(comparison: ComparisonResult) -> str:
    """The answer of one comparison. A winner is named only where its interval against every other clears 1."""
    ranking = comparison.ranking
    if ranking is None:
        return "no answer: no variant was measured."
    best, baseline = comparison[ranking.best], comparison.baseline
    if len(comparison.measured) == 1:
        return f"only `{best.name}` was measured ({_absolute(comparison, best)}): nothing to compare it with."
    if ranking.winner:
        if best.name == baseline:
            return f"stay with the baseline, `{baseline}` ({_absolute(comparison, best)}): all others are slower."
        return f"use `{best.name}`: {_against_baseline(comparison, best)}{_absolute(comparison, best)}."
    text = f"`{best.name}` measured fastest ({_against_baseline(comparison, best)}{_absolute(comparison, best)})"
    if baseline in ranking.tied:
        return (
            f"nothing clears the noise: {text}, but cannot be told apart from the baseline{_others(ranking, baseline)}."
        )
    if ranking.tied:
        text += f", but cannot be told apart from {code(ranking.tied)}"
    if ranking.undecided:
        text += f"; without an interval against {code(ranking.undecided)}, no winner is named"
    return f"{text}."


def _others(ranking: Ranking, baseline: str) -> str:
    others = [name for name in ranking.tied if name != baseline]
    return f" `{baseline}`" + (f" (nor from {code(others)})" if others else "")


def _against_baseline(comparison: ComparisonResult, variant: VariantResult) -> str:
    """`1.25 [1.24, 1.26] times the throughput of the baseline `x`, ` or nothing where there is no ratio."""
    if variant.speedup is None or variant.speedup.value is None:
        return ""
    return f"{wording.ratio(variant.speedup)} times the throughput of `{comparison.baseline}`, "


def _absolute(comparison: ComparisonResult, variant: VariantResult) -> str:
    text = f"{digits(variant['samples_per_s'])} {comparison.unit}/s"
    gib = variant["peak_allocated_gib"]
    return text if gib is None else f"{text}, {digits(gib)} GiB"
