"""A scope's folder as `halfstep run` would leave it: figures like those of an H200, without a GPU."""

from __future__ import annotations

import random
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from halfstep.records import write_json, write_run
from halfstep.report.collect import collect
from halfstep.report.tables import SETTINGS
from halfstep.runs import RunKey, Scope, resolve, run_keys
from halfstep.study import Study, validate

H200 = {
    "python": "3.12.3",
    "torch": "2.11.0+cu130",
    "cuda": "13.0",
    "cudnn": "9.15.0",
    "driver": "580.159",
    "gpu": "NVIDIA H200",
    "timm": "1.0.31",
    "triton": "3.6.0",
}
CPU = {"python": "3.11.7", "torch": "2.11.0+cpu", "cpu": "AMD EPYC 9B14", "timm": "1.0.31"}

# a real name of each kind: collect judges the kind from it
KERNELS = {
    "GEMM": "nvjet_sm90_tst_128x256_64x4_4x2_h_bz_coopA_NTN",
    "attention": "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x64",
    "norm": "void at::native::vectorized_layer_norm_kernel<float, float, false>(int, float)",
    "pointwise": "triton_poi_fused_gelu_view_8",
    "cast/scale": "void at::native::bfloat16_copy_kernel_cuda(at::TensorIteratorBase&)",
    "optimizer": "void at::native::multi_tensor_apply_kernel<FusedAdamMathFunctor<float, 4, (ADAM_MODE)0, false>>()",
    "copy": "Memset (Device)",
    "other": "some_kernel_of_nobody(float*)",
}
# without its kernels a run does not count
FUSED = "void at::native::multi_tensor_apply_kernel<FusedAdamMathFunctor<float, 4, (ADAM_MODE){}, false>>()"
OPTIMIZERS = {"adam_fused": FUSED.format(0), "adamw_fused": FUSED.format(1), "adam_foreach": "PointwiseOpScalar"}
# what a variant does: ms per step, GiB, kernel ms by kind, or a status
VIT = {"samples": 128, "unit": "images", "tflop": 128 * 0.98, "peak": 989.0}
VIT_KERNELS = {"GEMM": 172.0, "attention": 20.0, "norm": 12.0, "pointwise": 136.0, "cast/scale": 9.0, "optimizer": 5.0}
BLOCKS_KERNELS = {"GEMM": 172.0, "attention": 20.0, "pointwise": 77.0, "optimizer": 5.0, "copy": 0.4, "other": 2.0}
LM = {"samples": 16384, "unit": "tokens", "tflop": 13.4, "peak": 989.0}
BEHAVIOUR: dict[str, dict[str, Any]] = {
    "eager": {**VIT, "ms": 360.0, "gib": 56.1, "first": 1.1, "kernels": VIT_KERNELS},
    "blocks": {**VIT, "ms": 288.0, "gib": 54.2, "first": 18.2, "compile": 16.9, "kernels": BLOCKS_KERNELS},
    "whole": {**VIT, "ms": 290.0, "gib": 56.3, "first": 72.0, "compile": 70.1, "kernels": BLOCKS_KERNELS},
    "bf16-foreach": {**VIT, "ms": 270.0, "gib": 45.3, "first": 15.0, "compile": 14.0, "kernels": BLOCKS_KERNELS},
    "fp32": {"status": "out_of_memory", "reason": "OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB."},
    "lm-fp32": {**LM, "ms": 431.0, "gib": 24.0, "first": 0.8, "peak": 67.0, "kernels": {"GEMM": 400.0, "norm": 9.0}},
    "lm-bf16": {**LM, "ms": 59.6, "gib": 18.0, "first": 0.7, "kernels": {"GEMM": 31.0, "pointwise": 20.0}},
    "lm-graphs": {**LM, "ms": 47.5, "gib": 17.0, "first": 9.0, "kernels": {"GEMM": 31.0, "pointwise": 13.0}},
    "lm-fp16": {"status": "unsupported", "reason": "fp16 needs a GPU; run `halfstep doctor`."},
}
CONFIG: dict[str, Any] = {
    "title": "Precision and compilation",
    "comparisons": {
        "vit-b128": {
            "workload": "vit_huge",
            "baseline": "eager",
            "title": "ViT-Huge, batch 128",
            "variants": {
                "fp32": {"precision": "fp32", "batch": 128},
                "eager": {"precision": "bf16", "batch": 128},
                "blocks": {"precision": "bf16", "compile": "blocks", "batch": 128},
                "whole": {"precision": "bf16", "compile": "model", "batch": 128},
                "bf16-foreach": {"precision": "bf16", "optimizer": "adam_foreach", "compile": "blocks", "batch": 128},
            },
        },
        "lm": {
            "workload": "lm",
            "baseline": "lm-fp32",
            "variants": {
                "lm-fp32": {"precision": "fp32"},
                "lm-bf16": {"precision": "bf16"},
                "lm-graphs": {"precision": "bf16", "compile": "graphs"},
                "lm-fp16": {"precision": "fp16"},
            },
        },
    },
}


