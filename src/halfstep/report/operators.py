"""The report's sections of operator comparisons: their tables, and how the names of their cases are read."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from halfstep.report import wording
from halfstep.report.results import OperatorResult, VariantResult
from halfstep.report.wording import EMPTY, digits, percent

CAST = ", cast included"
GEMM_CASE = re.compile(rf"(?P<layer>.*?) ?(?P<m>\d+)x(?P<n>\d+)x(?P<k>\d+)(?P<cast>{CAST})?")
NORM_CASE = re.compile(r"(?P<width>\d+) (?P<dtype>fp32|bf16) (?P<passes>forward|forward\+backward)")
DTYPE_CASE = re.compile(r"(?P<table>finfo|cast|operation|product) (?P<type>\S+) (?P<row>.+)")
TABLES = {"finfo": "limit", "cast": "value of the sample", "operation": "operation", "product": "product"}


class GemmCase(NamedTuple):
    """Read from a case's name; the layer of a square is empty."""

    layer: str
    m: int
    casts: bool


def gemm_case(name: str) -> GemmCase | None:
    """None for the example, which is no size to compare."""
    found = GEMM_CASE.fullmatch(name)
    return GemmCase(found["layer"], int(found["m"]), bool(found["cast"])) if found else None


def introduction(operator: OperatorResult) -> str:
    """Which comparison it is, and of what."""
    baseline = f"; the baseline is `{operator.baseline}`" * (len(operator.variants) > 1)
    return f"Comparison `{operator.name}` of calls, not training steps: the operator `{operator.workload}`{baseline}."


class Table(NamedTuple):
    headings: list[str]
    lines: list[list[str]]


def tables(operator: OperatorResult) -> list[Table]:
    """One of all cases and variants; of the number types four: limits, casts, operations, products."""
    if operator.workload == "dtypes":
        return [table for kind in TABLES if (table := _types(operator, kind)).lines]
    return [_timed(operator)]


def _timed(operator: OperatorResult) -> Table:
    """A line per case and variant; a column that no case fills is left out."""
    columns = {
        "TFLOP/s (of peak)": _tflops,
        "GB/s": lambda found: digits(found["gb_per_s"]),
        "largest difference": lambda found: digits(found["max_abs_error"], 2),
        "SQNR dB": lambda found: digits(found["sqnr_db"]),
    }
    filled = {
        heading: cell for heading, cell in columns.items() if any(cell(found) != EMPTY for found in operator.measured)
    }
    lines = []
    for case, variants in operator.cases.items():
        for name, found in variants.items():
            lines.append(
                [
                    case,
                    f"`{name}`",
                    digits(found["step_ms"], 4),
                    speedup(found, name == operator.baseline),
                    *(cell(found) for cell in filled.values()),
                    status(found),
                ]
            )
    return Table(["case", "variant", "ms", "speed-up", *filled, "status"], lines)


def _tflops(found: VariantResult) -> str:
    share = found["peak_share"]
    return digits(found["model_tflop_per_s"]) + (f" ({percent(share)})" if share is not None else "")


def speedup(found: VariantResult, is_baseline: bool) -> str:
    if is_baseline and found.measured:
        return "baseline"
    if found.speedup is None or found.speedup.value is None:
        return EMPTY
    return wording.ratio(found.speedup) + ", unpaired" * (found.speedup.method == "unpaired")


def status(found: VariantResult) -> str:
    asked, ok = int(found.row["replicates"]), int(found.row["ok"])
    return "ok" if ok == asked else f"ok {ok} of {asked}" if ok else wording.status(found.row["status"])


def _types(operator: OperatorResult, kind: str) -> Table:
    """The values of one table: a row per limit, value of the sample or operation, a column per type."""
    cells: dict[str, dict[str, str]] = {}
    types: list[str] = []
    for match, found in type_cases(operator, kind):
        types += [match["type"]] if match["type"] not in types else []
        cells.setdefault(match["row"], {})[match["type"]] = found.row["value"] or wording.status(found.row["status"])
    lines = [[row.replace("_", " "), *(values.get(name, EMPTY) for name in types)] for row, values in cells.items()]
    return Table([TABLES[kind], *types], lines)


def type_cases(operator: OperatorResult, kind: str) -> Iterator[tuple[re.Match[str], VariantResult]]:
    """The cases of one table with their names taken apart, as the comparison's baseline found them."""
    for case, variants in operator.cases.items():
        match = DTYPE_CASE.fullmatch(case)
        if match and match["table"] == kind and operator.baseline in variants:
            yield match, variants[operator.baseline]


def notes(operator: OperatorResult) -> list[str]:
    """Which cases of a variant that was measured are not ok, and why; and which variants have nothing at all."""
    reasons: dict[tuple[str, str, str], list[str]] = {}
    for case, variants in operator.cases.items():
        for name, found in variants.items():
            if not found.measured:
                reasons.setdefault((name, found.row["status"], found.row["reason"]), []).append(case)
    lines = [
        f"`{name}`, {wording.join(cases) if len(cases) < 4 else wording.count(len(cases), 'case')}: "
        f"{wording.status(state)}, {reason}"
        for (name, state, reason), cases in reasons.items()
    ]
    absent = [f"`{found.name}` ({wording.status(found.row['status'])})" for found in operator.without_cases]
    return lines + ([f"Without a number: {wording.join(absent)}."] if absent else [])
