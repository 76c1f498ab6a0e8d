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
def _magnitude(values):
    """The bits of |values|, fp32, as integers: in the same order, with NaN above infinity."""
    return tl.abs(values).to(tl.int32, bitcast=True)


@triton.jit
def _record(slot, magnitudes):
    """Raise the largest magnitude in the slot to that of all these.

    Relaxed, since nobody reads it before the kernel ends: else each program would wait for its writes.
    """
    tl.atomic_max(slot, tl.max(tl.reshape(magnitudes, [magnitudes.numel])), sem="relaxed")


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
def _by_quarters(BM: tl.constexpr):
    """The order in which a tile has its rows: 0, 4, 8… 1, 5, 9… 2, 6… 3, 7….

    A thread has the same row of each quarter of a tile: so four rows that lie beside each other.
    """
    at = tl.arange(0, BM)
    return at % (BM // 4) * 4 + at // (BM // 4)


@triton.jit
def _quarters(tile):
    return tl.reshape(tile, [4, tile.shape[0] // 4, tile.shape[1]])


@triton.jit
def _fours(held):
    """FP8 [BM, BN], rows by quarters, to int32 [BN, BM / 4]: four bytes of a column, joined before they leave a thread.

    Triton changes layouts as early as it can, and would do so before the cast, with two or four bytes a value, to cast
    in both layouts. A sum, of bytes that do not overlap, is what it does not go beyond.
    """
    bytes = _quarters(held.to(tl.uint8, bitcast=True)).to(tl.uint32)
    return tl.trans(tl.sum(bytes << (tl.arange(0, 4) * 8)[:, None, None], 0)).to(tl.int32, bitcast=True)


@triton.jit
def _raised(largest, values):
    """Largest magnitudes [BM / 4, BN / 4], raised to those of the values [BM, BN] within each thread."""
    of_rows = tl.max(_quarters(_magnitude(values)), 0)
    return tl.maximum(largest, tl.max(tl.reshape(of_rows, [largest.shape[0], largest.shape[1], 4]), 2))


@triton.jit(do_not_specialize=["tiles"])
def fp8_cast_kernel(
    x, scale, plain, transposed, inverse, slot, sums, rows, columns, x_row, x_column, plain_row, transposed_row, tiles,
    LARGEST: tl.constexpr, SUMS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, TOGETHER: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """Tiles of x, one below the other, to FP8 row-major and, in fours, column-major, and to the sums of columns."""
    strip, program = tl.program_id(0), tl.program_id(1)
    by = _load_scale(scale, inverse, strip + program)
    first_n = (strip * BN).to(tl.int64)
    m, four = _by_quarters(BM), tl.arange(0, BM // 4)
    n = tl.max_contiguous(tl.arange(0, BN), TOGETHER)
    inside_n = n < columns - strip * BN
    fours = transposed_row // 4
    x += first_n * x_column
    plain += first_n
    transposed += first_n * fours
    largest = tl.zeros([BM // 4, BN // 4], tl.int32)
    total = tl.zeros([BM // 4, BN], tl.float32)
    for step in tl.range(tiles, num_stages=STAGES):
        tile = program * tiles + step
        first_m = (tile * BM).to(tl.int64)
        inside = (m < rows - tile * BM)[:, None] & inside_n[None, :]
        values = tl.load(x + first_m * x_row + m[:, None] * x_row + n[None, :] * x_column, mask=inside, other=0.0)
        values = values.to(tl.float32)
        largest = _raised(largest, values)
        if SUMS:
            total += tl.sum(_quarters(values), 0)
        held = _held(values, by, LARGEST, plain.dtype.element_ty)
        tl.store(plain + first_m * plain_row + m[:, None] * plain_row + n[None, :], held, mask=inside)
        inside = inside_n[:, None] & (four < fours - tile * (BM // 4))[None, :]
        tl.store(transposed + tile * (BM // 4) + n[:, None] * fours + four[None, :], _fours(held), mask=inside)
    _record(slot, largest)
    if SUMS:
        tl.store(sums + program.to(tl.int64) * plain_row + first_n + n, tl.sum(total, 0), mask=inside_n)


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
    _record(slot, _magnitude(tl.where(inside, out, 0.0)))
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
def _reciprocal(values):
    """In one instruction, with an error of one unit in the last place; a division of Triton's takes several."""
    if _INTERPRETED:
        result = 1.0 / values
    else:
        result = tl.inline_asm_elementwise("rcp.approx.ftz.f32 $0, $1;", "=f,f", [values], tl.float32, True, 1)
    return result


@triton.jit
def _normal(h):
    """The normal distribution's probability of what lies between 0 and |h|, and its density.

    Abramowitz and Stegun, "Handbook of Mathematical Functions", 26.2.17: the tail is the density times a polynomial,
    with an error below 7.5e-8. That takes fewer than half of the instructions of the exact erf, and a derivative
    needs the density anyway.
    """
    density = tl.exp2(h * h * -0.7213475204444817 - 1.3257480647361595)  # exp(-h^2 / 2) / sqrt(2 pi)
    t = _reciprocal(1.0 + 0.2316419 * tl.abs(h))
    tail = t * (0.319381530 + t * (-0.356563782 + t * (1.781477937 + t * (-1.821255978 + t * 1.330274429))))
    return 0.5 - tail * density, density


@triton.jit
def _gelu(h, between):
    """H times its cumulative probability, which is 1/2 + between, or for a negative h 1/2 - between."""
    return 0.5 * h + tl.abs(h) * between


@triton.jit(do_not_specialize=["blocks"])
def fp8_gelu_kernel(
    h, scale, plain, inverse, slot, size, blocks, LARGEST: tl.constexpr, BLOCK: tl.constexpr, TOGETHER: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """GELU of blocks of h, one after the other, to FP8."""
    program = tl.program_id(0)
    by = _load_scale(scale, inverse, program)
    at = tl.max_contiguous(tl.arange(0, BLOCK), TOGETHER)
    largest = tl.zeros([BLOCK // TOGETHER], tl.int32)
    for step in tl.range(blocks, num_stages=STAGES):
        first = (program * blocks + step).to(tl.int64) * BLOCK
        inside = at < size - first
        values = tl.load(h + first + at, mask=inside, other=0.0).to(tl.float32)
        between, _ = _normal(values)
        out = _gelu(values, between)
        largest = tl.maximum(largest, tl.max(tl.reshape(_magnitude(out), [BLOCK // TOGETHER, TOGETHER]), 1))
        tl.store(plain + first + at, _held(out, by, LARGEST, plain.dtype.element_ty), mask=inside)
    _record(slot, largest)


@triton.jit(do_not_specialize=["tiles"])
def fp8_gelu_backward_kernel(
    grad, h, scale, scale_out, plain, transposed, inverse, slot, out_transposed, sums, rows, columns, transposed_row,
    tiles, LARGEST: tl.constexpr, LARGEST_OUT: tl.constexpr, DTYPE_OUT: tl.constexpr, BM: tl.constexpr,
    BN: tl.constexpr, TOGETHER: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """As a cast of the gradient of h, with its sums; and GELU of h to FP8, column-major, in fours."""
    strip, program = tl.program_id(0), tl.program_id(1)
    by, by_out = _load_scale(scale, inverse, strip + program), tl.load(scale_out)
    first_n = (strip * BN).to(tl.int64)
    m, four = _by_quarters(BM), tl.arange(0, BM // 4)
    n = tl.max_contiguous(tl.arange(0, BN), TOGETHER)
    inside_n = n < columns - strip * BN
    fours = transposed_row // 4
    largest = tl.zeros([BM // 4, BN // 4], tl.int32)
    total = tl.zeros([BM // 4, BN], tl.float32)
    for step in tl.range(tiles, num_stages=STAGES):
        tile = program * tiles + step
        first = (tile * BM).to(tl.int64) * columns + first_n
        at = m[:, None] * columns + n[None, :]
        inside = (m < rows - tile * BM)[:, None] & inside_n[None, :]
        values = tl.load(h + first + at, mask=inside, other=0.0).to(tl.float32)
        g = tl.load(grad + first + at, mask=inside, other=0.0).to(tl.float32)
        between, density = _normal(values)
        g *= 0.5 + tl.where(values >= 0, between, -between) + values * density
        largest = _raised(largest, g)
        total += tl.sum(_quarters(g), 0)
        held = _held(g, by, LARGEST, plain.dtype.element_ty)
        tl.store(plain + first + at, held, mask=inside)
        first = first_n * fours + tile * (BM // 4)
        at = n[:, None] * fours + four[None, :]
        inside = inside_n[:, None] & (four < fours - tile * (BM // 4))[None, :]
        tl.store(transposed + first + at, _fours(held), mask=inside)
        out = _held(_gelu(values, between), by_out, LARGEST_OUT, DTYPE_OUT)
        tl.store(out_transposed + first + at, _fours(out), mask=inside)
    _record(slot, largest)
    tl.store(sums + program.to(tl.int64) * columns + first_n + n, tl.sum(total, 0), mask=inside_n)
