"""A pre-norm Transformer block in FP8 whose activations are cast by what computes them.

    x -> norm1 -> qkv -> attention -> out -> + x -> norm2 -> up -> GELU -> down -> + -> the next block's x

`norm1` and `qkv` are one autograd function, all that follows attention is another. Between the matrix products each
tensor is read once and written once, in FP8 where a product reads it next. Attention itself is torch's, in autocast's
dtype. What each kernel reads and writes: docs/fp8.md.

For backward are kept: the block's two inputs of norms as they are, queries, keys, values and attention's output as
attention keeps them, the products' inputs in FP8, and the input of the GELU, whose output is computed a second time.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from halfstep.fp8 import operators
from halfstep.fp8.linear import Float8Linear, check_input
from halfstep.fp8.products import (
    Cast,
    Scaling,
    cast_e4m3,
    cast_gradient,
    forward_product,
    input_gradient,
    overflowing,
    refuse_second_derivative,
    scale_of,
    weight_gradient,
)
from halfstep.fp8.scaling import E4M3, E5M2


class Parts(NamedTuple):
    """The layers of a block."""

    norm1: nn.LayerNorm
    qkv: Float8Linear
    out: Float8Linear
    norm2: nn.LayerNorm
    up: Float8Linear
    down: Float8Linear


def _normed(
    x: Tensor, added: Tensor | None, norm: tuple[Tensor, Tensor, float], scaling: Scaling
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """See operators.norm."""
    weight, bias, epsilon = norm

    def run(scale: Tensor, amax: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        return operators.norm(x, added, weight, bias, epsilon, scale, amax, E4M3, emulate=scaling.emulate)

    return run(scale_of(run, scaling.scale_x, E4M3, scaling.first_x), scaling.amax_x)


class NormQkv(torch.autograd.Function):
    """x to its norm's queries, keys and values; and x itself, so that its two gradients are added in one kernel."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        norm_weight: Tensor,
        norm_bias: Tensor,
        epsilon: float,
        weight: Tensor,
        bias: Tensor | None,
        dtype: torch.dtype,
        *scaling: Any,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """From x [M, width] to x and three [M, width] in dtype."""
        scales = Scaling(*scaling)
        _, plain, inverse, mean, rstd = _normed(x, None, (norm_weight, norm_bias, epsilon), scales)
        cast_w = cast_e4m3(weight, scales.scale_w, scales.amax_w, scales.first_w, scales.emulate)
        qkv = forward_product(plain, inverse, cast_w, bias, dtype, scales.emulate)
        ctx.save_for_backward(
            x, mean, rstd, norm_weight, plain, inverse, cast_w.columns, cast_w.inverse, scales.scale_g
        )
        ctx.amax_g, ctx.first_g, ctx.emulate = scales.amax_g, scales.first_g, scales.emulate
        ctx.dtypes = norm_bias.dtype, weight.dtype, None if bias is None else bias.dtype
        query, key, value = qkv.chunk(3, dim=1)
        return x.view_as(x), query, key, value

    @staticmethod
    def backward(ctx: Any, residual: Tensor, *grads: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_derivative()
        x, mean, rstd, norm_weight, plain, inverse, w_columns, w_inverse, scale_g = ctx.saved_tensors
        norm_dtype, w_dtype, b_dtype = ctx.dtypes
        emulate = ctx.emulate
        grad, of_bias = cast_gradient(list(grads), scale_g, ctx.amax_g, ctx.first_g, emulate, b_dtype)
        of_normed = input_gradient(grad, w_columns, w_inverse, grads[0].dtype, emulate)
        of_weight = weight_gradient(grad, operators.transpose(plain, emulate=emulate), inverse, w_dtype, emulate)
        of_x, of_norm = operators.norm_backward(x, mean, rstd, norm_weight, of_normed, residual, emulate=emulate)
        return (
            of_x,
            of_norm[0].to(norm_weight.dtype),
            of_norm[1].to(norm_dtype),
            None,
            of_weight,
            of_bias,
            None,
            *(None for _ in Scaling._fields),
        )


class OutMlp(torch.autograd.Function):
    """x and attention's output to the block's output: out, residual, norm, up, GELU, down, residual."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        mixed: Tensor,
        norm_weight: Tensor,
        norm_bias: Tensor,
        epsilon: float,
        out_weight: Tensor,
        out_bias: Tensor | None,
        up_weight: Tensor,
        up_bias: Tensor | None,
        down_weight: Tensor,
        down_bias: Tensor | None,
        *scalings: Any,
    ) -> Tensor:
        """From x [M, width] and mixed [M, width], whose dtype is that of the products, to [M, width] in x's dtype."""
        dtype = mixed.dtype
        fields = len(Scaling._fields)
        out, up, down = (Scaling(*scalings[layer * fields :][:fields]) for layer in range(3))
        emulate = out.emulate

        cast_mixed = cast_e4m3(mixed, out.scale_x, out.amax_x, out.first_x, emulate)
        cast_out = cast_e4m3(out_weight, out.scale_w, out.amax_w, out.first_w, emulate)
        added = forward_product(cast_mixed.rows, cast_mixed.inverse, cast_out, out_bias, dtype, emulate)

        norm = norm_weight, norm_bias, epsilon
        middle, normed, normed_inverse, mean, rstd = _normed(x, added, norm, up)
        cast_up = cast_e4m3(up_weight, up.scale_w, up.amax_w, up.first_w, emulate)
        hidden = forward_product(normed, normed_inverse, cast_up, up_bias, dtype, emulate)

        def gelu(scale: Tensor, amax: Tensor) -> tuple[Tensor, Tensor]:
            return operators.gelu(hidden, scale, amax, E4M3, emulate=emulate)

        gelu_scale = scale_of(gelu, down.scale_x, E4M3, down.first_x)
        activated, activated_inverse = gelu(gelu_scale, down.amax_x)
        cast_down = cast_e4m3(down_weight, down.scale_w, down.amax_w, down.first_w, emulate)
        added = forward_product(activated, activated_inverse, cast_down, down_bias, dtype, emulate)

        ctx.save_for_backward(
            cast_mixed.columns, cast_mixed.inverse, cast_out.columns, cast_out.inverse, out.scale_g,
            middle, mean, rstd, norm_weight, normed, normed_inverse, cast_up.columns, cast_up.inverse, up.scale_g,
            hidden, gelu_scale, activated_inverse, cast_down.columns, cast_down.inverse, down.scale_g,
        )  # fmt: skip
        ctx.amaxes = out.amax_g, up.amax_g, down.amax_g
        ctx.firsts, ctx.emulate = (out.first_g, up.first_g, down.first_g), emulate
        ctx.norm_dtype, ctx.dtype = norm_bias.dtype, dtype
        ctx.w_dtypes = out_weight.dtype, up_weight.dtype, down_weight.dtype
        ctx.b_dtypes = tuple(None if bias is None else bias.dtype for bias in (out_bias, up_bias, down_bias))
        return middle + added

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_derivative()
        (
            mixed, mixed_inverse, out_columns, out_inverse, out_scale_g,
            middle, mean, rstd, norm_weight, normed, normed_inverse, up_columns, up_inverse, up_scale_g,
            hidden, gelu_scale, activated_inverse, down_columns, down_inverse, down_scale_g,
        ) = ctx.saved_tensors  # fmt: skip
        out_amax, up_amax, down_amax = ctx.amaxes
        (out_first, up_first, down_first), emulate = ctx.firsts, ctx.emulate
        out_dtype, up_dtype, down_dtype = ctx.w_dtypes
        out_b_dtype, up_b_dtype, down_b_dtype = ctx.b_dtypes

        of_output, of_down_bias = cast_gradient([grad], down_scale_g, down_amax, down_first, emulate, down_b_dtype)
        of_activated = input_gradient(of_output, down_columns, down_inverse, ctx.dtype, emulate)

        def gelu_backward(scale: Tensor, amax: Tensor) -> tuple[Tensor, ...]:
            return operators.gelu_backward(of_activated, hidden, scale, amax, E5M2, gelu_scale, E4M3, emulate=emulate)

        up_scale_g = scale_of(gelu_backward, up_scale_g, E5M2, up_first)
        rows, columns, inverse, up_sums, activated = gelu_backward(up_scale_g, up_amax)
        of_hidden = Cast(rows, columns, overflowing(inverse, up_amax, ctx.dtype))
        of_up_bias = None if up_b_dtype is None else up_sums.to(up_b_dtype)
        of_down = weight_gradient(of_output, activated, activated_inverse, down_dtype, emulate)
        of_normed = input_gradient(of_hidden, up_columns, up_inverse, ctx.dtype, emulate)
        of_up = weight_gradient(
            of_hidden, operators.transpose(normed, emulate=emulate), normed_inverse, up_dtype, emulate
        )

        of_middle, of_norm = operators.norm_backward(middle, mean, rstd, norm_weight, of_normed, grad, emulate=emulate)
        of_added, of_out_bias = cast_gradient([of_middle], out_scale_g, out_amax, out_first, emulate, out_b_dtype)
        of_mixed = input_gradient(of_added, out_columns, out_inverse, ctx.dtype, emulate)
        of_out = weight_gradient(of_added, mixed, mixed_inverse, out_dtype, emulate)
        return (
            of_middle,
            of_mixed,
            of_norm[0].to(norm_weight.dtype),
            of_norm[1].to(ctx.norm_dtype),
            None,
            of_out,
            of_out_bias,
            of_up,
            of_up_bias,
            of_down,
            of_down_bias,
            *(None for _ in range(3 * len(Scaling._fields))),
        )


def run_block(x: Tensor, parts: Parts, heads: int, causal: bool) -> Tensor:
    """The block's function of x [batch, tokens, width], in x's dtype.

    The products' results have autocast's dtype under autocast, else x's.

    Raises:
        ValueError: x has other sizes, or batch times tokens is 0 or does not divide by 16.
        TypeError: x or a weight is not in fp32, bf16 or fp16.
        RuntimeError: with pre_and_post_forward, the last step was not synchronised; or the device has no FP8.
    """
    norm1, qkv, out, norm2, up, down = parts
    check_input(x, qkv.in_features)
    if x.dim() != 3:
        raise ValueError(f"a block takes [batch, tokens, width]; the sizes of this input are {list(x.shape)}")
    batch, tokens, width = x.shape
    kind = x.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype
    scalings = [linear.begin_forward() for linear in (qkv, out, up, down)]
    flat, *projected = NormQkv.apply(
        x.reshape(-1, width), norm1.weight, norm1.bias, norm1.eps, qkv.weight, qkv.bias, dtype, *scalings[0]
    )
    # [batch, heads, tokens, of a head], without a copy
    query, key, value = (part.view(batch, tokens, heads, -1).transpose(1, 2) for part in projected)
    mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=causal)
    result = OutMlp.apply(
        flat,
        mixed.transpose(1, 2).reshape(-1, width),
        norm2.weight,
        norm2.bias,
        norm2.eps,
        out.weight,
        out.bias,
        up.weight,
        up.bias,
        down.weight,
        down.bias,
        *scalings[1],
        *scalings[2],
        *scalings[3],
    )
    return result.view(batch, tokens, width)
