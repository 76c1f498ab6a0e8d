"""The doctor and the telemetry on a real GPU."""

from __future__ import annotations

import os
import time

import pytest

from halfstep.system import capabilities
from halfstep.system.doctor import examine, print_table
from halfstep.system.environment import environment
from halfstep.system.gpu import visible_gpu
from halfstep.system.peaks import stated_peak
from halfstep.system.telemetry import Sampler

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def pci_order(monkeypatch):
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")


def test_doctor_finds_every_capability():
    result = examine()
    print_table(result)
    gpu = visible_gpu()
    expected = set(capabilities.CAPABILITIES)
    if gpu.compute_capability < (8, 9):
        expected.remove("fp8_matmul")
    if gpu.compute_capability < (8, 0):
        expected -= {"bf16", "tf32"}
    available = {row["name"] for row in result["capabilities"] if row["status"] == "available"}
    assert available == expected
    details = {row["name"]: row["detail"] for row in result["capabilities"]}
    assert "Triton kernel" in details["torch_compile"]
    assert "on the GPU" in details["bf16"]
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
    capabilities.tf32()
    assert torch.backends.cuda.matmul.allow_tf32 == before