def write_fixture_run(
    scope_dir: Path, study: Study, key: RunKey, behaviour: Mapping[str, Any], **changes: Any
) -> dict[str, Any]:
    """Write one run's folder; `changes` replace keys of the record (and of the summary, where it has them)."""
    scope = Scope.parse(scope_dir.name)
    run = resolve(study, scope, key)
    status, reason = behaviour.get("status", "ok"), behaviour.get("reason", "")
    environment = CPU if scope.device == "cpu" else H200
    record = {
        "comparison": key[0],
        "variant": key[1],
        "replicate": key[2],
        "status": status,
        "reason": reason,
        "run": run.model_dump(),
        "run_hash": run.hash(),
        "code_hash": "c0de",
        "image": "host",
        "sitting": "s1",
        "environment": environment,
        "environment_hash": "e1",
        "threads": {"torch": 16, "OMP_NUM_THREADS": "16"},
        "started": f"2026-11-29T10:0{key[2]}:00+00:00",
        "ended": f"2026-11-29T10:0{key[2]}:40+00:00",
        "gpu": None
        if scope.device == "cpu"
        else {"name": "NVIDIA H200", "uuid": "GPU-1", "memory_total_gib": 139.8, "power_limit_w": 700.0},
        "telemetry": None,
        "applied": {"precision": run.precision, "modules": 129},
        "messages": [],
        **changes,
    }
    summary = {
        **{name: record[name] for name in ("comparison", "variant", "replicate", "status", "reason")},
        **{name: getattr(run, name) for name in SETTINGS},
        "gpu_uuid": (record["gpu"] or {}).get("uuid", ""),
        "sitting": record["sitting"],
        "environment": record["environment_hash"],
        "image": record["image"],
        "run_hash": record["run_hash"],
        "code_hash": record["code_hash"],
    }
    steps: list[dict[str, Any]] = []
    kernels: list[dict[str, Any]] = []
    if "ms" in behaviour:
        measured, steps, kernels = numbers(key, behaviour, scope.device == "cpu")
        if scope.device != "cpu":
            kernels += [
                {"kind": "optimizer", "kernel": OPTIMIZERS[run.optimizer], "calls_per_step": 1, "ms_per_step": 0.0}
            ]
        summary |= measured
    folder = scope_dir / "runs" / key[0] / key[1] / f"rep{key[2]}"
    write_run(folder, record, [summary], steps, kernels)
    return record


