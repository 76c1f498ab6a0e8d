"""What the profiled steps of a variant show of its recipes: proofs.csv, and its table in the report."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from halfstep.report import wording
from halfstep.report.tables import Row, cell, number
from halfstep.report.wording import EMPTY
from halfstep.validity import OPERANDS, UNKNOWN, Kernel, read_profile

TYPES = ("fp8", *(operands for operands, _ in OPERANDS), UNKNOWN)
PROOFS_COLUMNS: dict[str, str] = {
    "comparison": "comparison in config.yaml",
    "variant": "variant in that comparison",
    "asked": "type that the recipe says matrix products have: fp32, tf32, bf16, fp16 or fp8",
    **{
        f"{name}_share": f"mean share of the matrix products' time with operands in {name}"
        if name != UNKNOWN
        else "mean share of the matrix products' time whose kernels' names do not say it"
        for name in TYPES
    },
    "optimizer_kernel": "a kernel of the optimizer asked for; empty where it is known by none of its own",
    "norm_kernel": "a kernel of the norm asked for; empty where it is known by none of its own",
    "converted": "linear layers, or whole layers, that the recipe converted",
    "skipped": "linear layers that it left as they are",
    "compiled_modules": "modules that torch.compile was given",
    "graph_breaks": "most graph breaks of a replicate; empty without torch.compile",
    "replicates": "ok replicates with a profile",
}
Profiled = tuple[Row, Mapping[str, Any], Sequence[Kernel]]
"""of one ok run: its row of runs.csv, what its record says was applied, its rows of kernels.csv"""


def proof_row(runs: Sequence[Profiled]) -> Row | None:
    """The row of proofs.csv of one variant's ok runs; None where none has a profile."""
    profiled = [run for run in runs if run[2]]
    if not profiled:
        return None
    profiles = [read_profile(row, kernels) for row, _, kernels in profiled]
    row, applied, _ = profiled[0]
    breaks = [int(float(value)) for found, _, _ in profiled if (value := found["graph_breaks"])]
    return {
        "comparison": row["comparison"],
        "variant": row["variant"],
        "asked": str(applied.get("gemm", "")),
        **{f"{name}_share": cell(fmean(profile.products.get(name, 0.0) for profile in profiles)) for name in TYPES},
        "optimizer_kernel": profiles[0].optimizer,
        "norm_kernel": profiles[0].norm,
        "converted": _count(applied, "linears_converted", "layers_converted"),
        "skipped": _count(applied, "linears_skipped"),
        "compiled_modules": str(applied.get("compiled_modules", "")),
        "graph_breaks": str(max(breaks)) if breaks else "",
        "replicates": str(len(profiled)),
    }


def _count(applied: Mapping[str, Any], *names: str) -> str:
    found = [len(applied[name]) for name in names if name in applied]
    return str(sum(found)) if found else ""


FUNCTION = re.compile(r"\w*(?:Adam\w*Functor|cuApply\w+Norm|ln_fwd|rmsnorm_fwd|norm_forward)\w*")
LEAST_SHOWN = 0.01
HEADINGS = [
    "variant", "matrix products by time", "optimizer's kernel", "norm's kernel", "layers converted (left)",
    "graph breaks",
]  # fmt: skip
INTRODUCTION = (
    "What a profiled step of each variant shows. Products of less than 1 % of the products' time are left out; a "
    "kernel is named where the recipe has one of its own. A run whose step shows something else than was asked "
    "is `invalid`."
)


def cells(row: Row) -> list[str]:
    """One line of the report's table."""
    shares = {name: number(row[f"{name}_share"]) or 0.0 for name in TYPES}
    shown = sorted((name for name in TYPES if shares[name] >= LEAST_SHOWN), key=lambda name: -shares[name])
    return [
        f"`{row['variant']}`",
        ", ".join(f"{wording.digits(100 * shares[name])} % {name}" for name in shown) or EMPTY,
        _function(row["optimizer_kernel"]),
        _function(row["norm_kernel"]),
        f"{row['converted']} ({row['skipped'] or 0})" if row["converted"] else EMPTY,
        row["graph_breaks"] or EMPTY,
    ]


def _function(kernel: str) -> str:
    """The telling name in a kernel's name, which can be a template of a thousand characters."""
    found = FUNCTION.search(kernel)
    return f"`{found[0]}`" if found else EMPTY
