"""What makes FP8 operands, as torch operators: Triton kernels, or with `emulate` plain torch, on any device.

The latter is the definition that the kernels are tested against, and what smoke runs and tests use. Without `emulate`
a device that has no FP8 is refused. For torch.compile each is one operation (`torch.library.custom_op`). All take
matrices and return new contiguous ones.
`amax`, fp32 [1], is raised to the largest magnitude that was cast, before its scale, NaN above all. `inverse`,
fp32 [1], is 1 / scale, by which a matrix product decodes a cast.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from halfstep.fp8.device import need_fp8
from halfstep.fp8.scaling import largest_magnitude, saturating_cast

NAMESPACE = "halfstep_fp8"


def _raise(amax: Tensor, values: Tensor) -> None:
    amax.copy_(torch.maximum(amax, largest_magnitude(values)))


def _transposed(matrix: Tensor) -> Tensor:
    # a copy even of a single row, since an operator's result must not be what it was given
    return matrix.t().clone(memory_format=torch.contiguous_format)


@torch.library.custom_op(f"{NAMESPACE}::cast", mutates_args={"amax"}, device_types="cpu")
def cast(
    parts: list[Tensor], scale: Tensor, amax: Tensor, dtype: torch.dtype, sums: bool, *, emulate: bool = False
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Matrices [M, K1], [M, K2]… side by side, in one dtype and of any strides, to one cast.

    Returns:
        [M, K], its transpose [K, M], inverse, and with `sums` the sums of the columns before the cast, fp32 [K].
    """
    need_fp8(scale.device, emulate)
    x = torch.cat(parts, dim=1)
    _raise(amax, x)
    plain = saturating_cast(x, scale, dtype)
    column_sums = x.sum(0, dtype=torch.float32) if sums else scale.new_empty(0)
    return plain, _transposed(plain), scale.reciprocal(), column_sums


@torch.library.custom_op(f"{NAMESPACE}::transpose", mutates_args=(), device_types="cpu")
def transpose(x: Tensor, *, emulate: bool = False) -> Tensor:
    """FP8 [M, K] to [K, M]."""
    need_fp8(x.device, emulate)
    return _transposed(x)


