"""FP8 matrix products of a linear layer, and how their operands are cast.

The hardware multiplies a row-major matrix by a column-major one and nothing else. So of x [M, K], weight [N, K] and
the gradient [M, N] each is wanted in both layouts: forward multiplies x by the weight, backward the gradient by the
transposed weight, and the transposed gradient by the transposed x.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from halfstep.fp8 import operators
from halfstep.fp8.scaling import E4M3, E5M2, largest_magnitude, new_scale

CPU = "cpu"
"""the one device type for which torch has an FP8 product in software"""


class Scaling(NamedTuple):
    """By what a linear layer's three tensors are cast, and where their largest magnitudes go: each fp32 [1].

    In its first step a tensor is cast by its own scale. With `emulate` plain torch computes the same on any device.
    """

    scale_x: Tensor
    scale_w: Tensor
    scale_g: Tensor
    amax_x: Tensor
    amax_w: Tensor
    amax_g: Tensor
    first_x: bool
    first_w: bool
    first_g: bool
    emulate: bool


class Cast(NamedTuple):
    """A matrix in FP8, its transpose, and what decodes them, fp32 [1]."""

    rows: Tensor
    columns: Tensor
    inverse: Tensor


def cast_e4m3(matrix: Tensor, scale: Tensor, amax: Tensor, first_step: bool, emulate: bool) -> Cast:
    """An input or a weight. With first_step by its own scale, or the given one if it has none: zeros, not finite."""
    return _cast([matrix], scale, amax, E4M3, False, first_step, emulate)[0]


def cast_gradient(
    parts: list[Tensor], scale: Tensor, amax: Tensor, first_step: bool, emulate: bool, bias: torch.dtype | None
) -> tuple[Cast, Tensor | None]:
    """The output's gradient, of parts side by side, likewise; and the bias's in its dtype, if it has one."""
    cast, sums = _cast(parts, scale, amax, E5M2, bias is not None, first_step, emulate)
    inverse = overflowing(cast.inverse, amax, parts[0].dtype)
    return Cast(cast.rows, cast.columns, inverse), None if bias is None else sums.to(bias)


def overflowing(inverse: Tensor, amax: Tensor, dtype: torch.dtype) -> Tensor:
    """What decodes a gradient that came in `dtype`: not finite if the gradient was not.

    A cast clips an infinity to the format's largest value. In fp16 GradScaler has to see it: it overflows by design,
    and the step is then skipped.
    """
    return torch.where(amax.isfinite(), inverse, torch.nan) if dtype == torch.float16 else inverse


def refuse_second_derivative() -> None:
    """Call it in a backward pass, which has gradients on only with create_graph=True.

    Raises:
        RuntimeError: it is to be differentiated; its result would be taken for a constant.
    """
    if torch.is_grad_enabled() and not torch.compiler.is_compiling():
        raise RuntimeError(
            "FP8 matrix products have no second derivative: use no create_graph=True through them, as a gradient "
            "penalty or a Hessian would, or leave these layers out of the conversion"
        )


def _cast(
    parts: list[Tensor], scale: Tensor, amax: Tensor, dtype: torch.dtype, sums: bool, first_step: bool, emulate: bool
) -> tuple[Cast, Tensor]:
    if first_step:
        own = torch.cat([largest_magnitude(part) for part in parts]).amax(dim=0, keepdim=True)
        scale = new_scale(own, torch.finfo(dtype).max, scale)
    rows, columns, inverse, column_sums = operators.cast(parts, scale, amax, dtype, sums, emulate=emulate)
    return Cast(rows, columns, inverse), column_sums


def scale_of(cast: Callable[[Tensor, Tensor], object], scale: Tensor, dtype: torch.dtype, first_step: bool) -> Tensor:
    """The scale for an operator that makes what it casts: in the first step from a run of it, `cast(scale, amax)`."""
    if not first_step:
        return scale
    amax = torch.zeros_like(scale)
    cast(scale, amax)
    return new_scale(amax, torch.finfo(dtype).max, scale)


def scaled_product(
    a: Tensor,
    b: Tensor,
    inverse_a: Tensor,
    inverse_b: Tensor,
    dtype: torch.dtype,
    *,
    bias: Tensor | None = None,
    fast_accumulation: bool = False,
    emulate: bool = False,
) -> Tensor:
    """(a * inverse_a) @ (b * inverse_b).T + bias, [M, N] in dtype.

    Args:
        a: FP8 [M, K], row-major.
        b: FP8 [N, K], row-major.
        inverse_a: what decodes a, fp32 [1].
        inverse_b: what decodes b, fp32 [1].
        dtype: bf16, fp16 or fp32.
        bias: [N].
        fast_accumulation: sum in the tensor cores' own accumulator, which keeps fewer bits than fp32.
        emulate: in fp32 where torch has no such product but that of the hardware.
    """
    fused = bias if dtype != torch.float32 else None  # with fp32 torch takes none on CUDA
    # torch's implementation for the CPU multiplies the decoded matrices, which autocast would round to bf16
    with torch.autocast(a.device.type, enabled=False):
        if emulate and a.device.type != CPU:
            # decoded after the product: FP8 values themselves are exact in any type that fp32 products may round to
            decoded = a.float() @ b.float().t() * inverse_a * inverse_b
            return (decoded if bias is None else decoded + bias.to(dtype)).to(dtype)
        out = torch._scaled_mm(
            a,
            b.t(),
            scale_a=inverse_a,
            scale_b=inverse_b,
            bias=None if fused is None else fused.to(dtype),
            out_dtype=dtype,
            use_fast_accum=fast_accumulation,
        )
    return out + bias if bias is not None and fused is None else out


def forward_product(
    x: Tensor, inverse_x: Tensor, weight: Cast, bias: Tensor | None, dtype: torch.dtype, emulate: bool
) -> Tensor:
    """[M, K] and [N, K] to x @ weight.T + bias, [M, N].

    Transformer Engine, like float8_experimental, sums the forward product in the tensor cores' fast accumulator and
    those of backward in fp32 (_2X_ACC_FPROP = False, _2X_ACC_DGRAD = _2X_ACC_WGRAD = True in its
    pytorch/module/base.py).
    """
    return scaled_product(
        x, weight.rows, inverse_x, weight.inverse, dtype, bias=bias, fast_accumulation=True, emulate=emulate
    )


def input_gradient(grad: Cast, weight_columns: Tensor, inverse_w: Tensor, dtype: torch.dtype, emulate: bool) -> Tensor:
    """[M, N] and [K, N] to grad @ weight, [M, K]."""
    return scaled_product(grad.rows, weight_columns, grad.inverse, inverse_w, dtype, emulate=emulate)


def weight_gradient(grad: Cast, x_columns: Tensor, inverse_x: Tensor, dtype: torch.dtype, emulate: bool) -> Tensor:
    """[N, M] and [K, M] to grad.T @ x, [N, K]: straight into the weight's dtype, not rounded to bf16 on its way."""
    return scaled_product(grad.columns, x_columns, grad.inverse, inverse_x, dtype, emulate=emulate)
