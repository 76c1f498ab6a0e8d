"""Triton kernels that make FP8 operands in one pass over memory, and those of the norm's and GELU's backward.

Every kernel reads its inputs once and writes its outputs once, with fp32 arithmetic between. A largest magnitude
goes to its slot by an atomic maximum of its bits: the same for any order of the programs, with NaN above infinity as
torch.maximum has it, and without a buffer or a second kernel. Sums over rows (biases, the norm's parameters) are
written once per program and added up by torch, not by atomics: so they are the same in every run.

`launch.py` calls them.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _load_scale(scale, inverse, program):
    """The scale; program 0 writes down its reciprocal."""
    by = tl.load(scale)
    if program == 0:
        tl.store(inverse, tl.div_rn(1.0, by))
    return by


@triton.jit
def _record(slot, values):
    """Raise the largest magnitude in the slot (int32: the bits of an fp32) to that of the values.

    Relaxed, since nobody reads it before the kernel ends: else each program would wait for its writes.
    """
    bits = tl.abs(values).to(tl.int32, bitcast=True)
    tl.atomic_max(slot, tl.max(tl.reshape(bits, [bits.numel])), sem="relaxed")


# Four values to the four bytes of one register. `.to(float8)` leaves pairs of bytes, each in a register of its own.
# Where single bytes are taken from them (for a transposed store) and pairs are joined too (for a plain one), ptxas 12,
# which Triton 3.6 brings for a Hopper GPU, takes the bytes from a register not yet written: Triton's issue 11111.
_FOUR = """{
    .reg .b16 low, high;
    cvt.rn.satfinite.%sx2.f32 low, $2, $1;
    cvt.rn.satfinite.%sx2.f32 high, $4, $3;
    mov.b32 $0, {low, high};
}"""
_FOUR_E4M3 = tl.constexpr(_FOUR.replace("%s", "e4m3"))
_FOUR_E5M2 = tl.constexpr(_FOUR.replace("%s", "e5m2"))
_INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)


@triton.jit
def _held(values, scale, largest: tl.constexpr, dtype: tl.constexpr):
    """FP8 of the scaled values; what lies beyond the format becomes its largest, NaN stays NaN."""
    scaled = values * scale
    if _INTERPRETED:  # which knows no assembly
        held = tl.clamp(scaled, -largest, largest, propagate_nan=tl.PropagateNan.ALL).to(dtype)
    else:
        assembly: tl.constexpr = _FOUR_E4M3 if dtype == tl.float8e4nv else _FOUR_E5M2
        held = tl.inline_asm_elementwise(assembly, "=r,f,f,f,f", [scaled], tl.uint8, True, 4).to(dtype, bitcast=True)
    return held


@triton.jit
def _normal(h):
    """The normal distribution's cumulative probability and its density.

    Abramowitz and Stegun, "Handbook of Mathematical Functions", 26.2.17: the tail is the density times a polynomial,
    with an error below 7.5e-8. That takes fewer than half of the instructions of the exact erf, and a derivative
    needs the density anyway. 1 / d is rsqrt(d)^2, which is one instruction and a product.
    """
    density = tl.exp2(h * h * -0.7213475204444817 - 1.3257480647361595)  # exp(-h^2 / 2) / sqrt(2 pi)
    t = tl.rsqrt(1.0 + 0.2316419 * tl.abs(h))
    t = t * t
    tail = t * (0.319381530 + t * (-0.356563782 + t * (1.781477937 + t * (-1.821255978 + t * 1.330274429)))) * density
    return tl.where(h >= 0, 1.0 - tail, tail), density


@triton.jit
def fp8_cast_kernel(
    x, scale, plain, transposed, inverse, slot, sums, rows, columns, x_row, x_column, plain_row,
    LARGEST: tl.constexpr, SUMS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """A tile of x to FP8 row-major, FP8 column-major and the sums of its columns."""
    tile_n, tile_m = tl.program_id(0), tl.program_id(1)
    by = _load_scale(scale, inverse, tile_n + tile_m)
    first_m, first_n = (tile_m * BM).to(tl.int64), (tile_n * BN).to(tl.int64)
    m, n = tl.arange(0, BM), tl.arange(0, BN)
    inside_n = n < columns - tile_n * BN
    inside = (m[:, None] < rows - tile_m * BM) & inside_n[None, :]
    x += first_m * x_row + first_n * x_column
    values = tl.load(x + m[:, None] * x_row + n[None, :] * x_column, mask=inside, other=0.0).to(tl.float32)
    _record(slot, values)
    if SUMS:
        tl.store(sums + tile_m.to(tl.int64) * plain_row + first_n + n, tl.sum(values, 0), mask=inside_n)
    held = _held(values, by, LARGEST, plain.dtype.element_ty)
    plain += first_m * plain_row + first_n
    transposed += first_n * rows + first_m
    tl.store(plain + m[:, None] * plain_row + n[None, :], held, mask=inside)
    tl.store(transposed + n[:, None] * rows + m[None, :], tl.trans(held), mask=tl.trans(inside))


@triton.jit
def fp8_transpose_kernel(x, transposed, rows, columns, BM: tl.constexpr, BN: tl.constexpr):
    """Bytes [rows, columns] to bytes [columns, rows]."""
    tile_n, tile_m = tl.program_id(0), tl.program_id(1)
    first_m, first_n = (tile_m * BM).to(tl.int64), (tile_n * BN).to(tl.int64)
    m, n = tl.arange(0, BM), tl.arange(0, BN)
    inside = (m[:, None] < rows - tile_m * BM) & (n[None, :] < columns - tile_n * BN)
    tile = tl.load(x + first_m * columns + first_n + m[:, None] * columns + n[None, :], mask=inside, other=0)
    transposed += first_n * rows + first_m
    tl.store(transposed + n[:, None] * rows + m[None, :], tl.trans(tile), mask=tl.trans(inside))


@triton.jit
def _columns(width: tl.constexpr):
    """Of a row: 4 to a thread, for fp32, bf16 and FP8 alike.

    Triton would take 16 bytes of each, and move values between threads from one to the other.
    """
    return tl.max_contiguous(tl.arange(0, width), 4)


@triton.jit
def fp8_layer_norm_kernel(
    x, added, total, weight, bias, scale, plain, inverse, slot, mean, rstd, rows, width, epsilon,
    LARGEST: tl.constexpr, ADD: tl.constexpr, R: tl.constexpr, W: tl.constexpr,
):  # fmt: skip
    """R rows: x (+ added) to its LayerNorm in FP8, row-major, with the means and reciprocal deviations."""
    by = _load_scale(scale, inverse, tl.program_id(0))
    row = tl.program_id(0) * R + tl.arange(0, R)
    column = _columns(W)
    inside_row, inside_column = row < rows, column < width
    inside = inside_row[:, None] & inside_column[None, :]
    at = row.to(tl.int64)[:, None] * width + column[None, :]
    values = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    if ADD:
        # what later passes read is the sum as it was stored
        values = (values + tl.load(added + at, mask=inside, other=0.0).to(tl.float32)).to(total.dtype.element_ty)
        tl.store(total + at, values, mask=inside)
        values = values.to(tl.float32)
    w = tl.load(weight + column, mask=inside_column, other=0.0).to(tl.float32)
    b = tl.load(bias + column, mask=inside_column, other=0.0).to(tl.float32)
    average = tl.sum(values, 1) / width
    centred = tl.where(inside, values - average[:, None], 0.0)
    reciprocal = tl.rsqrt(tl.sum(centred * centred, 1) / width + epsilon)
    out = centred * reciprocal[:, None] * w[None, :] + b[None, :]
    _record(slot, tl.where(inside, out, 0.0))
    tl.store(plain + at, _held(out, by, LARGEST, plain.dtype.element_ty), mask=inside)
    tl.store(mean + row, average, mask=inside_row)
    tl.store(rstd + row, reciprocal, mask=inside_row)


@triton.jit
def layer_norm_backward_kernel(
    x, mean, rstd, weight, grad, residual, grad_x, sums, rows, width, ROWS: tl.constexpr, W: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """The gradient of x added to residual, and this program's share of those of weight and bias."""
    program = tl.program_id(0).to(tl.int64)
    column = _columns(W)
    inside_column = column < width
    w = tl.load(weight + column, mask=inside_column, other=0.0).to(tl.float32)
    of_weight = tl.zeros([W], tl.float32)
    of_bias = tl.zeros([W], tl.float32)
    for step in tl.range(ROWS, num_stages=STAGES):
        row = program * ROWS + step
        inside = inside_column & (row < rows)
        at = row * width + column
        g = tl.load(grad + at, mask=inside, other=0.0).to(tl.float32)
        values = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
        passed = tl.load(residual + at, mask=inside, other=0.0).to(tl.float32)
        average = tl.load(mean + row, mask=row < rows, other=0.0)
        reciprocal = tl.load(rstd + row, mask=row < rows, other=0.0)
        normed = tl.where(inside, (values - average) * reciprocal, 0.0)
        of_weight += g * normed
        of_bias += g
        weighted = g * w
        first, second = tl.sum(weighted, 0) / width, tl.sum(weighted * normed, 0) / width
        out = passed + reciprocal * (weighted - first - normed * second)
        tl.store(grad_x + at, out.to(grad_x.dtype.element_ty), mask=inside)
    tl.store(sums + program * 2 * width + column, of_weight, mask=inside_column)
    tl.store(sums + (program * 2 + 1) * width + column, of_bias, mask=inside_column)