@torch.library.custom_op(f"{NAMESPACE}::norm", mutates_args={"amax"}, device_types="cpu")
def norm(
    x: Tensor,
    added: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    epsilon: float,
    scale: Tensor,
    amax: Tensor,
    dtype: torch.dtype,
    *,
    emulate: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """LayerNorm of the rows of x + added, computed in fp32, to a cast.

    Returns:
        x + added in x's dtype (empty without `added`), the cast [M, K], inverse, and for backward the rows' means and
        the reciprocals of their deviations, fp32 [M].
    """
    need_fp8(x.device, emulate)
    total = x.new_empty(0) if added is None else x + added
    out, mean, rstd = torch.native_layer_norm(
        (x if added is None else total).float(), weight.shape, weight.float(), bias.float(), epsilon
    )
    _raise(amax, out)
    return total, saturating_cast(out, scale, dtype), scale.reciprocal(), mean.flatten(), rstd.flatten()


@torch.library.custom_op(f"{NAMESPACE}::norm_backward", mutates_args=(), device_types="cpu")
def norm_backward(
    x: Tensor, mean: Tensor, rstd: Tensor, weight: Tensor, grad: Tensor, residual: Tensor, *, emulate: bool = False
) -> tuple[Tensor, Tensor]:
    """From the gradient of a LayerNorm's output, [M, K], those of its input and parameters.

    Returns:
        residual + the input's gradient, in x's dtype; the weight's and the bias's, fp32 [2, K].
    """
    need_fp8(x.device, emulate)
    of_x, of_weight, of_bias = torch.ops.aten.native_layer_norm_backward(
        grad.float(),
        x.float(),
        weight.shape,
        mean.unsqueeze(1),
        rstd.unsqueeze(1),
        weight.float(),
        torch.zeros_like(weight, dtype=torch.float32),
        [True, True, True],
    )
    return (residual.float() + of_x).to(x.dtype), torch.stack([of_weight, of_bias])


@torch.library.custom_op(f"{NAMESPACE}::gelu", mutates_args={"amax"}, device_types="cpu")
def gelu(h: Tensor, scale: Tensor, amax: Tensor, dtype: torch.dtype, *, emulate: bool = False) -> tuple[Tensor, Tensor]:
    """GELU, not its tanh approximation, computed in fp32, to a cast [M, K]; and inverse."""
    need_fp8(h.device, emulate)
    out = h.float() * torch.special.ndtr(h.float())
    _raise(amax, out)
    return saturating_cast(out, scale, dtype), scale.reciprocal()


@torch.library.custom_op(f"{NAMESPACE}::gelu_backward", mutates_args={"amax"}, device_types="cpu")
def gelu_backward(
    grad: Tensor,
    h: Tensor,
    scale: Tensor,
    amax: Tensor,
    dtype: torch.dtype,
    scale_out: Tensor,
    dtype_out: torch.dtype,
    *,
    emulate: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """From the gradient of GELU's output that of its input h, as a cast by scale; and GELU's output once more.

    Returns:
        the gradient [M, K], its transpose [K, M], inverse, the sums of its columns before the cast, fp32 [K], and the
        transpose [K, M] of the output as a cast by scale_out, which was that of the forward pass.
    """
    need_fp8(h.device, emulate)
    h = h.float()
    normal, density = torch.special.ndtr(h), torch.exp(-h * h / 2) / math.sqrt(2 * math.pi)
    of_h = grad.float() * (normal + h * density)
    _raise(amax, of_h)
    plain = saturating_cast(of_h, scale, dtype)
    out = saturating_cast(h * normal, scale_out, dtype_out)
    return plain, _transposed(plain), scale.reciprocal(), of_h.sum(0), _transposed(out)


@cast.register_fake
def _(
    parts: list[Tensor], scale: Tensor, amax: Tensor, dtype: torch.dtype, sums: bool, *, emulate: bool = False
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    rows, columns = parts[0].shape[0], sum(part.shape[1] for part in parts)
    return (
        parts[0].new_empty(rows, columns, dtype=dtype),
        parts[0].new_empty(columns, rows, dtype=dtype),
        torch.empty_like(scale),
        scale.new_empty(columns if sums else 0),
    )


@transpose.register_fake
def _(x: Tensor, *, emulate: bool = False) -> Tensor:
    return x.new_empty(x.shape[1], x.shape[0])


@norm.register_fake
def _(
    x: Tensor,
    added: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    epsilon: float,
    scale: Tensor,
    amax: Tensor,
    dtype: torch.dtype,
    *,
    emulate: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    rows = x.shape[0]
    total, plain = x.new_empty(0 if added is None else x.shape), x.new_empty(x.shape, dtype=dtype)
    return total, plain, torch.empty_like(scale), scale.new_empty(rows), scale.new_empty(rows)


@norm_backward.register_fake
def _(
    x: Tensor, mean: Tensor, rstd: Tensor, weight: Tensor, grad: Tensor, residual: Tensor, *, emulate: bool = False
) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), mean.new_empty(2, *weight.shape)


@gelu.register_fake
def _(h: Tensor, scale: Tensor, amax: Tensor, dtype: torch.dtype, *, emulate: bool = False) -> tuple[Tensor, Tensor]:
    return h.new_empty(h.shape, dtype=dtype), torch.empty_like(scale)


@gelu_backward.register_fake
def _(
    grad: Tensor,
    h: Tensor,
    scale: Tensor,
    amax: Tensor,
    dtype: torch.dtype,
    scale_out: Tensor,
    dtype_out: torch.dtype,
    *,
    emulate: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    rows, columns = h.shape
    return (
        h.new_empty(rows, columns, dtype=dtype),
        h.new_empty(columns, rows, dtype=dtype),
        torch.empty_like(scale),
        scale.new_empty(columns),
        h.new_empty(columns, rows, dtype=dtype_out),
    )


def _on_cuda(name: str, definition: Callable[..., Any]) -> Callable[..., Any]:
    def call(*arguments: Any, emulate: bool = False) -> Any:
        if emulate:
            return definition(*arguments, emulate=True)
        first = arguments[0][0] if isinstance(arguments[0], list) else arguments[0]
        need_fp8(first.device, emulate)
        from halfstep.fp8 import launch  # imports Triton, which not every machine has

        # unlike torch's own operators, Triton launches on the current device, wherever the tensors are
        with torch.cuda.device(first.device):
            return getattr(launch, name)(*arguments)

    return call


for _operator in (cast, transpose, norm, norm_backward, gelu, gelu_backward):
    _operator.register_kernel("cuda")(_on_cuda(_operator._name, _operator._init_fn))