def numbers(
    key: RunKey, behaviour: Mapping[str, Any], cpu: bool
) -> tuple[dict[str, Any], list[dict[str, Any]], list[dict[str, Any]]]:
    """Columns of the summary, rows of steps.csv and of kernels.csv of one plausible run."""
    noise = random.Random("/".join(map(str, key)))
    centre = behaviour["ms"] * noise.lognormvariate(0, behaviour.get("noise", 0.002))
    count = max(20, min(200, round(10_000 / centre)))
    times = [centre * noise.lognormvariate(0, 0.004) * (1.03 if noise.random() < 0.03 else 1) for _ in range(count)]
    host = behaviour.get("host", 0.99)
    steps = [
        {"step": n, "phase": "warmup", "step_ms": 1.2 * centre, "wall_ms": centre, "loss": 7.1, "skipped": 0}
        for n in range(3)
    ]
    steps += [
        {"step": n, "phase": "window", "step_ms": ms, "wall_ms": ms * host, "loss": 7.0 - n / 1000, "skipped": 0}
        for n, ms in enumerate(times)
    ]
    median, kernel_times = statistics.median(times), {} if cpu else behaviour.get("kernels", {})
    kernels = [
        {"kind": kind, "kernel": KERNELS[kind], "calls_per_step": 10, "ms_per_step": ms}
        for kind, ms in kernel_times.items()
    ]
    tflop = behaviour.get("tflop")
    speed = tflop / median * 1e3 if tflop else None
    summary = {
        "sample_unit": behaviour["unit"],
        "samples_per_step": behaviour["samples"],
        "steps": count,
        "skipped_steps": 0,
        "step_ms_median": median,
        "step_ms_mean": statistics.fmean(times),
        "step_ms_p05": sorted(times)[count // 20],
        "step_ms_p95": sorted(times)[-count // 20],
        "wall_ms_mean": statistics.fmean(times) * 1.002,
        "host_ms_mean": statistics.fmean(times) * host,
        "samples_per_s": behaviour["samples"] / median * 1e3,
        "startup_s": 9.5,
        "first_step_s": behaviour.get("first", 1.0) if key[2] == 1 else min(4.0, behaviour.get("first", 1.0)),
        "compile_s": behaviour.get("compile"),
        "graph_breaks": behaviour.get("graph_breaks"),
        "compile_cache": ("cold" if key[2] == 1 else "warm") if "compile" in behaviour else None,
        "loss_first": 7.0,
        "loss_last": 6.9,
        "model_tflop_per_step": tflop,
        "model_tflop_per_s": speed,
    }
    if not cpu:
        summary |= {
            "peak_allocated_gib": behaviour.get("gib"),
            "peak_reserved_gib": behaviour["gib"] * 1.06 if "gib" in behaviour else None,
            "peak_tflop_per_s": behaviour.get("peak"),
            "peak_share": speed / behaviour["peak"] if speed and "peak" in behaviour else None,
            "kernel_ms": sum(kernel_times.values()),
            "idle_ms": max(0.0, median - sum(kernel_times.values())),
            "power_w_mean": 640.0,
            "power_limit_w": 700.0,
            "energy_j_per_step": 640.0 * median / 1e3,
            "sm_clock_mhz_mean": 1890.0,
            "temperature_c_max": 61.0,
            "power_capped_share": 0.02,
            "slowdown_share": 0.0,
            "others_memory_gib": 0.0,
        }
    return summary, steps, kernels


def make_scope(
    scope_dir: Path, config: Mapping[str, Any] = CONFIG, behaviour: Mapping[str, Mapping[str, Any]] = BEHAVIOUR
) -> Study:
    """Write all runs of a study and collect them. A variant without a behaviour leaves no record."""
    study = validate(config)
    for key in run_keys(study, Scope.parse(scope_dir.name)):
        if key[1] in behaviour:
            write_fixture_run(scope_dir, study, key, behaviour[key[1]])
    write_json(
        scope_dir / "system" / "doctor.json",
        {
            "machine": {"gpu": "NVIDIA H200"},
            "capabilities": [
                {"name": "bf16", "status": "available", "detail": "a matmul ran", "remedy": ""},
                {"name": "apex", "status": "missing", "detail": "no module", "remedy": "see docs/apex.md"},
            ],
        },
    )
    collect(scope_dir, study)
    return study
