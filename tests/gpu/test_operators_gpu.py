"""Operators on a real GPU: the benchmark helper's window, right values from every implementation, the right kernels."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from halfstep.errors import Unsupported
from halfstep.kernel_kinds import kind_of
from halfstep.measure.benchmark import WINDOW_MS, benchmark
from halfstep.measure.operators import measure
from halfstep.measure.process import look_up
from halfstep.measure.profile import profile_kernels
from halfstep.registry import GEMMS, NORMS, OPERATORS, OPTIMIZERS
from halfstep.runs import Scope, resolve
from halfstep.study import validate
from halfstep.workloads import gemm
from halfstep.workloads.operator import accuracy

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA GPU"),
]


@pytest.fixture(autouse=True)
def forget_compiled() -> Iterator[None]:
    yield
    torch._dynamo.reset()


def silent(event: str, **details: Any) -> None:
    """An emit that tells nobody."""


def result_of(workload: str, **settings: Any) -> dict[str, Any]:
    """Measured at smoke size; the test is skipped where the machine or a library cannot do it at all."""
    comparison = {"workload": workload, "baseline": "a", "variants": {"a": settings}}
    run = resolve(validate({"comparisons": {"c": comparison}}), Scope("gpu", "smoke"), ("c", "a", 1))
    try:
        return measure(run.model_dump(), silent)
    except Unsupported as error:
        pytest.skip(str(error))


# the benchmark helper


def test_a_call_takes_as_long_as_its_bytes_need(device: torch.device) -> None:
    """Fill 1 GiB: no GPU writes faster than 20 TB/s, and one that takes FP8 does it at 100 GB/s."""
    x = torch.empty(2**30, dtype=torch.uint8, device=device)
    timing = benchmark(lambda: x.zero_(), device)
    assert 2**30 / 20e12 * 1e3 < timing.median < 2**30 / 100e9 * 1e3
    assert timing.p05 <= timing.median <= timing.p95
    assert timing.samples >= 2


def test_operands_come_from_memory_and_not_from_the_cache(device: torch.device) -> None:
    """32 MiB lie in the L2 of a big GPU: read again and again in a row they take less time than the helper says."""
    x = torch.randn(2**23, device=device)
    out = torch.empty((), device=device)

    def call() -> None:
        torch.sum(x, dim=0, out=out)

    flushed = benchmark(call, device).median
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    graph = torch.cuda.CUDAGraph()  # so that the host's launches do not count
    with torch.cuda.graph(graph):
        for _ in range(50):
            call()
    graph.replay()
    start.record()
    graph.replay()
    end.record()
    torch.cuda.synchronize()
    assert flushed > start.elapsed_time(end) / 50


def test_the_window_is_of_about_its_length(device: torch.device) -> None:
    x = torch.empty(2**28, device=device)
    timing = benchmark(lambda: x.add_(1), device)
    assert 0.3 * WINDOW_MS < timing.samples * timing.mean < 3 * WINDOW_MS


def test_gradients_are_dropped_before_each_call(device: torch.device) -> None:
    x = torch.ones(16, device=device, requires_grad=True)
    benchmark(lambda: x.sum().backward(), device, grad_to_none=[x])
    assert x.grad is not None and torch.equal(x.grad, torch.ones_like(x))


# gemm


@pytest.mark.parametrize("name", GEMMS)
def test_a_product_is_right_and_of_its_precision(name: str, device: torch.device) -> None:
    torch.manual_seed(0)
    try:
        product = look_up(GEMMS[name])(device)
    except Unsupported as error:
        pytest.skip(str(error))
    a, b = (torch.randn(rows, 1024, device=device, dtype=torch.bfloat16) for rows in (512, 2048))
    a[3] *= 50  # a row that costs a tensor's one scale some of its range
    operands = product.cast(a, b)
    got = product.multiply(operands)
    assert got.dtype == torch.bfloat16 and got.shape == (512, 2048)
    _, sqnr = accuracy(got, a.double() @ b.double().t())
    assert sqnr is not None
    assert sqnr > 45 if product.precision == "bf16" else 24 < sqnr < 35
    kernels, _ = profile_kernels(lambda: product.multiply(operands))
    kinds = {kind_of(kernel["kernel"]) for kernel in kernels}
    assert ("FP8 GEMM" in kinds) == (product.precision == "fp8"), kernels


def test_a_row_that_is_far_larger_is_no_matter_to_row_wise_scales(device: torch.device) -> None:
    """By rows: one scale for all rows loses the small ones' values, a scale per row does not."""
    torch.manual_seed(0)
    a, b = (torch.randn(256, 512, device=device, dtype=torch.bfloat16) for _ in "ab")
    a[0] *= 1e5
    exact = (a.double() @ b.double().t())[1:]
    found = {}
    for name in ("fp8_tensorwise", "fp8_rowwise"):
        try:
            product = look_up(GEMMS[name])(device)
        except Unsupported as error:
            pytest.skip(str(error))
        found[name] = accuracy(product.multiply(product.cast(a, b))[1:], exact)[1] or 0
    assert found["fp8_rowwise"] > 24 > found["fp8_tensorwise"]


