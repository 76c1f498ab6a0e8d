"""The measuring code on a real GPU. At smoke size, so that all of it takes about a minute."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from halfstep.errors import Unsupported
from halfstep.kernel_kinds import KINDS, OTHER, kind_of
from halfstep.measure.profile import profile_kernels
from halfstep.measure.training import Loop, build_step, capture_step, describe_steps, feed, look_up
from halfstep.recipes.compilation import Compilation
from halfstep.recipes.precision.fp32 import Fp32
from halfstep.recipes.precision.tf32 import Tf32
from halfstep.records import KERNELS_COLUMNS, STEPS_COLUMNS, SUMMARY_COLUMNS, read_csv, read_record
from halfstep.registry import WORKLOADS
from halfstep.runs import Run, Scope, resolve
from halfstep.study import Window, validate
from halfstep.system.gpu import visible_gpu

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.usefixtures("keep_switches"),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA GPU"),
]

SOURCE = Path(__file__).parents[2] / "src"
CAPTURED = Compilation(captured=True)  # without the compiler, whose results may differ in the last bits


@pytest.fixture(autouse=True)
def pci_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")


def run_of(workload: str = "lm", device: str = "gpu", **settings: Any) -> Run:
    comparison = {"workload": workload, "baseline": "a", "variants": {"a": settings}}
    study = validate({"comparisons": {"c": comparison}})
    return resolve(study, Scope(device, "smoke"), ("c", "a", 1))


def silent(event: str, **details: Any) -> None:
    """An emit that tells nobody."""


def loop_of(run: dict[str, Any], device: torch.device) -> Loop:
    step, precision, _ = build_step(run, device)
    return Loop(step, feed(run, look_up(run["modules"]["workload"]), device), precision, silent)


def test_a_captured_step_gives_the_losses_of_the_step_launched_one_by_one(device: torch.device) -> None:
    run = run_of().model_dump()
    plain = loop_of(run, device)
    plain.run("warmup", device, 4)
    next(plain.batches)  # the captured loop's batch during the capture, in which nothing is computed
    expected = [row["loss"] for row in plain.run("window", device, 8)]

    run["modules"]["compile"] = f"{__name__}:CAPTURED"
    captured = loop_of(run, device)
    captured.run("warmup", device, 1)
    capture_step(captured, device)  # three more steps, and the capture
    losses = [row["loss"] for row in captured.run("window", device, 8)]
    assert len({round(loss, 6) for loss in losses}) == 8  # each step has its own batch and its own weights
    assert losses == pytest.approx(expected, rel=1e-4)


def test_gradscaler_skips_steps_that_overflow_and_each_is_counted(device: torch.device) -> None:
    run = run_of(precision="fp16").model_dump()
    loop = loop_of(run, device)
    scaler = loop.precision.scaler
    scaler.load_state_dict({**scaler.state_dict(), "scale": 2.0**30})
    loop.batches = itertools.repeat(next(loop.batches))
    rows = loop.run("window", device, 40)
    described = describe_steps(rows)
    assert rows[0]["skipped"] == 1
    # a skipped step changes no weight, so the same batch has the same loss again
    assert rows[1]["loss"] == pytest.approx(rows[0]["loss"], rel=1e-4)
    assert scaler.get_scale() == 2.0**30 / 2 ** described["skipped_steps"]
    assert described["skipped_steps"] + described["steps"] == 40
    assert 5 <= described["skipped_steps"] <= 20
    assert rows[-1]["loss"] < 0.98 * rows[0]["loss"]


def test_a_step_with_gradscaler_is_not_captured(device: torch.device) -> None:
    with pytest.raises(Unsupported, match="GradScaler is not captured"):
        build_step(run_of(precision="fp16", compile="graphs").model_dump(), device)


def test_tf32_rounds_matrix_products_and_fp32_takes_that_back(device: torch.device) -> None:
    torch.manual_seed(0)
    a, b = torch.randn(2, 2048, 2048, device=device).unbind()
    exact = a.double() @ b.double()

    def error() -> float:
        return float(((a @ b).double() - exact).norm() / exact.norm())

    Tf32(device, torch.float32)
    assert 1e-5 < error() < 2e-3  # 10 bits of mantissa
    Fp32(device, torch.float32)
    assert error() < 1e-5


@pytest.mark.parametrize(
    ("workload", "precision"), [("lm", "bf16"), ("vit_huge", "bf16"), ("lm", "fp16"), ("vit_huge", "fp32")]
)
def test_the_kernels_of_a_step_are_of_known_kinds(workload: str, precision: str, device: torch.device) -> None:
    loop = loop_of(run_of(workload, precision=precision).model_dump(), device)
    loop.run("warmup", device, 2)
    kernels, busy_ms = profile_kernels(lambda: loop.step(*next(loop.batches)))
    by_kind = dict.fromkeys(KINDS, 0.0)
    for row in kernels:
        by_kind[kind_of(row["kernel"])] += row["ms_per_step"]
    total = sum(by_kind.values())
    unknown = [row["kernel"] for row in kernels if kind_of(row["kernel"]) == OTHER]
    assert by_kind[OTHER] < 0.02 * total, unknown
    assert min(by_kind[kind] for kind in ("GEMM", "attention", "norm", "pointwise", "optimizer")) > 0, by_kind
    assert 0 < busy_ms <= total * 1.001  # kernels that overlap count once
    assert [row["ms_per_step"] for row in kernels] == sorted((row["ms_per_step"] for row in kernels), reverse=True)


def halfstep_run(run: Run, folder: Path) -> Path:
    """The real command, in a process of its own."""
    out = folder / "runs" / "c" / "a" / "rep1"
    command = [sys.executable, "-m", "halfstep", "run", run.canonical(), str(out)]
    subprocess.run(command, env={**os.environ, "PYTHONPATH": str(SOURCE)}, check=True)
    return out


def summary_of(out: Path) -> dict[str, str]:
    (summary,) = read_csv(out / "summary.csv", SUMMARY_COLUMNS)
    return summary


@pytest.fixture
def slug() -> str:
    gpu = visible_gpu()
    assert gpu is not None
    return gpu.slug


def test_a_cap_that_is_too_small_ends_out_of_memory(tmp_path: Path, slug: str) -> None:
    out = halfstep_run(run_of(device=slug, memory_cap_gib=0.001), tmp_path)
    summary = summary_of(out)
    assert (summary["status"], summary["memory_cap_gib"]) == ("out_of_memory", "0.001")
    assert "out of memory" in summary["reason"]
    assert summary["step_ms_median"] == ""
    assert read_record(out)["environment"]["gpu"]


def test_a_cap_above_the_card_is_unsupported(tmp_path: Path, slug: str) -> None:
    summary = summary_of(halfstep_run(run_of(device=slug, memory_cap_gib=100_000), tmp_path))
    assert summary["status"] == "unsupported"
    assert summary["reason"] == "memory_cap_gib = 100000.0 is more than this GPU has"


@pytest.mark.parametrize("workload", WORKLOADS)
def test_a_short_run_has_all_that_a_gpu_can_tell(workload: str, tmp_path: Path, slug: str) -> None:
    run = run_of(workload, device=slug, precision="bf16", memory_cap_gib=8)
    # long enough for the board's energy counter, which moves some ten times a second
    run = run.model_copy(update={"window": Window(warmup_steps=6, min_steps=20, min_seconds=2.0)})
    out = halfstep_run(run, tmp_path)
    summary, record, gpu = summary_of(out), read_record(out), visible_gpu()
    assert gpu is not None
    assert summary["status"] in ("ok", "disturbed"), summary["reason"]
    positive = [
        "step_ms_median", "wall_ms_mean", "samples_per_s", "startup_s", "first_step_s", "peak_allocated_gib",
        "peak_reserved_gib", "model_tflop_per_s", "kernel_ms", "power_w_mean", "power_limit_w", "energy_j_per_step",
        "sm_clock_mhz_mean", "temperature_c_max",
    ]  # fmt: skip
    assert [column for column in positive if not summary[column] or float(summary[column]) <= 0] == []
    number = {column: float(summary[column]) for column in [*positive, "steps", "idle_ms", "power_capped_share"]}
    assert number["steps"] >= 20
    assert number["energy_j_per_step"] / number["wall_ms_mean"] * 1e3 < 2 * (gpu.power_limit_default_w or 1e4)
    assert number["peak_allocated_gib"] <= number["peak_reserved_gib"] <= 8
    assert number["kernel_ms"] + number["idle_ms"] == pytest.approx(number["step_ms_median"], rel=1e-5)
    assert summary["gpu_uuid"] == gpu.uuid
    assert summary["compile_s"] == summary["recompiles"] == ""  # it was not compiled
    assert record["applied"]["gemm"] == "bf16"
    assert record["telemetry"]["samples"] >= 5
    assert len([row for row in read_csv(out / "steps.csv", STEPS_COLUMNS) if row["phase"] == "window"]) >= 20
    assert read_csv(out / "kernels.csv", KERNELS_COLUMNS)
