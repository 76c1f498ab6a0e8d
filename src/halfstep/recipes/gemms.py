"""Matrix products as a linear layer's forward pass needs them: y = a bᵀ, with a [m, k] and b [n, k].

Both operands begin in bf16 and the product ends in bf16. The weight b lies as [out, in], which transposed is already
the column-major operand that FP8 products want, so no cast here needs a transposed copy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from halfstep.recipes.requirements import load, require_compute_capability, require_gpu

E4M3 = torch.float8_e4m3fn
E4M3_MAX = torch.finfo(E4M3).max
TINY = 1e-12
"""least amax: a matrix of zeros has a scale too"""


@dataclass(frozen=True)
class Gemm:
    """A product in two parts, so that it can be timed with and without its casts."""

    precision: str
    """of the product, for the vendor's stated peak: bf16 or fp8"""
    cast: Callable[[torch.Tensor, torch.Tensor], Any]
    """what `multiply` takes, from a [m, k] and b [n, k] in bf16"""
    multiply: Callable[[Any], torch.Tensor]
    """[m, n] in bf16"""
    to_fp8: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor] | None = None
    """from a and b in e4m3 and a bias [n] in bf16 to [m, n] in e4m3, all scales 1; None where that is not offered"""


def bf16(device: torch.device) -> Gemm:
    """Torch's own product; there is nothing to cast."""
    return Gemm("bf16", lambda a, b: (a, b), lambda operands: operands[0] @ operands[1].t())


def fp8_tensorwise(device: torch.device) -> Gemm:
    return _scaled_mm(device, _tensorwise, fast=False)


def fp8_tensorwise_fast(device: torch.device) -> Gemm:
    """With fast accumulation: partial sums stay in the tensor cores' own, lower precision."""
    return _scaled_mm(device, _tensorwise, fast=True)


def fp8_rowwise(device: torch.device) -> Gemm:
    require_gpu(device, "a row-wise scaled FP8 product")
    return _scaled_mm(device, _rowwise, fast=False)


def fp8_rowwise_fast(device: torch.device) -> Gemm:
    require_gpu(device, "a row-wise scaled FP8 product")
    return _scaled_mm(device, _rowwise, fast=True)


def te(device: torch.device) -> Gemm:
    """Transformer Engine's product with its own cast kernels: current scaling per tensor, fast accumulation.

    That is what its Float8CurrentScaling recipe does in a forward pass. `general_gemm(A, B)` with its layout TN is
    B Aᵀ (Transformer Engine 2.20, transformer_engine/pytorch/cpp_extensions/gemm.py).
    """
    require_gpu(device, "Transformer Engine")
    require_compute_capability(device, (8, 9), "an FP8 matrix product")
    e4m3 = load("transformer_engine.pytorch.constants").TE_DType[E4M3]
    quantize = load("transformer_engine.pytorch").Float8CurrentScalingQuantizer(
        e4m3, device, rowwise=True, columnwise=False
    )
    general_gemm = load("transformer_engine.pytorch.cpp_extensions").general_gemm

    def multiply(operands: Any) -> torch.Tensor:
        a, b = operands
        return general_gemm(b, a, out_dtype=torch.bfloat16, use_split_accumulator=False)[0]

    return Gemm("fp8", lambda a, b: (quantize(a), quantize(b)), multiply)


Scaled = tuple[torch.Tensor, torch.Tensor]
"""values in e4m3, and the factor in fp32 that makes them the original's"""


def _tensorwise(x: torch.Tensor) -> Scaled:
    return _to_e4m3(x, torch.linalg.vector_norm(x, torch.inf, dtype=torch.float32))


def _rowwise(x: torch.Tensor) -> Scaled:
    return _to_e4m3(x, torch.linalg.vector_norm(x, torch.inf, dim=1, keepdim=True, dtype=torch.float32))


def _to_e4m3(x: torch.Tensor, amax: torch.Tensor) -> Scaled:
    """Scale so that the largest value is e4m3's, in fp32. Beyond it torch's cast would give NaN, so rounding is cut."""
    scale = amax.clamp(min=TINY) / E4M3_MAX
    return x.float().div_(scale).clamp_(-E4M3_MAX, E4M3_MAX).to(E4M3), scale


def _scaled_mm(device: torch.device, cast: Callable[[torch.Tensor], Scaled], fast: bool) -> Gemm:
    """`torch._scaled_mm`; `use_fast_accum` means nothing on a CPU."""
    require_compute_capability(device, (8, 9), "an FP8 matrix product")

    def multiply(operands: tuple[Scaled, Scaled]) -> torch.Tensor:
        (a, scale_a), (b, scale_b) = operands
        return torch._scaled_mm(a, b.t(), scale_a, scale_b.t(), out_dtype=torch.bfloat16, use_fast_accum=fast)

    def to_fp8(a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        one = torch.ones((), device=device)
        return torch._scaled_mm(a, b.t(), one, one, bias=bias, out_dtype=E4M3, use_fast_accum=fast)

    return Gemm("fp8", lambda a, b: (cast(a), cast(b)), multiply, to_fp8 if cast is _tensorwise else None)
