"""The operators that make FP8 operands, against float64: one test, three places to run it (see conftest.py)."""

from __future__ import annotations

import math
from typing import Any

import pytest
import reference
import torch
from torch.nn import functional

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
FORMATS = {E4M3: reference.E4M3, E5M2: reference.E5M2}
# whole tiles, parts of tiles, less than one, and sizes by which no vector divides
SHAPES = [(128, 256), (48, 272), (130, 80), (16, 5), (1, 1), (67, 131)]
# For programs of several tiles, which have 64 or 32 rows and 128 columns: whole tiles, a last program with fewer and a
# part of one, a last strip of one or two columns, rows that are no whole fours, one tile.
TALL = [(256, 128), (200, 129), (131, 20), (64, 128), (1, 130)]
TYPES = [torch.bfloat16, torch.float32]

# numpy, with which the interpreter computes, warns of what is not finite
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


@pytest.fixture(autouse=True)
def poison() -> Any:
    """What a kernel forgets to write is NaN."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)


def few_programs(place: Any, monkeypatch: pytest.MonkeyPatch, programs: int) -> None:
    """So that a small matrix has as many tiles to a program as a large one; of the kernels, which alone have any."""
    if not place.runs_kernels:
        return
    from halfstep.fp8 import launch

    for name in ("CAST", "GELU_BACKWARD"):
        monkeypatch.setattr(launch, name, getattr(launch, name)._replace(programs=programs))
    monkeypatch.setattr(launch, "GELU_PROGRAMS", programs)
    monkeypatch.setattr(launch, "GELU_BLOCK", 1024)


def random(
    shape: tuple[int, ...], dtype: torch.dtype = torch.float32, seed: int = 0, wide: bool = False
) -> torch.Tensor:
    """Normal numbers; `wide`: over 40 powers of two, so that they are too large, normal, subnormal and zero in FP8."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(shape, generator=generator, dtype=torch.float64)
    if wide:
        values *= torch.randint(-25, 15, shape, generator=generator).double().exp2()
    return values.to(dtype)


def one(value: float, place: Any) -> torch.Tensor:
    return torch.tensor([float(value)], device=place.device)


def decoded(cast: torch.Tensor) -> torch.Tensor:
    return cast.cpu().float().double()


def assert_held(cast: torch.Tensor, exact: torch.Tensor, scale: float, off: float = 0.0) -> None:
    """The nearest FP8 value of scale * exact; of anything within `off` of exact where fp32 came between."""
    form = FORMATS[cast.dtype]
    assert cast.is_contiguous()
    assert cast.shape == exact.shape
    held, by = decoded(cast), torch.tensor(scale).double()
    assert torch.equal(held.isnan(), exact.isnan())
    low, high = (form.round((by * (exact + sign * off)).float()).nan_to_num() for sign in (-1, 1))
    assert ((low <= held.nan_to_num()) & (held.nan_to_num() <= high)).all()


def assert_amax(amax: torch.Tensor, exact: torch.Tensor, off: float = 0.0) -> None:
    largest = exact.abs().max() if not exact.isnan().any() else torch.tensor(math.nan)
    torch.testing.assert_close(amax.cpu()[0].double(), largest.double(), rtol=0, atol=off, equal_nan=True)


