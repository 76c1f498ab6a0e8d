"""Scales and casts, value by value."""

from __future__ import annotations

import math

import pytest
import reference
import torch

from halfstep.fp8.scaling import E4M3, E5M2, largest_magnitude, new_scale, saturating_cast

ONE = torch.ones(1)


def test_the_scale_maps_the_largest_magnitude_to_the_formats() -> None:
    amax = torch.tensor([1.0, 448.0, 3.0, 1e-20])
    scale = new_scale(amax, 448.0, torch.full((4,), 7.0))
    expected = torch.tensor([448.0]) / amax
    assert scale.dtype == torch.float32
    assert torch.equal(scale, expected)
    assert torch.equal(new_scale(amax, torch.tensor(448.0), torch.full((4,), 7.0)), expected)


def test_a_margin_leaves_powers_of_two() -> None:
    assert torch.equal(new_scale(torch.tensor([2.0]), 57344.0, ONE, margin=3), torch.tensor([57344 / 2 / 8]))


@pytest.mark.parametrize("amax", [0.0, math.inf, math.nan])
def test_nothing_to_scale_by_keeps_the_previous_scale(amax: float) -> None:
    previous = torch.tensor([5.0, 5.0])
    assert new_scale(torch.tensor([amax, 1.0]), 448.0, previous).tolist() == [5.0, 448.0]


def test_a_scale_never_overflows_to_infinity() -> None:
    tiny = torch.tensor([1e-38])
    assert new_scale(tiny, 57344.0, ONE).item() == torch.finfo(torch.float32).max


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_largest_magnitude_is_exact_and_shows_what_is_not_finite(dtype: torch.dtype) -> None:
    tensor = torch.tensor([[1.0, -3.14159], [2.0, 0.0]], dtype=dtype)
    amax = largest_magnitude(tensor)
    assert (amax.shape, amax.dtype) == ((1,), torch.float32)
    assert amax.item() == tensor[0, 1].abs().item()
    assert largest_magnitude(torch.tensor([1.0, -math.inf], dtype=dtype)).item() == math.inf
    assert largest_magnitude(torch.tensor([math.inf, math.nan], dtype=dtype)).isnan().all()


@pytest.mark.parametrize(("dtype", "form"), [(E4M3, reference.E4M3), (E5M2, reference.E5M2)])
@pytest.mark.parametrize("source", [torch.float32, torch.bfloat16])
def test_the_cast_is_the_nearest_value_of_the_format(
    dtype: torch.dtype, form: reference.Format, source: torch.dtype
) -> None:
    generator = torch.Generator().manual_seed(0)
    magnitudes = torch.randint(-30, 20, (512, 64), generator=generator).double().exp2()
    values = (torch.randn(512, 64, generator=generator) * magnitudes).to(source)
    scale = torch.tensor([1.2345])
    assert torch.equal(saturating_cast(values, scale, dtype).double(), form.round(values.float() * scale))


@pytest.mark.parametrize(("dtype", "largest"), [(E4M3, 448.0), (E5M2, 57344.0)])
def test_what_lies_beyond_the_format_becomes_its_largest_value_where_torchs_cast_loses_it(
    dtype: torch.dtype, largest: float
) -> None:
    beyond = torch.tensor([2 * largest, -2 * largest, math.inf, math.nan])
    assert not beyond.to(dtype).float().isfinite().any()
    held = saturating_cast(beyond, ONE, dtype).float()
    assert held[:3].tolist() == [largest, -largest, largest]
    assert held[3].isnan()


def test_bf16_is_rounded_once() -> None:
    values = torch.arange(1.0, 300.0, 2**-7).bfloat16()
    scale = torch.tensor([1.2345])
    once = reference.E4M3.round(values.float() * scale)
    twice = reference.E4M3.round((values * scale[0]).float())  # a scalar tensor: the product is bf16
    assert not torch.equal(once, twice)
    assert torch.equal(saturating_cast(values, scale, E4M3).double(), once)


def test_the_cast_is_row_major_whatever_came() -> None:
    assert saturating_cast(torch.ones(4, 8).t(), ONE, E4M3).is_contiguous()
    assert saturating_cast(torch.ones(()).expand(4, 8), ONE, E5M2).is_contiguous()


def test_the_articles_sample_casts_to_its_values() -> None:
    sample = torch.tensor([2.073093891143, -0.78251332044, -0.47084918620, -1.32557279110])
    assert saturating_cast(sample, ONE, E4M3).float().tolist() == [2, -0.8125, -0.46875, -1.375]
    assert saturating_cast(sample, ONE, E5M2).float().tolist() == [2, -0.75, -0.5, -1.25]