@pytest.mark.parametrize("name", GEMMS)
def test_every_case_of_a_product_is_measured(name: str) -> None:
    result = result_of("gemm", gemm=name)
    statuses = {row["case"]: row["status"] for row in result["summaries"]}
    example = statuses.pop(gemm.EXAMPLE)
    assert set(statuses.values()) == {"ok"}, result["summaries"]
    assert example == ("ok" if "tensorwise" in name else "unsupported")
    assert result["kernels"]
    assert all(row["kernel_ms"] > 0 for row in result["summaries"] if row["status"] == "ok")


# norm, optimizer_step


@pytest.mark.parametrize("compile", ["none", "model"])
@pytest.mark.parametrize("name", NORMS)
def test_every_norm_is_that_of_float64(name: str, compile: str) -> None:
    if compile == "model" and "_" in name:
        pytest.skip("the study compiles torch's own alone")
    result = result_of("norm", norm=name, compile=compile)
    for row in result["summaries"]:
        assert row["status"] == "ok", row
        assert row["sqnr_db"] > (100 if "fp32" in row["case"] else 40), row
    assert result["kernels"]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizers_steps_are_those_of_float64(name: str) -> None:
    result = result_of("optimizer_step", optimizer=name)
    for row in result["summaries"]:
        assert row["status"] == "ok", row
        assert row["max_abs_error"] < 1e-6, row  # a step moves a parameter by 1e-3
    assert any(kind_of(kernel["kernel"]) in ("optimizer", "pointwise") for kernel in result["kernels"])


# dtypes


def test_the_types_are_the_articles_on_a_gpu_too() -> None:
    result = result_of("dtypes")
    values = {row["case"]: row["value"] for row in result["summaries"]}
    casts = [float(values[f"cast float8_e4m3fn {index}"]) for index in range(4)]
    assert casts == [2, -0.8125, -0.46875, -1.375]
    assert values["operation float8_e4m3fn copy"] == "works"
    if torch.cuda.get_device_capability() >= (8, 9):
        assert values["product _scaled_mm e4m3 times e4m3"] == values["product _scaled_mm e5m2 times e4m3"] == "works"
    # an operation that is refused leaves the device as it was
    assert torch.ones(2, device="cuda").sum().item() == 2


def test_what_a_case_took_is_free_before_the_next(device: torch.device) -> None:
    assert set(OPERATORS) == {"dtypes", "gemm", "optimizer_step", "norm"}
    before = torch.cuda.memory_allocated(device)
    result_of("optimizer_step", optimizer="adamw_foreach")
    assert torch.cuda.memory_allocated(device) <= before + 2**20
