"""Operators on a CPU: the one benchmark helper, each operator's cases, and what becomes of a case that goes wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from halfstep.errors import Invalid, Unsupported
from halfstep.measure import benchmark as benchmarks
from halfstep.measure import operators
from halfstep.measure.benchmark import benchmark
from halfstep.measure.operators import measure
from halfstep.measure.process import look_up
from halfstep.recipes import gemms, norms, optimizers
from halfstep.recipes.compilation import none
from halfstep.registry import OPERATORS
from halfstep.runs import Scope, resolve
from halfstep.study import validate
from halfstep.workloads import dtypes, gemm, norm, optimizer_step
from halfstep.workloads.operator import Case, Operator, Work, accuracy

CPU = torch.device("cpu")

pytestmark = pytest.mark.usefixtures("one_thread")


def run_of(workload: str, **settings: Any) -> dict[str, Any]:
    comparison = {"workload": workload, "baseline": "a", "variants": {"a": settings}}
    return resolve(validate({"comparisons": {"c": comparison}}), Scope("cpu", "smoke"), ("c", "a", 1)).model_dump()


def silent(event: str, **details: Any) -> None:
    """An emit that tells nobody."""


def rows_of(workload: str, **settings: Any) -> dict[str, dict[str, Any]]:
    """The rows of a real run, by case."""
    result = measure(run_of(workload, **settings), silent)
    assert (result["status"], result["reason"]) == ("ok", "")
    return {row["case"]: row for row in result["summaries"]}


@pytest.fixture(autouse=True)
def short_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benchmarks, "CPU_WINDOW_S", 1e-4)


# the benchmark helper


def test_a_call_is_timed_in_ms_with_its_spread() -> None:
    calls = []
    timing = benchmark(lambda: calls.append(1), CPU)
    assert len(calls) > timing.samples >= 1
    assert 0 < timing.p05 <= timing.median <= timing.p95 < 100
    assert timing.p05 <= timing.mean


def test_gradients_are_not_dropped_inside_the_time_of_a_call_on_a_cpu() -> None:
    with pytest.raises(ValueError, match="CPU"):
        benchmark(lambda: None, CPU, grad_to_none=[torch.ones(1)])


def test_a_call_that_fails_raises() -> None:
    with pytest.raises(ZeroDivisionError):
        benchmark(lambda: 1 / 0, CPU)


# accuracy


def test_accuracy_of_a_known_error() -> None:
    reference = torch.full((100,), 10.0, dtype=torch.float64)
    assert accuracy(reference.float(), reference) == (0.0, None)
    largest, sqnr = accuracy(torch.full((100,), 10.5), reference)
    assert largest == 0.5
    assert sqnr == pytest.approx(20 * torch.tensor(20.0).log10().item())
    with pytest.raises(Invalid, match="not finite"):
        accuracy(torch.tensor([float("nan")]), torch.ones(1, dtype=torch.float64))


# dtypes: the article's tables


def test_limits_are_those_of_the_articles_table() -> None:
    rows = rows_of("dtypes")
    expected = {
        "float32": ("32", "3.402823e+38", "-3.402823e+38", "1.175494e-38", "1.192093e-07"),
        "bfloat16": ("16", "3.389531e+38", "-3.389531e+38", "1.175494e-38", "0.0078125"),
        "float8_e4m3fn": ("8", "448", "-448", "0.015625", "0.125"),
        "float8_e5m2": ("8", "57344", "-57344", "6.103516e-05", "0.25"),
    }
    for name, values in expected.items():
        assert tuple(rows[f"finfo {name} {limit}"]["value"] for limit in dtypes.LIMITS) == values


def test_casts_are_those_of_the_articles_sample_value_by_value() -> None:
    assert dtypes.SAMPLE == (2.073093891143, -0.78251332044, -0.47084918620, -1.32557279110)
    rows = rows_of("dtypes")
    expected = {
        "bfloat16": (2.078125, -0.78125, -0.4707031, -1.328125),
        "float8_e4m3fn": (2, -0.8125, -0.46875, -1.375),
        "float8_e5m2": (2, -0.75, -0.5, -1.25),
    }
    for name, values in expected.items():
        assert tuple(float(rows[f"cast {name} {index}"]["value"]) for index in range(4)) == values


def test_what_an_operation_does_is_probed_and_an_error_is_its_value() -> None:
    rows = rows_of("dtypes")
    operations = {case: row["value"] for case, row in rows.items() if case.startswith("operation ")}
    assert len(operations) == 2 * len(dtypes.OPERATIONS)
    assert operations["operation float8_e4m3fn copy"] == "works"
    assert operations["operation float8_e5m2 add"].startswith("NotImplementedError: ")
    assert rows["product _scaled_mm e4m3 times e4m3"]["value"] == "works"
    assert all("step_ms_median" not in row for row in rows.values())


# gemm


def test_every_gemm_that_a_cpu_can_do_has_the_right_values() -> None:
    a, b = (torch.randn(32, 64, dtype=torch.bfloat16) for _ in "ab")
    exact = a.double() @ b.double().t()
    for make, least_db in ((gemms.bf16, 45), (gemms.fp8_tensorwise, 25), (gemms.fp8_tensorwise_fast, 25)):
        product = make(CPU)
        got = product.multiply(product.cast(a, b))
        assert got.dtype == torch.bfloat16 and got.shape == (32, 32)
        _, sqnr = accuracy(got, exact)
        assert sqnr is not None and sqnr > least_db


def test_a_cast_uses_the_whole_range_and_overflows_nowhere() -> None:
    for x in (torch.randn(16, 32), torch.zeros(16, 32), 1e30 * torch.randn(16, 32), 1e-30 * torch.randn(16, 32)):
        for cast in (gemms._tensorwise, gemms._rowwise):
            values, scale = cast(x.to(torch.bfloat16))
            assert values.dtype == torch.float8_e4m3fn and scale.dtype == torch.float32
            assert values.float().isfinite().all()
            if x.abs().max() > 1e-10:
                assert values.float().abs().max() == 448
                least = x.abs().max().item() * 1e-4  # below it e4m3 has fewer digits
                torch.testing.assert_close(values.float() * scale, x.to(torch.bfloat16).float(), rtol=0.07, atol=least)
    assert gemms._rowwise(torch.ones(16, 32))[1].shape == (16, 1)
    assert gemms._tensorwise(torch.ones(16, 32))[1].shape == ()


def test_the_articles_example_gives_fp8_with_a_bias_value_by_value() -> None:
    work = gemm.example(gemms.fp8_tensorwise(CPU), CPU)
    assert work.call is not None and work.call().dtype == torch.float8_e4m3fn
    with pytest.raises(Unsupported, match="FP8 output"):
        gemm.example(gemms.bf16(CPU), CPU)
    wrong = gemms.Gemm("fp8", tuple, tuple, lambda a, b, bias: torch.zeros(16, 16).to(torch.float8_e4m3fn))
    with pytest.raises(Invalid, match="of 256 values"):
        gemm.example(wrong, CPU)


def test_a_gemm_run_has_all_cases_for_every_variant() -> None:
    plain, fp8 = rows_of("gemm", gemm="bf16"), rows_of("gemm", gemm="fp8_tensorwise")
    assert list(plain) == list(fp8)
    assert [case for case, row in plain.items() if row["status"] == "unsupported"] == [gemm.EXAMPLE]
    assert all(row["status"] == "ok" for row in fp8.values())
    assert "64x64x64, cast included" in fp8
    assert fp8["64x64x64"]["model_tflop_per_step"] == pytest.approx(2 * 64**3 / 1e12)
    assert plain["64x64x64"]["sqnr_db"] > fp8["64x64x64"]["sqnr_db"] + 15


def test_the_casts_are_in_the_time_only_where_the_case_says_so() -> None:
    casts: list[int] = []
    bf16 = gemms.bf16(CPU)
    counted = gemms.Gemm("bf16", lambda a, b: (casts.append(1), bf16.cast(a, b))[1], bf16.multiply)
    for included in (False, True):
        work = gemm.prepare(counted, CPU, (16, 16, 16), casts=included)
        casts.clear()
        assert work.call is not None
        work.call()
        assert len(casts) == included


@pytest.mark.parametrize("name", ["fp8_rowwise", "te"])
def test_a_product_that_needs_a_gpu_is_unsupported_as_a_whole(name: str) -> None:
    with pytest.raises(Unsupported, match="needs an NVIDIA GPU; this run is on the CPU"):
        measure(run_of("gemm", gemm=name), silent)


def test_full_sizes_are_those_of_the_documentation() -> None:
    full = gemm.GEMM.sizes["full"]
    assert full["squares"] == [1024, 2048, 4096, 8192, 16384]
    assert full["layers"]["ViT-Huge fc1"] == (32768, 5120, 1280)
    assert norm.NORM.sizes["full"] == {"rows": 16384, "widths": (1024, 4096, 8192)}
    assert optimizer_step.OPTIMIZER_STEP.sizes["full"]["linears"] == (96, 1024)
    shapes = optimizer_step.vit_shapes("full")
    assert sum(torch.Size(shape).numel() for shape in shapes) == 632_304_384


# optimizer_step


@pytest.mark.parametrize("name", ["adam_forloop", "adamw_foreach", "adamw_fused"])
def test_an_optimizers_steps_are_those_of_float64(name: str) -> None:
    rows = rows_of("optimizer_step", optimizer=name)
    assert set(rows) == {"linears 4x64", "vit_huge"}
    assert all(0 < row["max_abs_error"] < 1e-7 for row in rows.values())
    assert rows["linears 4x64"]["gb_per_step"] == pytest.approx(4 * (64 * 64 + 64) * 28 / 1e9)


def test_another_optimizer_is_found_out() -> None:
    def twice_as_fast(parameters: Any, capturable: bool) -> torch.optim.Optimizer:
        return torch.optim.AdamW(parameters, lr=2e-3)

    work = optimizer_step.prepare(twice_as_fast, CPU, [(4, 4)])
    assert work.max_abs_error is not None and work.max_abs_error > 1e-3


# norm


@pytest.mark.parametrize(("name", "compile"), [("layernorm", "none"), ("rmsnorm", "none"), ("rmsnorm", "model")])
def test_a_norm_run_has_times_bytes_and_accuracy(name: str, compile: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_VEC_ISA_OK", "0")
    monkeypatch.setitem(norm.NORM.sizes["smoke"], "widths", (32,))
    rows = rows_of("norm", norm=name, compile=compile)
    assert set(rows) == {f"32 {dtype} {passes}" for dtype in ("fp32", "bf16") for passes in norm_passes()}
    assert rows["32 fp32 forward"]["gb_per_step"] == pytest.approx(2 * 64 * 32 * 4 / 1e9)
    assert rows["32 bf16 forward+backward"]["gb_per_step"] == pytest.approx(5 * 64 * 32 * 2 / 1e9)
    assert all(row["sqnr_db"] > (120 if "fp32" in case else 40) for case, row in rows.items())
    assert all((row.get("compile_s", 0) > 0) == (compile == "model") for row in rows.values())


def norm_passes() -> tuple[str, str]:
    return "forward", "forward+backward"


def test_all_norms_of_a_width_see_the_same_values() -> None:
    seen: list[torch.Tensor] = []

    class Seeing(nn.LayerNorm):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen.extend([self.weight.detach().clone(), x.detach().clone()])
            return super().forward(x)

    for _ in range(2):
        torch.manual_seed(3)
        recipes = {"norm": lambda width: Seeing(width, eps=1e-6), "compile": none}
        norm.prepare(recipes, CPU, 8, 16, torch.float32, backward=True)
        torch.rand(5)
    half = len(seen) // 2
    assert all(torch.equal(one, other) for one, other in zip(seen[:half], seen[half:], strict=True))


def test_gradients_do_not_add_up_over_calls() -> None:
    recipes = {"norm": norms.layernorm, "compile": none}
    work = norm.prepare(recipes, CPU, 8, 16, torch.float32, backward=True)
    assert work.call is not None
    first, second = work.call(), work.call()
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))


# cases that go wrong


def planned(*cases: Case) -> Operator:
    def give(device: torch.device, recipes: Any) -> Iterator[Case]:
        yield from cases

    return Operator(sizes={"full": {}, "smoke": {}}, cases=give)


def raising(error: Exception) -> Callable[[], Work]:
    def prepare() -> Work:
        raise error

    return prepare


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Any]]:
    """Measures an operator of planned cases."""

    def measure_planned(*cases: Case) -> dict[str, Any]:
        def found(reference: str) -> Any:
            return planned(*cases) if reference == OPERATORS["dtypes"].reference else look_up(reference)

        monkeypatch.setattr(operators, "look_up", found)
        return measure(run_of("dtypes"), silent)

    return measure_planned


def test_a_case_that_goes_wrong_is_a_row_and_the_others_go_on(measured: Callable[..., dict[str, Any]]) -> None:
    result = measured(
        Case("a", raising(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.\nmore"))),
        Case("b", lambda: Work(lambda: None, gb=1.0)),
        Case("c", raising(Unsupported("there is no such kernel"))),
        Case("d", lambda: Work(lambda: 1 / 0)),
    )
    assert (result["status"], result["reason"]) == ("ok", "")
    assert [(row["case"], row["status"]) for row in result["summaries"]] == [
        ("a", "out_of_memory"), ("b", "ok"), ("c", "unsupported"), ("d", "failed"),
    ]  # fmt: skip
    assert result["summaries"][2]["reason"] == "there is no such kernel"
    assert "step_ms_median" not in result["summaries"][3]


def test_a_run_without_an_ok_case_has_the_first_ones_status(measured: Callable[..., dict[str, Any]]) -> None:
    result = measured(Case("a", raising(Unsupported("no"))), Case("b", raising(ValueError("other"))))
    assert (result["status"], result["reason"]) == ("unsupported", "no")


def test_cases_are_prepared_one_after_the_other(measured: Callable[..., dict[str, Any]]) -> None:
    told: list[str] = []

    def case(name: str) -> Case:
        def prepare() -> Work:
            told.append(f"prepare {name}")
            return Work(lambda: told.append(f"call {name}"))

        return Case(name, prepare)

    measured(case("a"), case("b"))
    order = list(dict.fromkeys(told))
    assert order == ["prepare a", "call a", "prepare b", "call b"]


def test_an_optimizer_recipe_keeps_its_state_where_it_is() -> None:
    """`prepare` hands `capturable` False: no operator is captured."""
    work = optimizer_step.prepare(optimizers.adamw_foreach, CPU, [(4,)])
    assert work.call is not None
    assert not work.call.__self__.defaults["capturable"]  # type: ignore[attr-defined]