@pytest.mark.parametrize("dtype", [E4M3, E5M2])
@pytest.mark.parametrize("source", TYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_cast_with_its_transpose_amax_and_sums(
    place: Any, shape: tuple[int, int], source: torch.dtype, dtype: torch.dtype
) -> None:
    assert_cast(place, shape, source, dtype)


@pytest.mark.parametrize("programs", [1, 3])
@pytest.mark.parametrize("shape", TALL)
def test_a_cast_by_programs_of_several_tiles(
    place: Any, shape: tuple[int, int], programs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    few_programs(place, monkeypatch, programs)
    assert_cast(place, shape, torch.bfloat16, E5M2)


def assert_cast(place: Any, shape: tuple[int, int], source: torch.dtype, dtype: torch.dtype) -> None:
    x, amax = random(shape, source, wide=True), one(0, place)
    plain, transposed, inverse, sums = place.cast([x.to(place.device)], one(1.7, place), amax, dtype, True)
    assert_held(plain, x.double(), 1.7)
    assert transposed.is_contiguous()
    assert torch.equal(decoded(transposed), decoded(plain).t())
    assert_amax(amax, x.double())
    assert inverse.item() == (1 / torch.tensor([1.7])).item()
    torch.testing.assert_close(sums.cpu().double(), x.double().sum(0), rtol=0, atol=1e-6 * float(x.abs().sum(0).max()))


STRIDED = {
    "transposed": lambda: random((80, 48)).t(),
    "every second row and column": lambda: random((96, 160))[::2, ::2],
    "one row repeated": lambda: random((1, 80)).expand(48, 80),
    "one number repeated": lambda: random(()).expand(48, 80),
    "a slice": lambda: random((50, 99))[1:49, 3:83],
}


@pytest.mark.parametrize("strides", STRIDED)
def test_a_cast_reads_any_strides(place: Any, strides: str) -> None:
    x, amax = STRIDED[strides](), one(0, place)
    whole = x.as_strided((x.untyped_storage().nbytes() // 4,), (1,), 0).to(place.device)
    on_device = whole.as_strided(x.shape, x.stride(), x.storage_offset())
    plain, transposed, _, sums = place.cast([on_device], one(20.0, place), amax, E4M3, True)
    assert_held(plain, x.double(), 20.0)
    assert torch.equal(decoded(transposed), decoded(plain).t())
    assert_amax(amax, x.double())
    torch.testing.assert_close(sums.cpu().double(), x.double().sum(0), rtol=1e-5, atol=1e-5)


def test_matrices_side_by_side_are_one_cast(place: Any) -> None:
    whole, amax = random((70, 96), torch.bfloat16, wide=True), one(0, place)
    parts = [part.to(place.device) for part in whole.split([32, 16, 48], dim=1)]
    plain, transposed, _, sums = place.cast(parts, one(3.0, place), amax, E5M2, True)
    assert_held(plain, whole.double(), 3.0)
    assert torch.equal(decoded(transposed), decoded(plain).t())
    assert_amax(amax, whole.double())
    torch.testing.assert_close(sums.cpu().double(), whole.double().sum(0), rtol=1e-5, atol=1e-2)


def test_matrices_of_several_tiles_side_by_side(place: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The widest has two strips, and each fewer programs than the one strip of another would have."""
    few_programs(place, monkeypatch, 4)
    whole, amax = random((322, 240), torch.bfloat16, wide=True), one(0, place)
    parts = [part.to(place.device) for part in whole.split([160, 16, 64], dim=1)]
    plain, transposed, _, sums = place.cast(parts, one(3.0, place), amax, E5M2, True)
    assert_held(plain, whole.double(), 3.0)
    assert torch.equal(decoded(transposed), decoded(plain).t())
    assert_amax(amax, whole.double())
    torch.testing.assert_close(sums.cpu().double(), whole.double().sum(0), rtol=1e-5, atol=1e-2)


@pytest.mark.parametrize("at", [(0, 0), (63, 127), (64, 0), (199, 128), (131, 5)])
def test_the_largest_magnitude_is_found_wherever_it_is(
    place: Any, at: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In any tile of a program, and in the last, part of one."""
    few_programs(place, monkeypatch, 2)
    x = random((200, 129))
    x[at] = -77.0
    amaxes = one(0, place), one(0, place), one(0, place)
    place.cast([x.to(place.device)], one(1, place), amaxes[0], E4M3, False)
    place.gelu(-x.to(place.device), one(1, place), amaxes[1], E4M3)
    h = torch.full_like(x, 77.0)  # where the derivative is 1
    place.gelu_backward(x.to(place.device), h.to(place.device), one(1, place), amaxes[2], E5M2, one(1, place), E4M3)
    assert [amax.item() for amax in amaxes] == [77.0] * 3


def test_without_sums_there_are_none(place: Any) -> None:
    assert place.cast([random((16, 16)).to(place.device)], one(1, place), one(0, place), E4M3, False)[3].numel() == 0


@pytest.mark.parametrize("dtype", [E4M3, E5M2])
@pytest.mark.parametrize("worst", [math.inf, math.nan])
def test_what_is_not_finite_stays_nan_or_becomes_the_largest_and_shows_in_the_amax(
    place: Any, worst: float, dtype: torch.dtype
) -> None:
    x, amax = random((70, 140), torch.bfloat16), one(0, place)
    x[3, 5], x[69, 139], x[64, 0] = -math.inf, math.inf, worst
    plain, transposed, _, _ = place.cast([x.to(place.device)], one(2.0, place), amax, dtype, False)
    assert_held(plain, x.double(), 2.0)
    assert torch.equal(decoded(transposed).nan_to_num(), decoded(plain).t().nan_to_num())
    assert decoded(plain)[69, 139] == -decoded(plain)[3, 5] == FORMATS[dtype].largest
    assert_amax(amax, x.double())


def test_zeros_give_zeros_an_amax_of_0_and_a_scale_may_be_as_large_as_fp32(place: Any) -> None:
    amax, largest = one(0, place), torch.finfo(torch.float32).max
    plain, _, inverse, sums = place.cast([torch.zeros(48, 80).to(place.device)], one(largest, place), amax, E5M2, True)
    assert not decoded(plain).any()
    assert not sums.any()
    assert amax.item() == 0
    assert inverse.item() == pytest.approx(1 / largest)


@pytest.mark.parametrize(("before", "after"), [(0.5, 2.0), (7.0, 7.0), (math.inf, math.inf), (math.nan, math.nan)])
def test_an_amax_only_rises(place: Any, before: float, after: float) -> None:
    amax = one(before, place)
    place.cast([torch.full((16, 16), -2.0).to(place.device)], one(1, place), amax, E4M3, False)
    assert amax.item() == pytest.approx(after, nan_ok=True)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [E4M3, E5M2])
def test_a_transpose_moves_bytes(place: Any, shape: tuple[int, int], dtype: torch.dtype) -> None:
    x = torch.arange(math.prod(shape)).remainder(251).to(torch.uint8).reshape(shape).view(dtype)
    got = place.transpose(x.to(place.device)).cpu()
    assert got.is_contiguous()
    assert torch.equal(got.view(torch.uint8), x.view(torch.uint8).t())


def normed(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return functional.layer_norm(x, weight.shape, weight.double(), bias.double(), 1e-6)


@pytest.mark.parametrize("add", [False, True])
@pytest.mark.parametrize("source", TYPES)
@pytest.mark.parametrize("shape", [*SHAPES[:4], (67, 131), (9, 1280)])
def test_a_norm_of_a_sum_in_fp8(place: Any, shape: tuple[int, int], source: torch.dtype, add: bool) -> None:
    x, added = 5 + 3 * random(shape, source), random(shape, torch.bfloat16, 1)
    weight, bias = 1 + random(shape[1:], seed=2), random(shape[1:], seed=3)
    amax = one(0, place)
    total, plain, inverse, mean, rstd = place.norm(
        x.to(place.device), added.to(place.device) if add else None, weight.to(place.device), bias.to(place.device),
        1e-6, one(50.0, place), amax, E4M3,
    )  # fmt: skip
    if add:
        x = x + added
        assert torch.equal(total.cpu(), x)
    else:
        assert total.numel() == 0
    exact = normed(x.double(), weight, bias)
    off = 2e-5 * float(exact.abs().max())  # fp32's cancellation: the rows' mean is larger than their deviation
    assert_held(plain, exact, 50.0, off)
    assert_amax(amax, exact, off)
    assert inverse.item() == (1 / torch.tensor([50.0])).item()
    torch.testing.assert_close(mean.cpu().double(), x.double().mean(1), rtol=1e-5, atol=1e-5)
    deviation = (x.double().var(1, unbiased=False) + 1e-6).sqrt()
    torch.testing.assert_close(rstd.cpu().double(), 1 / deviation, rtol=1e-4, atol=1e-5)


def test_a_norms_rows_do_not_touch_each_other(place: Any) -> None:
    x, amax = random((10, 48)), one(0, place)
    x[2, 7], x[5, 0], x[7] = math.nan, math.inf, 4.0
    ones, zeros = torch.ones(48, device=place.device), torch.zeros(48, device=place.device)
    _, plain, _, _, _ = place.norm(x.to(place.device), None, ones, zeros, 1e-6, one(9.0, place), amax, E4M3)
    held = decoded(plain)
    assert held.isnan().all(1).tolist() == [row in (2, 5) for row in range(10)]
    assert held.isnan().any(1).tolist() == [row in (2, 5) for row in range(10)]
    assert not held[7].any()  # no deviation: epsilon keeps it from dividing by 0
    assert amax.isnan().all()


@pytest.mark.parametrize("source", TYPES)
@pytest.mark.parametrize("shape", [*SHAPES[:4], (67, 131), (40, 1280)])
def test_a_norms_backward_pass(place: Any, shape: tuple[int, int], source: torch.dtype) -> None:
    x, residual = 1 + 3 * random(shape, source), random(shape, source, 4)
    grad, weight = random(shape, torch.bfloat16, 5), 1 + random(shape[1:], seed=2)
    exact_x, exact_weight, exact_bias = x.double(), weight.double(), torch.zeros(shape[1]).double()
    leaves = [leaf.requires_grad_() for leaf in (exact_x, exact_weight, exact_bias)]
    functional.layer_norm(leaves[0], shape[1:], leaves[1], leaves[2], 1e-6).backward(grad.double())
    mean, rstd = x.double().mean(1), (x.double().var(1, unbiased=False) + 1e-6).rsqrt()
    arguments = (x, mean.float(), rstd.float(), weight, grad, residual)
    of_x, of_parameters = place.norm_backward(*(tensor.to(place.device) for tensor in arguments))
    assert (of_x.dtype, of_parameters.dtype) == (source, torch.float32)
    rounding = {torch.float32: 1e-4, torch.bfloat16: 2.0**-7}[source]
    expected = residual.double() + exact_x.grad
    size = float(expected.abs().max())
    torch.testing.assert_close(of_x.cpu().double(), expected, rtol=rounding, atol=rounding * size)
    for actual, exact in zip(of_parameters, (exact_weight.grad, exact_bias.grad), strict=True):
        off = 1e-4 * max(1, float(exact.abs().max()))
        torch.testing.assert_close(actual.cpu().double(), exact, rtol=1e-4, atol=off)


@pytest.mark.parametrize("source", TYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_gelu_in_fp8(place: Any, shape: tuple[int, int], source: torch.dtype) -> None:
    assert_gelu(place, shape, source)


@pytest.mark.parametrize("programs", [1, 3])
@pytest.mark.parametrize("shape", TALL)
def test_a_gelu_by_programs_of_several_blocks(
    place: Any, shape: tuple[int, int], programs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    few_programs(place, monkeypatch, programs)
    assert_gelu(place, shape, torch.bfloat16)


def assert_gelu(place: Any, shape: tuple[int, int], source: torch.dtype) -> None:
    h, amax = 3 * random(shape, source), one(0, place)
    plain, inverse = place.gelu(h.to(place.device), one(30.0, place), amax, E4M3)
    exact = functional.gelu(h.double())
    assert_held(plain, exact, 30.0, off=2e-6)
    assert_amax(amax, exact, off=2e-6)
    assert inverse.item() == (1 / torch.tensor([30.0])).item()


def test_a_gelu_over_its_whole_range_is_the_exact_one(place: Any) -> None:
    """In e5m2 with a scale that shows small values: the tanh approximation differs by up to 5e-4."""
    h = torch.linspace(-9, 9, 4096).reshape(64, 64)
    exact = functional.gelu(h.double())
    plain, _ = place.gelu(h.to(place.device), one(6000.0, place), one(0, place), E5M2)
    assert_held(plain, exact, 6000.0, off=2e-6)
    tanh = functional.gelu(h.double(), approximate="tanh")
    with pytest.raises(AssertionError):
        assert_held(plain, tanh, 6000.0, off=2e-6)


def test_a_gelu_of_what_is_not_finite_is_torchs(place: Any) -> None:
    h = torch.tensor([[math.nan, math.inf, -math.inf, 1e30, -1e30, 0.0, -0.0, 1.0]]).repeat(4, 2)
    plain, _ = place.gelu(h.to(place.device), one(1.0, place), one(0, place), E4M3)
    assert_held(plain, functional.gelu(h.double()), 1.0)


@pytest.mark.parametrize("source", TYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_gelus_backward_pass_in_fp8(place: Any, shape: tuple[int, int], source: torch.dtype) -> None:
    assert_gelu_backward(place, shape, source)


@pytest.mark.parametrize("programs", [1, 3])
@pytest.mark.parametrize("shape", TALL)
def test_a_gelus_backward_pass_by_programs_of_several_tiles(
    place: Any, shape: tuple[int, int], programs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    few_programs(place, monkeypatch, programs)
    assert_gelu_backward(place, shape, torch.bfloat16)


def assert_gelu_backward(place: Any, shape: tuple[int, int], source: torch.dtype) -> None:
    h, grad, amax = 3 * random(shape, source), 1e-3 * random(shape, source, 6), one(0, place)
    plain, transposed, inverse, sums, out = place.gelu_backward(
        grad.to(place.device), h.to(place.device), one(2e6, place), amax, E5M2, one(30.0, place), E4M3
    )
    leaf = h.double().requires_grad_()
    functional.gelu(leaf).backward(grad.double())
    exact = leaf.grad
    off = 2e-6 * float(grad.abs().max())
    assert_held(plain, exact, 2e6, off)
    assert transposed.is_contiguous()
    assert torch.equal(decoded(transposed), decoded(plain).t())
    assert_amax(amax, exact, off)
    assert inverse.item() == (1 / torch.tensor([2e6])).item()
    torch.testing.assert_close(sums.cpu().double(), exact.sum(0), rtol=1e-4, atol=shape[0] * off)
    assert_held(out, functional.gelu(h.double()).t(), 30.0, off=2e-6)
    # what the forward pass multiplied is what backward multiplies again, but where two kernels of a compiler differ in
    # the last bit of fp32
    forward, _ = place.gelu(h.to(place.device), one(30.0, place), one(0, place), E4M3)
    assert (decoded(out).t() != decoded(forward)).double().mean() < 1e-3


def test_a_gelus_backward_pass_keeps_nan_where_it_is(place: Any) -> None:
    h, grad, amax = random((70, 140), torch.bfloat16), random((70, 140), torch.bfloat16, 1), one(0, place)
    h[1, 2], grad[68, 139] = math.nan, math.nan
    plain, transposed, _, sums, out = place.gelu_backward(
        grad.to(place.device), h.to(place.device), one(100.0, place), amax, E5M2, one(1.0, place), E4M3
    )
    assert decoded(plain).isnan().nonzero().tolist() == [[1, 2], [68, 139]]
    assert decoded(transposed).isnan().nonzero().tolist() == [[2, 1], [139, 68]]
    assert decoded(out).isnan().nonzero().tolist() == [[2, 1]]
    assert sums.isnan().nonzero().flatten().tolist() == [2, 139]
    assert amax.isnan().all()


def test_a_second_call_gives_the_same_bits(place: Any) -> None:
    # on a GPU programs of several tiles run at once; one after the other they need be no more than several
    shape = (300, 520) if place.device.type == "cuda" else (70, 140)
    x, grad = (random(shape, torch.bfloat16, seed).to(place.device) for seed in (0, 1))
    weight = torch.ones(shape[1], device=place.device)

    def run() -> list[torch.Tensor]:
        scale, amaxes = one(11.0, place), [one(0, place) for _ in range(4)]
        casts = place.cast([grad], scale, amaxes[0], E5M2, True)
        normed = place.norm(x, None, weight, weight, 1e-6, scale, amaxes[1], E4M3)
        back = place.norm_backward(x, *normed[3:], weight, grad, grad)
        gelu = place.gelu(x, scale, amaxes[2], E4M3)
        gelu_back = place.gelu_backward(grad, x, scale, amaxes[3], E5M2, scale, E4M3)
        return [tensor.flatten().view(torch.uint8) for tensor in (*amaxes, *casts, *normed, *back, *gelu, *gelu_back)]

    assert all(map(torch.equal, run(), run()))


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_what_the_compiler_is_told_of_the_operators_is_true(device: str) -> None:
    """Shapes, types and strides of the results."""
    from halfstep.fp8 import operators

    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("torch sees no CUDA GPU")
    x, other = random((48, 80)).to(device), random((48, 80), torch.bfloat16, 1).to(device)
    row, scale, amax = torch.ones(80, device=device), torch.ones(1, device=device), torch.zeros(1, device=device)
    mean, rstd = torch.zeros(48, device=device), torch.ones(48, device=device)
    for operator, arguments in (
        (operators.cast, ([x], scale, amax, E4M3, False)),
        (operators.cast, ([other.t(), other.t()], scale, amax, E5M2, True)),
        (operators.transpose, (x.to(E4M3),)),
        (operators.norm, (x, None, row, row, 1e-6, scale, amax, E4M3)),
        (operators.norm, (other, other, row, row, 1e-6, scale, amax, E4M3)),
        (operators.norm_backward, (x, mean, rstd, row, other, x)),
        (operators.gelu, (other, scale, amax, E4M3)),
        (operators.gelu_backward, (other, other, scale, amax, E5M2, scale, E4M3)),
    ):
        for emulate in {True, device == "cpu"}:
            torch.library.opcheck(operator, arguments, {"emulate": emulate}, test_utils="test_faketensor")


def test_a_kernel_without_a_gpu_or_the_interpreter_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    triton = pytest.importorskip("triton")
    from halfstep.fp8 import launch

    monkeypatch.setattr(triton.knobs.runtime, "interpret", False)
    with pytest.raises(RuntimeError, match=r"on an NVIDIA GPU, and this one is on cpu.*TRITON_INTERPRET=1"):
        launch.transpose(torch.ones(16, 16).to(E4M3))