@triton.jit
def fp8_gelu_kernel(h, scale, plain, inverse, slot, size, LARGEST: tl.constexpr, BLOCK: tl.constexpr):
    """GELU of a piece of h to FP8."""
    by = _load_scale(scale, inverse, tl.program_id(0))
    first = tl.program_id(0).to(tl.int64) * BLOCK
    at = tl.arange(0, BLOCK)
    inside = at < size - first
    values = tl.load(h + first + at, mask=inside, other=0.0).to(tl.float32)
    probability, _ = _normal(values)
    out = values * probability
    _record(slot, out)
    tl.store(plain + first + at, _held(out, by, LARGEST, plain.dtype.element_ty), mask=inside)


@triton.jit
def fp8_gelu_backward_kernel(
    grad, h, scale, scale_out, plain, transposed, inverse, slot, out_transposed, sums, rows, columns,
    LARGEST: tl.constexpr, LARGEST_OUT: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """A tile of the gradient of h to FP8 in both layouts, with its columns' sums; GELU of h to FP8, column-major."""
    tile_n, tile_m = tl.program_id(0), tl.program_id(1)
    by, by_out = _load_scale(scale, inverse, tile_n + tile_m), tl.load(scale_out)
    first_m, first_n = (tile_m * BM).to(tl.int64), (tile_n * BN).to(tl.int64)
    m, n = tl.arange(0, BM), tl.arange(0, BN)
    inside_n = n < columns - tile_n * BN
    inside = (m[:, None] < rows - tile_m * BM) & inside_n[None, :]
    first = first_m * columns + first_n
    at = m[:, None] * columns + n[None, :]
    values = tl.load(h + first + at, mask=inside, other=0.0).to(tl.float32)
    g = tl.load(grad + first + at, mask=inside, other=0.0).to(tl.float32)
    probability, density = _normal(values)
    out = _held(values * probability, by_out, LARGEST_OUT, out_transposed.dtype.element_ty)
    g = g * (probability + values * density)
    held = _held(g, by, LARGEST, plain.dtype.element_ty)
    _record(slot, g)
    tl.store(sums + tile_m.to(tl.int64) * columns + first_n + n, tl.sum(g, 0), mask=inside_n)
    tl.store(plain + first + at, held, mask=inside)
    # Both bytes change their layout as one integer: of h alone Triton would move the 16 bits that were loaded, and
    # compute the GELU once more in the other layout.
    pair = held.to(tl.uint8, bitcast=True).to(tl.uint16) | (out.to(tl.uint8, bitcast=True).to(tl.uint16) << 8)
    pair = tl.trans(pair)
    first = first_n * rows + first_m
    at = n[:, None] * rows + m[None, :]
    inside = tl.trans(inside)
    held = (pair & 255).to(tl.uint8).to(transposed.dtype.element_ty, bitcast=True)
    out = (pair >> 8).to(tl.uint8).to(out_transposed.dtype.element_ty, bitcast=True)
    tl.store(transposed + first + at, held, mask=inside)
    tl.store(out_transposed + first + at, out, mask=inside)
