"""Runs of operators as `halfstep run` would leave them on an H200, without one: figures as were measured there."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from halfstep.records import write_json, write_run
from halfstep.report.collect import collect
from halfstep.runs import Run, RunKey, Scope, resolve, run_keys
from halfstep.study import Study, validate

Case = dict[str, Any]
CONFIG: dict[str, Any] = {
    "title": "Operators",
    "comparisons": {
        "dtypes": {"workload": "dtypes", "baseline": "torch", "variants": {"torch": {}}},
        "gemm": {
            "workload": "gemm",
            "baseline": "bf16",
            "variants": {
                "bf16": {"gemm": "bf16"},
                "tensorwise": {"gemm": "fp8_tensorwise"},
                "tensorwise-fast": {"gemm": "fp8_tensorwise_fast"},
                "rowwise": {"gemm": "fp8_rowwise"},
                "rowwise-fast": {"gemm": "fp8_rowwise_fast"},
                "te": {"gemm": "te"},
            },
        },
        "optimizer-step": {
            "workload": "optimizer_step",
            "baseline": "torch-foreach",
            "variants": {
                "torch-forloop": {"optimizer": "adamw_forloop"},
                "torch-foreach": {"optimizer": "adamw_foreach"},
                "torch-fused": {"optimizer": "adamw_fused"},
                "apex": {"optimizer": "apex_adamw"},
                "te": {"optimizer": "te_adamw"},
            },
        },
        "layernorm": {
            "workload": "norm",
            "baseline": "torch",
            "variants": {
                "torch": {"norm": "layernorm"},
                "torch-compiled": {"norm": "layernorm", "compile": "model"},
                "apex": {"norm": "apex_layernorm"},
                "liger": {"norm": "liger_layernorm"},
            },
        },
    },
}
SQUARES = {  # TFLOP/s by size: bf16, tensorwise, rowwise
    1024: (244, 278, 231), 2048: (621, 998, 1003), 4096: (730, 1345, 1326), 8192: (693, 1300, 1264),
    16384: (678, 1354, 1300),
}  # fmt: skip
LAYERS = {
    "qkv": (32768, 3840, 1280),
    "proj": (32768, 1280, 1280),
    "fc1": (32768, 5120, 1280),
    "fc2": (32768, 1280, 5120),
}
SPEED = {"tensorwise": 1.0, "tensorwise-fast": 1.04, "rowwise": 0.97, "rowwise-fast": 1.01, "te": 1.06}
OPTIMIZERS = {  # ms: 96 linears of 1024, ViT-Huge
    "torch-forloop": (17.9, 31.4), "torch-foreach": (2.34, 13.8), "torch-fused": (0.83, 5.0), "apex": (0.88, 5.3),
}  # fmt: skip
NORMS = {"torch": (0.22, 0.74), "torch-compiled": (0.29, 1.42), "apex": (0.42, 1.22), "liger": (0.18, 0.81)}
WAITS = {"torch-forloop": 0.37, "liger": 0.71}  # share of a call in which kernels run
SAMPLE = {
    "float32": (2.073094, -0.7825133, -0.4708492, -1.325573),
    "bfloat16": (2.078125, -0.78125, -0.4707031, -1.328125),
    "float8_e4m3fn": (2, -0.8125, -0.46875, -1.375),
    "float8_e5m2": (2, -0.75, -0.5, -1.25),
}
EPS = {"float32": 1.192093e-07, "bfloat16": 0.0078125, "float8_e4m3fn": 0.125, "float8_e5m2": 0.25}


def cases(workload: str, variant: str) -> Iterator[Case]:
    """The rows of one run, but for what identifies it."""
    if workload == "dtypes":
        for dtype, eps in EPS.items():
            yield {"case": f"finfo {dtype} eps", "value": f"{eps:.7g}"}
        for dtype, values in SAMPLE.items():
            for index, value in enumerate(values):
                error = abs(value - SAMPLE["float32"][index])
                yield {"case": f"cast {dtype} {index}", "value": f"{value:.7g}", "max_abs_error": error}
        yield {"case": "operation float8_e4m3fn add", "value": 'NotImplementedError: "add_stub" not implemented'}
        yield {"case": "operation float8_e4m3fn copy", "value": "works"}
        yield {"case": "product _scaled_mm e4m3 times e4m3", "value": "works"}
    elif workload == "gemm":
        fp8 = variant != "bf16"
        example = {"case": "example 16x16x16, bias, e4m3 output"}
        refused = {"status": "unsupported", "reason": "an FP8 output with a bias is not asked of it"}
        yield example | (timed(0.012, tflop=8e-9) if "tensorwise" in variant else refused)
        shapes = {f"{n}x{n}x{n}": ((n, n, n), speeds[fp8]) for n, speeds in SQUARES.items()}
        shapes |= {f"ViT-Huge {name} {'x'.join(map(str, s))}": (s, 1200 if fp8 else 650) for name, s in LAYERS.items()}
        for name, ((m, n, k), speed) in shapes.items():
            tflop = 2 * m * n * k / 1e12
            product = tflop / speed / SPEED.get(variant, 1.0) * 1e3
            casts = fp8 * (m * k + n * k) * (5 if variant == "te" else 26) / 4e12 * 1e3
            error = {"sqnr_db": 28.5 if fp8 else 55.6, "max_abs_error": 3.0 if fp8 else 0.3}
            peak = 1979.0 if fp8 else 989.5
            yield {"case": name, **timed(product, tflop=tflop, peak=peak), **error}
            yield {"case": f"{name}, cast included", **timed(product + casts, tflop=tflop, peak=peak), **error}
    elif workload == "optimizer_step":
        for case, ms, gb in zip(("linears 96x1024", "vit_huge"), OPTIMIZERS[variant], (2.82, 17.7), strict=True):
            yield {"case": case, **timed(ms, gb=gb), "max_abs_error": 1.2e-9}
    else:
        for width in (1024, 4096, 8192):
            for dtype, size, sqnr in (("fp32", 4, 140.0), ("bf16", 2, 55.6)):
                for passes, ms, moves in zip(("forward", "forward+backward"), NORMS[variant], (2, 5), strict=True):
                    scaled = ms * width / 8192 * size / 2
                    row = timed(scaled, gb=moves * 16384 * width * size / 1e9)
                    compiled = {"compile_s": 2.0} if variant == "torch-compiled" else {}
                    accuracy = {"sqnr_db": sqnr - 2 * (moves == 5) - len(variant) / 9, "max_abs_error": 0.016}
                    yield {"case": f"{width} {dtype} {passes}", **row, **accuracy, **compiled}


def timed(ms: float, *, tflop: float | None = None, gb: float | None = None, peak: float | None = None) -> Case:
    return {"sample_unit": "calls", "samples_per_step": 1, "step_ms_median": ms, "tflop": tflop, "gb": gb, "peak": peak}


def derived(row: Case, noise: float, busy: float) -> Case:
    """The columns of a row that follow from its time; `busy` is the share of it in which kernels run."""
    tflop, gb, peak = (row.pop(name, None) for name in ("tflop", "gb", "peak"))
    if "step_ms_median" not in row:
        return row
    ms = row["step_ms_median"] * noise
    row |= {"step_ms_median": ms, "step_ms_mean": ms, "step_ms_p05": ms, "step_ms_p95": ms, "samples_per_s": 1e3 / ms}
    row |= {"steps": 40, "kernel_ms": busy * ms}
    if tflop:
        row |= {"model_tflop_per_step": tflop, "model_tflop_per_s": tflop / ms * 1e3}
    if tflop and peak:
        row |= {"peak_tflop_per_s": peak, "peak_share": tflop / ms * 1e3 / peak}
    if gb:
        row |= {"gb_per_step": gb, "gb_per_s": gb / ms * 1e3}
    return row


def write_operator_run(scope_dir: Path, run: Run, key: RunKey, status: str = "ok", reason: str = "") -> None:
    """Write one run's folder; one whose status is not ok has no case."""
    comparison, variant, replicate = key
    verdict = {"status": status, "reason": reason}
    identity = {"comparison": comparison, "variant": variant, "replicate": replicate, **verdict}
    provenance = {"sitting": "s1", "image": "host", "run_hash": run.hash(), "code_hash": "c0de"}
    record = {
        **identity, **provenance, "run": run.model_dump(), "environment": {"gpu": "NVIDIA H200"},
        "environment_hash": "e1", "gpu": {"name": "NVIDIA H200", "uuid": "GPU-1"}, "threads": {"torch": 16},
        "started": "2026-11-29T10:00:00+00:00", "ended": "2026-11-29T10:00:40+00:00",
    }  # fmt: skip
    settings = run.model_dump(
        exclude={"protocol", "device", "scale", "replicate", "seed", "window", "timeout_s", "modules"}
    )
    shared = {**identity, **settings, **provenance, "environment": "e1", "gpu_uuid": "GPU-1"}
    noise = random.Random("/".join(map(str, key)))
    found = cases(run.workload, variant) if status == "ok" else [{}]
    busy = 0.86 if run.workload == "gemm" else WAITS.get(variant, 0.99)
    rows = [{**shared, **derived(dict(row), noise.lognormvariate(0, 0.003), busy)} for row in found]
    write_run(scope_dir / "runs" / comparison / variant / f"rep{replicate}", record, rows, [], [])


def make_operators(scope_dir: Path) -> Study:
    """Write and collect a study of all operators; Transformer Engine's optimizer is not there."""
    study = validate(CONFIG)
    scope = Scope.parse(scope_dir.name)
    for key in run_keys(study, scope):
        missing = key[:2] == ("optimizer-step", "te")
        verdict = ("unsupported", "transformer_engine cannot be imported") if missing else ("ok", "")
        write_operator_run(scope_dir, resolve(study, scope, key), key, *verdict)
    write_json(scope_dir / "system" / "doctor.json", {"machine": {}, "capabilities": []})
    collect(scope_dir, study)
    return study
