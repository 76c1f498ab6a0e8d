"""From a tensor's largest magnitude to its scale, and the cast to FP8 with that scale.

FP8 holds `scale * tensor`; a matrix product divides by the scales again. Which format is for what, and
one scale per tensor that maps its largest magnitude to the format's: Micikevicius et al., "FP8 Formats for
Deep Learning", arXiv 2209.05433, sections 2 and 3.
"""

from __future__ import annotations

import math

import torch

E4M3 = torch.float8_e4m3fn
"""weights and activations: more precision, to 448"""
E5M2 = torch.float8_e5m2
"""gradients: more range, to 57344"""

FP32_MAX = torch.finfo(torch.float32).max


def largest_magnitude(tensor: torch.Tensor) -> torch.Tensor:
    """The "amax", max |tensor|, as fp32 [1]; NaN if there is a NaN. Exact, in one pass, without a copy."""
    return torch.linalg.vector_norm(tensor, math.inf, dtype=torch.float32).reshape(1)


def new_scale(
    amax: torch.Tensor, largest: torch.Tensor | float, previous: torch.Tensor, margin: int = 0
) -> torch.Tensor:
    """The scale that maps a tensor's largest magnitude to the format's: largest / amax / 2^margin.

    Where amax is 0, infinite or NaN the previous scale stays; where the quotient overflows (amax below
    about 1e-34) it is the largest fp32, so that 0 * scale stays 0. These are Transformer Engine's rules
    (transformer_engine/common/recipe/delayed_scaling.cu; the first two in Python as `_default_sf_compute` of
    transformer_engine/pytorch/fp8.py). As there, a scale need not be a power of two.

    Args:
        amax: largest magnitudes, fp32, any shape.
        largest: largest magnitude of the format, 448 or 57344; a number or fp32 that broadcasts to amax.
        previous: scales so far, fp32, the shape of amax.
        margin: how many powers of two stay free above amax.
    """
    # as a tensor, since torch computes number / tensor as number * (1 / tensor), which rounds twice
    numerator = largest if isinstance(largest, torch.Tensor) else torch.full_like(amax, largest)
    scale = (numerator / amax / 2**margin).clamp(max=FP32_MAX)
    return torch.where(amax.isfinite() & (amax > 0), scale, previous)


def saturating_cast(tensor: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The tensor times its scale in FP8, row-major; what lies beyond the format becomes its largest value.

    A delayed scale is that of earlier steps, so values can lie beyond it; torch's own cast makes such a value
    NaN (e4m3fn has no infinity) or infinite (e5m2). NaN stays NaN.

    Args:
        tensor: fp32, bf16 or fp16, any shape.
        scale: fp32 [1]. Not a scalar tensor: bf16 times that would stay bf16, and so be rounded twice.
        dtype: E4M3 or E5M2.
    """
    largest = torch.finfo(dtype).max
    return (tensor * scale).clamp_(-largest, largest).to(dtype).contiguous()
