"""The sentences that a reader wants first: what kind of run this was, and what to use for each workload."""

from __future__ import annotations

from collections import Counter

from halfstep.report import wording
from halfstep.report.bands import NOT_CHECKED, OUTSIDE, REFERENCE, WITHIN
from halfstep.report.results import ComparisonResult, Results, VariantResult
from halfstep.report.statistics import Ranking
from halfstep.report.wording import code, digits, percent
from halfstep.runs import run_keys

MIGHT_BE_FASTER = ("disturbed", "missing", "stale", "failed", "timeout", "invalid")
HOST_BOUND = 0.1  # from this share of idle time on, an answer may be the host's


def first_line(results: Results) -> str:
    """What kind of run this was: scale, device, replicates, host or image."""
    if not results.records:
        return f"No run of this study has left a usable record for {results.scope.name}: there is nothing to read here."
    if results.scope.scale == "smoke":
        return (
            f"Smoke run on {_device(results)}: tiny models, {replicates(results)}; these figures test the "
            "pipeline and say nothing about precision or kernels."
        )
    images = Counter(str(record.get("image") or "host") for record in results.records)
    where = wording.join(
        "not in a container image" if image == "host" else f"in the image {image[:19]}" for image in images
    )
    return f"Full study on {_device(results)}, {replicates(results)} per variant, {where}."


def _device(results: Results) -> str:
    if results.scope.device == "cpu":
        return f"a CPU ({results.machine})"
    gpus = {row["gpu_uuid"] for row in results.runs if row["gpu_uuid"]}
    return f"one {results.machine}" if len(gpus) < 2 else f"{len(gpus)} GPUs ({results.machine})"


def clocked(results: Results) -> str:
    """Which comparisons answer nothing, since they go by an article's protocol; empty where none does."""
    names = [comparison.name for comparison in results.comparisons if comparison.clock]
    return f"Not asked here, since they go by the article's protocol: {code(names)}." if names else ""


def replicates(results: Results) -> str:
    """How many replicates the study asks for, over all comparisons."""
    asked: dict[str, set[int]] = {}
    for comparison, _, replicate in run_keys(results.study, results.scope):
        asked.setdefault(comparison, set()).add(replicate)
    counts = sorted({len(numbers) for numbers in asked.values()})
    return f"{counts[0]} to {counts[-1]} replicates" if len(counts) > 1 else wording.count(counts[0], "replicate")


def unasked(results: Results) -> str:
    """Why there is no answer at all; empty where there is one."""
    if results.scope.scale == "smoke":
        return "A smoke run is not asked that; the sections below only show that the pipeline works."
    return "" if results.comparisons else "No training step was measured."


def reading(results: Results) -> str:
    """How to read the answers."""
    text = (
        "Brackets hold 95 % intervals of ratios of throughput. Each ratio rests on pairs of replicates of its own, so "
        "two near variants can be told apart although their intervals against the baseline overlap."
    )
    return " ".join(filter(None, [text, clocked(results)]))


def what_to_use(comparison: ComparisonResult) -> str:
    """The answer of one comparison. A winner is named only where its interval against every other clears 1."""
    return " ".join(filter(None, [_use(comparison), _parity(comparison), _left_out(comparison), _unknown(comparison)]))


def _parity(comparison: ComparisonResult) -> str:
    """Whether what is named trains as fp32 does; empty where nothing of this comparison was checked."""
    if comparison.ranking is None or not any(v.row["parity"] in (WITHIN, OUTSIDE) for v in comparison.variants):
        return ""
    row = comparison[comparison.ranking.best].row
    if row["parity"] == NOT_CHECKED:
        return f"Whether it trains as fp32 does is not checked: {row['parity_why']}."
    return "It is the fp32 reference itself." if row["parity"] == REFERENCE else "It trains as fp32 does."


def _left_out(comparison: ComparisonResult) -> str:
    """That what trains out of bounds is no answer, however fast."""
    names = [variant.name for variant in comparison.outside]
    return f"Out of bounds in training, and so not considered: {code(names)}." if names else ""


