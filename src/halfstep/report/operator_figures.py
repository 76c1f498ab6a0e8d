"""The figure of each operator comparison, with its caption, or with the sentence why there is none."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from matplotlib.figure import Figure

from halfstep.report import operator_charts, wording
from halfstep.report.operators import NORM_CASE, gemm_case, type_cases
from halfstep.report.results import OperatorResult, VariantResult
from halfstep.report.wording import digits, percent

OPERATOR_KIND = "cases"
TITLES = {
    "dtypes": "Rounding of the sample",
    "gemm": "Speed of the products",
    "optimizer_step": "Time of a step",
    "norm": "Time and accuracy of the norms",
}
UNKNOWN_OPERATOR = "Time of the calls"
Drawn = tuple[Callable[[], Figure], str]


def operator_title(operator: OperatorResult) -> str:
    return TITLES.get(operator.workload, UNKNOWN_OPERATOR)


def operator_figure(operator: OperatorResult, machine: str) -> Drawn | str:
    """How to draw it and its caption, or why there is nothing to draw."""
    if not operator.measured:
        return "No variant was measured."
    charts = {"dtypes": _dtypes, "gemm": _gemm, "optimizer_step": _optimizer_step, "norm": _norm}
    drawn = charts.get(operator.workload)
    if drawn is None:
        return f"The operator `{operator.workload}` has no chart of its own: its numbers are in the table."
    draw, caption = drawn(operator)
    absent = [f"`{found.name}` ({wording.status(found.row['status'])})" for found in operator.without_cases]
    without = f" Without a number: {wording.join(absent)}." if absent else ""
    return draw, f"{caption} {machine}.{without}"


def _measured(operator: OperatorResult, case: str) -> dict[str, VariantResult]:
    return {name: found for name, found in operator.cases[case].items() if found.measured}


def _fastest(operator: OperatorResult, case: str) -> str:
    """`apex` (1.2 ms, 1.3 [1.2, 1.4] times the baseline)."""
    measured = _measured(operator, case)
    name = min(measured, key=lambda name: measured[name].require("step_ms"))
    text = f"`{name}` ({digits(measured[name]['step_ms'])} ms"
    over = measured[name].speedup
    if name == operator.baseline:
        text += ", the baseline"
    elif over and over.value is not None:
        text += f", {wording.ratio(over)} times the baseline `{operator.baseline}`"
    return f"{text})"


def _across(operator: OperatorResult) -> str:
    """What the lines across the bars are, if any was drawn."""
    if all(found["kernel_ms"] is None for found in operator.measured):
        return ""
    return (
        "Lines across the bars: for how long the kernels of a call ran; a call whose bar is far longer waited for the "
        "CPU. "
    )


def _gemm(operator: OperatorResult) -> Drawn:
    places: dict[bool, dict[bool, dict[str, dict[str, float]]]] = {
        square: {False: {}, True: {}} for square in (True, False)
    }
    largest: dict[bool, tuple[int, str]] = {}  # by whether casts are included
    for case in operator.cases:
        read = gemm_case(case)
        if read is None:
            continue
        label = read.layer.removeprefix("ViT-Huge ") if read.layer else str(read.m)
        for name, found in _measured(operator, case).items():
            series = places[not read.layer][read.casts].setdefault(name, {})
            series[label] = found.require("model_tflop_per_s")
            if not read.layer:
                largest[read.casts] = max(largest.get(read.casts, (0, "")), (read.m, case))
    sentences = []
    for casts, (size, case) in sorted(largest.items()):
        measured = _measured(operator, case)
        best = max(measured, key=lambda name: measured[name].require("model_tflop_per_s"))
        share = measured[best]["peak_share"]
        where = f"with the casts in the time at {size}" if casts else f"at {size}, operands cast already,"
        of_peak = f", {percent(share)} of the stated peak" if share is not None else ""
        reached = f"{where} `{best}` reaches {digits(measured[best]['model_tflop_per_s'])} TFLOP/s{of_peak}"
        over = measured[best].speedup
        if over and over.value is not None:
            reached += f" ({wording.ratio(over)} times `{operator.baseline}`)"
        sentences.append(reached)
    text = "; ".join(sentences) or "No square product was measured"
    below = (
        " Below: the linear layers of ViT-Huge in a forward pass of 128 images." if any(places[False].values()) else ""
    )
    caption = (
        f"{text[0].upper()}{text[1:]}. FLOPs are those of the product, with and without casts. Casts: amax, scale and "
        f"cast of both operands in plain torch, in `te` by its own kernels; `bf16` has nothing to cast.{below} "
        "Geometric means of the replicates."
    )
    return partial(operator_charts.gemm, places[True], places[False], operator.variants), caption


def _optimizer_step(operator: OperatorResult) -> Drawn:
    cases = [case for case in operator.cases if _measured(operator, case)]
    times, kernels, bandwidth = (
        {
            case: {
                name: {"": value}
                for name, found in _measured(operator, case).items()
                if (value := found[column]) is not None
            }
            for case in cases
        }
        for column in ("step_ms", "kernel_ms", "gb_per_s")
    )
    absent = {found.name: wording.status(found.row["status"]) for found in operator.without_cases}
    fastest = wording.join(f"over the parameters of {case} {_fastest(operator, case)}" for case in cases)
    caption = (
        f"Fastest is {fastest}. GB/s: 28 bytes per fp32 parameter, which a step has to read and write at least. "
        f"{_across(operator)}Geometric means of the replicates."
    )
    return partial(operator_charts.optimizer_step, times, kernels, bandwidth, absent), caption


def _norm(operator: OperatorResult) -> Drawn:
    times: dict[tuple[str, str], dict[str, dict[str, float]]] = {}
    kernels: dict[tuple[str, str], dict[str, dict[str, float]]] = {}
    sqnr: dict[str, dict[str, dict[str, float]]] = {}
    widest: dict[tuple[str, str], tuple[int, str]] = {}
    for case in operator.cases:
        read = NORM_CASE.fullmatch(case)
        if read is None:
            continue
        key = read["dtype"], read["passes"]
        for name, found in _measured(operator, case).items():
            times.setdefault(key, {}).setdefault(name, {})[read["width"]] = found.require("step_ms")
            if (alone := found["kernel_ms"]) is not None:
                kernels.setdefault(key, {}).setdefault(name, {})[read["width"]] = alone
            widest[key] = max(widest.get(key, (0, "")), (int(read["width"]), case))
            lowest = sqnr.setdefault(read["dtype"], {}).setdefault(name, {})
            if (now := found["sqnr_db"]) is not None:
                passes = "forward" if read["passes"] == "forward" else "+backward"
                lowest[passes] = min(now, lowest.get(passes, now))
    fastest = [
        f"in {dtype} {passes} {_fastest(operator, case)}" for (dtype, passes), (_, case) in sorted(widest.items())
    ]
    width = max(width for width, _ in widest.values())
    caption = (
        f"Fastest at width {width} is {wording.join(fastest)}. Accuracy: the lowest SQNR over all widths against "
        "float64, of the output, and with the backward pass of the input's gradient; higher is better, 6 dB are one "
        f"bit. {_across(operator)}Times: geometric means of the replicates."
    )
    return partial(operator_charts.norm, times, kernels, sqnr, operator.variants), caption


def _dtypes(operator: OperatorResult) -> Drawn:
    cells: dict[str, dict[str, float]] = {}
    for match, found in type_cases(operator, "cast"):
        cells.setdefault(match["type"], {})[match["row"]] = float(found.row["value"])
    exact = cells.pop("float32")
    errors = {
        dtype: {digits(exact[row], 7): abs(value / exact[row] - 1) * 100 for row, value in values.items()}
        for dtype, values in cells.items()
    }
    bounds = {
        match["type"]: float(found.row["value"]) / 2 * 100
        for match, found in type_cases(operator, "finfo")
        if match["row"] == "eps"
    }
    largest = [f"{digits(max(values.values()), 2)} % in {dtype}" for dtype, values in errors.items()]
    caption = (
        f"The article's four float32 values, cast. The largest relative error is {wording.join(largest)}. Lines: half "
        "of each type's eps, which a normal value's rounding never exceeds."
    )
    return partial(operator_charts.dtypes, errors, bounds), caption
