"""One run of an operator: its cases one after the other, each prepared, checked, timed and freed.

This module knows operators and recipes only by what the run names.
"""

from __future__ import annotations

import gc
import os
import traceback
from typing import Any

import torch

from halfstep.errors import classify
from halfstep.measure.benchmark import benchmark
from halfstep.measure.process import Emit, Result, compiler_counters, look_up, open_device
from halfstep.measure.profile import profile_kernels
from halfstep.system.environment import environment


def measure(run: dict[str, Any], emit: Emit) -> Result:
    """Measure all cases of an operator.

    Returns:
        status, reason, summaries (columns of summary.csv, a row per case with its own status and reason), kernels
        (rows of kernels.csv, of one case), applied, threads. The run is ok if a case is.

    Raises:
        Unsupported: no case can be done at all; what goes wrong in one case is said in its row.
    """
    emit("environment", environment=environment())
    emit("phase", phase="build")
    device = open_device(run)
    operator = look_up(run["modules"]["workload"])
    named = {key: reference for key, reference in run["modules"].items() if key not in ("measure", "workload")}
    recipes = {key: look_up(reference) for key, reference in named.items()}
    compiles = "compile" in recipes and recipes["compile"].compiles
    applied: Result = {}
    summaries: list[Result] = []
    kernels: list[Result] = []
    emit("window_start")
    for case in operator.cases(device, recipes, **operator.sizes[run["scale"]]):
        if operator.timed:
            emit("phase", phase=case.name)
        torch.manual_seed(run["seed"])
        summary, case_kernels = measure_case(case, device, compiles, applied)
        summaries.append(summary)
        kernels += case_kernels
        if operator.timed:
            free(device)
    emit("window_end")
    worst = next((row for row in summaries if row["status"] == "ok"), summaries[0])
    return {
        "status": worst["status"],
        "reason": worst["reason"],
        "summaries": summaries,
        "kernels": kernels,
        "applied": applied,
        "threads": {"torch": torch.get_num_threads(), "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS")},
    }


def measure_case(case: Any, device: torch.device, compiles: bool, applied: Result) -> tuple[Result, list[Result]]:
    """The row of one case, whatever becomes of it, and its kernels where they are asked for."""
    kernels: list[Result] = []
    row: Result = {"case": case.name, "status": "ok", "reason": ""}
    try:
        if compiles:
            torch._dynamo.reset()  # or the earlier cases' shapes count towards the limit of recompilations
        compiled = compiler_counters() if compiles else None
        work = case.prepare()
        row |= {"value": work.value, "max_abs_error": work.max_abs_error, "sqnr_db": work.sqnr_db}
        if work.precision:
            applied["gemm"] = work.precision
        if work.call is not None:
            timing = benchmark(work.call, device)
            row |= {
                "sample_unit": "calls",
                "samples_per_step": 1,
                "steps": timing.samples,
                "step_ms_median": timing.median,
                "step_ms_mean": timing.mean,
                "step_ms_p05": timing.p05,
                "step_ms_p95": timing.p95,
                "model_tflop_per_step": work.tflop,
                "gb_per_step": work.gb,
            }
            if device.type == "cuda":
                # of every case: a call that takes far longer than its kernels has waited for the CPU
                found, row["kernel_ms"] = profile_kernels(work.call)
                kernels = found if case.profiled else []
        if compiled is not None:
            row["compile_s"] = compiler_counters()["compile_s"] - compiled["compile_s"]
    except Exception as error:
        status, reason = classify(error)
        if status == "failed":
            traceback.print_exc()
        # what was measured before that is of no use: a row whose status is not ok enters no number
        row = {"case": case.name, "status": status, "reason": reason}
    return row, kernels


def free(device: torch.device) -> None:
    """Give the last case's memory back, so that the next one has the whole GPU."""
    if device.type == "cuda":
        gc.collect()
        torch.cuda.empty_cache()
