"""The doctor and the telemetry on a real GPU."""

from __future__ import annotations

import os
import time

import pytest

from halfstep.system import capabilities_torch
from halfstep.system.capabilities import PROBES
from halfstep.system.doctor import examine, print_table
from halfstep.system.environment import environment
from halfstep.system.gpu import visible_gpu
from halfstep.system.libraries import LibraryError, locate
from halfstep.system.peaks import stated_peak
from halfstep.system.probing import Broken
from halfstep.system.telemetry import Sampler

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def pci_order(monkeypatch):
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")


def test_doctor_finds_every_capability():
    result = examine()
    print_table(result)
    gpu = visible_gpu()
    rows = {row["name"]: row for row in result["capabilities"]}
    expected = {}
    for name, probe in PROBES.items():
        expected[name] = "available"
        if probe.compute_capability is not None and gpu.compute_capability < probe.compute_capability:
            expected[name] = "too old"
        try:
            if probe.library is not None:
                locate(probe.library)
        except LibraryError as error:
            expected[name] = error.status
    if expected["torchao_delayed"] == "available":
        expected["torchao_delayed"] = "removed"
    wrong = {name: rows[name] for name, status in expected.items() if rows[name]["status"] != status}
    assert not wrong, wrong
    print("not installed, so not proved:", {n: s for n, s in expected.items() if s not in ("available", "too old")})
    details = {row["name"]: row["detail"] for row in result["capabilities"]}
    assert "Triton kernel" in details["torch_compile"]
    assert "on the GPU" in details["bf16"]
    assert "e5m2" in details["scaled_mm_tensorwise"]
    assert result["machine"]["gpu"] == gpu.name
    assert result["machine"]["power_limit_w"] > 0


def test_nvml_and_torch_name_the_same_gpu():
    import torch

    gpu = visible_gpu()
    properties = torch.cuda.get_device_properties(0)
    assert properties.name == gpu.name
    assert (properties.major, properties.minor) == gpu.compute_capability
    assert str(properties.uuid) == gpu.uuid.removeprefix("GPU-")
    found = environment()
    assert (found["gpu"], found["driver"]) == (gpu.name, gpu.driver)
    if gpu.name == "NVIDIA H200":
        assert stated_peak(gpu.name, "bf16") == 989.5


def test_sampler_sees_a_gpu_at_work():
    import torch

    gpu = visible_gpu()
    a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    (a @ a).sum().item()
    with Sampler(gpu, os.getpid()) as sampler:
        sampler.start_window()
        end = time.perf_counter() + 3  # NVML's power is itself an average over a second
        while time.perf_counter() < end:
            for _ in range(20):
                a @ a
            torch.cuda.synchronize()
        seen = sampler.end_window()
    print(seen, seen.disturbance())
    assert seen.samples >= 5
    assert seen.power_w_mean > 0 and seen.energy_j > 0
    assert seen.energy_j / seen.seconds < 2 * gpu.power_limit_default_w
    assert seen.sm_clock_mhz_mean > 0 and seen.temperature_c_max > 0
    assert seen.power_limit_w > 0
    # ours alone, or not told (a container that hides process numbers); never our own memory as another's
    assert seen.others_memory_gib in (None, 0)


def test_tf32_leaves_torch_as_it_was():
    import torch

    before = torch.backends.cuda.matmul.allow_tf32
    capabilities_torch.tf32()
    assert torch.backends.cuda.matmul.allow_tf32 == before


def needs_fp8():
    if visible_gpu().compute_capability < (8, 9):
        pytest.skip("no FP8 matrix units")


@pytest.mark.parametrize("probe", [capabilities_torch.scaled_mm_tensorwise, capabilities_torch.scaled_mm_rowwise])
def test_a_scaled_product_with_a_wrong_scale_is_broken(monkeypatch, probe):
    import torch

    needs_fp8()
    real = torch._scaled_mm

    def wrong(a, b, scale_a, scale_b, **others):
        return real(a, b, scale_a=scale_a, scale_b=scale_b * 1.1, **others)

    assert "relative error" in probe()
    monkeypatch.setattr(torch, "_scaled_mm", wrong)
    with pytest.raises(Broken, match="relative error"):
        probe()


def test_a_linear_in_bf16_and_one_without_fp8_kernels_do_not_pass_for_fp8():
    import torch

    from halfstep.system.checks import need_fp8_gemm, prove_linear

    with pytest.raises(Broken, match="less than the rounding asked for"):
        prove_linear(lambda linear: linear)
    a = torch.randn(1024, 1024, device="cuda", dtype=torch.bfloat16)
    with pytest.raises(Broken, match="no FP8 matrix product"):
        need_fp8_gemm(lambda: a @ a)


def test_torchs_own_optimizer_does_not_pass_for_a_fused_one():
    import torch

    from halfstep.system.checks import prove_adamw

    with pytest.raises(Broken, match="no kernel named"):
        prove_adamw(lambda parameters, **settings: torch.optim.AdamW(parameters, foreach=False, **settings))