def _unknown(comparison: ComparisonResult) -> str:
    """What might be faster: it can run here, and has no number."""
    statuses = {v.name: v.row["status"] for v in comparison.variants if v.row["status"] in MIGHT_BE_FASTER}
    if not statuses:
        return ""
    listed = wording.join(f"`{name}` ({wording.status(status)})" for name, status in statuses.items())
    return f"Without a number, and perhaps faster: {listed}."


def _use(comparison: ComparisonResult) -> str:
    ranking = comparison.ranking
    if ranking is None:
        return "no answer: no variant was measured" + " that is in bounds" * bool(comparison.measured) + "."
    best, baseline = comparison[ranking.best], comparison.baseline
    numbers = "; ".join(filter(None, [_ratios(comparison, ranking), _absolute(comparison, best)]))
    host_bound = _host_bound(comparison, ranking)
    if len(comparison.usable) == 1:
        alone = "was measured and is in bounds" if comparison.outside else "was measured"
        return f"only `{best.name}` {alone} ({_absolute(comparison, best)}): nothing to compare it with."
    if ranking.winner:
        if best.name == baseline:
            return f"stay with the baseline, `{baseline}` ({numbers}): all others are slower.{host_bound}"
        return f"use `{best.name}`: {numbers}.{host_bound}"
    text = f"`{best.name}` measured fastest ({numbers})"
    if baseline in ranking.tied:
        return (
            f"nothing clears the noise: {text}, but cannot be told apart from the baseline "
            f"{_tied_with(ranking, baseline)}."
            f"{host_bound}"
        )
    if ranking.tied:
        text += f", but cannot be told apart from {wording.tied(ranking.tied, ranking.ratios)}"
    if ranking.undecided and not ranking.beaten and not ranking.tied:
        text += "; without an interval against any other, no winner is named"
    elif ranking.undecided:
        text += f"; without an interval against {code(ranking.undecided)}, no winner is named"
    return f"{text}.{host_bound}"


def _tied_with(ranking: Ranking, baseline: str) -> str:
    others = [name for name in ranking.tied if name != baseline]
    nor = f", nor from {wording.tied(others, ranking.ratios)}" if others else ""
    return wording.tied([baseline], ranking.ratios) + nor


def _ratios(comparison: ComparisonResult, ranking: Ranking) -> str:
    """How many times as fast the best variant is: as the next best, and as the baseline where that is another.

    The two ratios are each paired by replicate, so the one against a near rival can be far narrower.
    """
    found = []
    baseline, second = comparison.baseline, ranking.next_best
    if second:
        which = (
            f"the baseline `{second}`, which is the next best" if second == baseline else f"`{second}`, the next best"
        )
        found.append(f"{wording.ratio(ranking.ratios[second])} times {which}")
    over = comparison[ranking.best].speedup
    if over and over.value is not None and second != baseline and not comparison[ranking.best].struck:
        found.append(f"{wording.ratio(over)} times the baseline `{baseline}`")
    return ", and ".join(found)


def _host_bound(comparison: ComparisonResult, ranking: Ranking) -> str:
    """A warning where a variant that decides the answer waits for its host: another host may be faster or slower."""
    names = dict.fromkeys([ranking.best, ranking.next_best or ranking.best, comparison.baseline])
    shares = {name: comparison[name].idle_share or 0 for name in names}
    idle = [(name, percent(share)) for name, share in shares.items() if share > HOST_BOUND]
    if not idle:
        return ""
    (name, share), *others = idle
    where = wording.join([f"{share} of the step in `{name}`", *(f"{share} in `{name}`" for name, share in others)])
    return f" Host-bound: the GPU idles {where}; another host may turn this order."


def _absolute(comparison: ComparisonResult, variant: VariantResult) -> str:
    text = f"{digits(variant['samples_per_s'])} {comparison.unit}/s"
    gib = variant["peak_allocated_gib"]
    return text if gib is None else f"{text}, {digits(gib)} GiB"
