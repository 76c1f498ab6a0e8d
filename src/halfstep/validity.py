"""Whether a run that ended well shows what was asked: from its kernels, its steps and what it says it applied.

The measuring process does not import this, and `collect` judges every run again, so that a better table of names or
rule needs no new measurement.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import isclose
from statistics import median
from typing import Any

from halfstep.kernel_kinds import kind_of

Kernel = Mapping[str, Any]
"""a row of kernels.csv: at least `kernel`, its name, and `ms_per_step`"""

# Every step of the recipe launches a kernel of such a name: of Apex's csrc/ (multi_tensor_adam*.cu,
# layer_norm_cuda_kernel.cu), Transformer Engine's common/ (multi_tensor/adam.cu, normalization/), Liger's ops/ and
# torch's aten/src/ATen/native/cuda/fused_adam*_impl.cu.
NORM_KERNELS = {
    "apex_layernorm": r"cuApplyLayerNorm",
    "apex_rmsnorm": r"cuApplyRMSNorm",
    "te_layernorm": r"transformer_engine.*(?<!rmsnorm)ln_fwd",
    "te_rmsnorm": r"transformer_engine.*rmsnorm_fwd",
    "liger_layernorm": r"_layer_norm_forward",
    "liger_rmsnorm": r"_rms_norm_forward",
}
OPTIMIZER_KERNELS = {
    "adam_fused": r"FusedAdamMathFunctor.*ADAM_MODE\)0",
    "adamw_fused": r"FusedAdamMathFunctor.*ADAM_MODE\)1",
    "apex_adam": r"multi_tensor_apply_kernel.*AdamFunctor",
    "apex_adamw": r"multi_tensor_apply_kernel.*AdamFunctor",
    "te_adam": r"transformer_engine.*AdamFunctor",
    "te_adamw": r"transformer_engine.*AdamFunctor",
}
# The type of a matrix product's operands, by cuBLAS's and cuDNN's names; the first pattern that matches decides.
# In nvjet's names the first letters are types: q e4m3, r e5m2, t bf16, h fp16.
OPERANDS: tuple[tuple[str, str], ...] = (
    ("bf16", r"nvjet(_sm\d+)?_t|bf16"),
    ("fp16", r"nvjet(_sm\d+)?_h|f16|fp16|h\d*gemm"),
    ("tf32", r"tf32|tensorop_s\d+gemm"),
    ("fp32", r"f32f32_f32f32|simt_sgemm|sgemm"),
)
_OPERANDS = tuple((operands, re.compile(pattern)) for operands, pattern in OPERANDS)
UNKNOWN = "unknown"

# A step may hold products in a wider type, as autocast's or a skipped layer's; of what is called fp32 all has to be.
LEAST_SHARE = {"fp32": 1.0, "tf32": 0.5, "bf16": 0.5, "fp16": 0.5}
BATCHES = 4  # that take turns where data are resident (measure/training.py)
SAME_LOSS = 1e-5  # sums in another order; in every run of results/reference some loss moves by a fifth in a round
MOST_DRIFT = 0.05  # as far as a replicate may lie from its siblings without being a finding of the report


@cache
def operands_of(kernel: str) -> str | None:
    """The type of a matrix product's operands by its kernel's name: fp8, bf16, fp16, tf32, fp32 or `unknown`.

    None for a kernel that is no matrix product. Convolutions count as products.
    """
    kind = kind_of(kernel)
    if kind == "FP8 GEMM":
        return "fp8"
    if kind != "GEMM":
        return None
    return next((operands for operands, pattern in _OPERANDS if pattern.search(kernel)), UNKNOWN)


@dataclass(frozen=True)
class Profile:
    """What a profiled step shows of the recipes. Names are empty where none was seen or none is known."""

    products: Mapping[str, float]
    """share of the matrix products' time by the type of their operands, largest first"""
    optimizer: str
    norm: str


def read_profile(run: Mapping[str, Any], kernels: Sequence[Kernel]) -> Profile:
    """What `kernels` show of the recipes that `run`, a resolved run, names."""
    times: dict[str, float] = {}
    for row in kernels:
        operands = operands_of(row["kernel"])
        if operands is not None:
            times[operands] = times.get(operands, 0.0) + float(row["ms_per_step"])
    total = sum(times.values())
    products = {name: ms / total for name, ms in sorted(times.items(), key=lambda item: (-item[1], item[0])) if total}
    return Profile(
        products,
        _first(kernels, OPTIMIZER_KERNELS.get(run["optimizer"])),
        _first(kernels, NORM_KERNELS.get(run["norm"])),
    )


def _first(kernels: Sequence[Kernel], pattern: str | None) -> str:
    return next((row["kernel"] for row in kernels if pattern and re.search(pattern, row["kernel"])), "")


def verdict(
    run: Mapping[str, Any], applied: Mapping[str, Any], kernels: Sequence[Kernel], steps: Sequence[Mapping[str, Any]]
) -> tuple[str, str] | None:
    """The status and the sentence that a run gets instead of `ok`, or None: it stays ok.

    Args:
        run: the resolved run.
        applied: what the recipes say they did; `gemm` is the type that products were to have.
        kernels: rows of kernels.csv.
        steps: rows of steps.csv.
    """
    if run["device"] != "cpu" and (lacks := _lacks(run, applied.get("gemm"), kernels)):
        return "invalid", lacks
    if run.get("data") == "resident" and stands_still(steps):
        return "invalid", "no update reached the weights: each batch had the same loss whenever it came round again"
    moved = drift(steps) if run["scale"] == "full" else None
    if moved is not None and abs(moved) > MOST_DRIFT:
        way = "slower" if moved > 0 else "faster"
        return "disturbed", f"it drifted: the last third of the window ran {abs(moved):.0%} {way} than the first"
    return None


def _lacks(run: Mapping[str, Any], asked: str | None, kernels: Sequence[Kernel]) -> str:
    """Which recipe the profiled step has no sign of, and what it shows instead; empty if there is none."""
    profiled = run["window"] is not None  # of an operator one case is, and nothing of a parity run
    if not kernels:
        return "a profiled step showed no kernel at all, so nothing proves what ran" if profiled else ""
    profile = read_profile(run, kernels)
    seen = ", ".join(f"{share:.0%} in {name}" for name, share in profile.products.items()) or "none"
    if asked == "fp8" and "fp8" not in profile.products:
        return (
            f"{run['precision'] or run['gemm']!r} was to run in FP8, and no FP8 kernel ran in a profiled step; "
            f"matrix products by time: {seen}"
        )
    if profiled and asked and asked != "fp8" and asked not in LEAST_SHARE:
        types = ", ".join([*LEAST_SHARE, "fp8"])
        return f"the recipe says `gemm = {asked!r}`, of which no kernel can be proof: it has to be one of {types}"
    known = {name: share for name, share in profile.products.items() if name != UNKNOWN}
    if profiled and asked in LEAST_SHARE and known and known.get(asked, 0.0) < LEAST_SHARE[asked] * sum(known.values()):
        return f"matrix products were to run in {asked}, and a profiled step shows by time: {seen}"
    for key, patterns, found in (
        ("optimizer", OPTIMIZER_KERNELS, profile.optimizer),
        ("norm", NORM_KERNELS, profile.norm),
    ):
        if profiled and run[key] in patterns and not found:
            kinds = [row["kernel"] for row in kernels if kind_of(row["kernel"]) == key]
            instead = f"instead: {kinds[0][:120]}" if kinds else f"and none of the kind {key!r}"
            return f"{key} is {run[key]!r}, and none of its kernels ran in a profiled step, {instead}"
    return ""


def stands_still(steps: Sequence[Mapping[str, Any]]) -> bool:
    """Whether every loss of the window is that of the same resident batch before: the weights are what they were.

    False for fewer than two rounds of the batches.
    """
    losses = [float(row["loss"]) for row in steps if row["phase"] == "window" and row["loss"] not in ("", None)]
    pairs = list(zip(losses, losses[BATCHES:], strict=False))
    return len(pairs) >= BATCHES and all(isclose(one, other, rel_tol=SAME_LOSS) for one, other in pairs)


def drift(steps: Sequence[Mapping[str, Any]]) -> float | None:
    """How much slower the last third of the window's steps ran than the first: a ratio of medians less 1.

    None for fewer than six steps that count.
    """
    timed = [row for row in steps if row["phase"] == "window" and not int(row["skipped"])]
    times = [float(row["step_ms"]) for row in timed if row["step_ms"]]
    third = len(times) // 3
    return median(times[-third:]) / median(times[:third]) - 1 if third >= 2 else None
