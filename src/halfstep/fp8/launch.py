"""Calls of the Triton kernels: outputs, grids, block sizes. What they compute is told in operators.py.

Block sizes are fixed, without autotuning, so that a run adds the same numbers in the same order each time.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

try:
    import triton
    import triton.language as tl

    from halfstep.fp8 import kernels
except ImportError as error:  # torch for macOS, or for a CPU alone
    raise ImportError(f"FP8 on a GPU needs Triton, which comes with torch for Linux and CUDA: {error}") from error

Two = tuple[torch.Tensor, torch.Tensor]
Four = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]
Five = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]
_TYPES = {torch.float8_e4m3fn: tl.float8e4nv, torch.float8_e5m2: tl.float8e5}


class Tiling(NamedTuple):
    """How the programs of a kernel go through a matrix: each through tiles that lie one below the other."""

    rows: int
    """of a tile, which are the bytes of a transposed column that lie together where it is written"""
    columns: int
    together: int
    """columns of a thread: for all types alike, since what is cast would else move between threads before a store"""
    warps: int
    stages: int
    """tiles of a program that are in work or on their way from memory"""
    registers: int
    """of a thread at most; left alone Triton takes so many that one program fits on a multiprocessor instead of two"""
    programs: int
    """about so many, where a matrix has as many tiles: each then works through several"""


CAST = Tiling(rows=64, columns=64, together=8, warps=4, stages=3, registers=128, programs=2112)
GELU_BACKWARD = Tiling(rows=64, columns=64, together=4, warps=8, stages=3, registers=128, programs=1024)
"""half as much to a thread as in a cast: twice as much does not fit into its registers"""
TRANSPOSE_BM, TRANSPOSE_BN, TRANSPOSE_WARPS = 64, 128, 8
"""a tile of the transpose, one to a program: 128 bytes of a row and 64 of a column lie together"""
GELU_BLOCK, GELU_TOGETHER, GELU_WARPS = 4096, 8, 4
"""elements of a block of GELU's forward kernel, and of those to a thread at once"""
GELU_STAGES, GELU_PROGRAMS = 3, 4224
"""blocks of a program in work or on their way, and how many programs there are at most"""
NORM_BLOCK, NORM_WARPS = 4096, 4
"""elements of a program of the norm's forward kernel, in whole rows"""
NORM_ROWS, NORM_STAGES = 32, 3
"""rows of a program of the norm's backward kernel, one after the other, and how many are on their way at once"""
NORM_BACKWARD_WARPS = 8
"""at most"""


def cast(parts: list[torch.Tensor], scale: torch.Tensor, amax: torch.Tensor, dtype: torch.dtype, sums: bool) -> Four:
    like = parts[0]
    _need_triton(like)
    rows, columns = like.shape[0], sum(part.shape[1] for part in parts)
    plain = like.new_empty(rows, columns, dtype=dtype)
    transposed = _column_major(plain, dtype)
    inverse = torch.empty_like(scale)
    per_strip, options = _programs(CAST, rows, max(part.shape[1] for part in parts))
    column_sums = like.new_empty(per_strip if sums else 0, columns, dtype=torch.float32)
    first = 0
    for part in parts:
        own = slice(first, first + part.shape[1])
        kernels.fp8_cast_kernel[(triton.cdiv(part.shape[1], CAST.columns), per_strip)](
            part, scale, plain[:, own], _fours(transposed[own]), inverse, _bits(amax), column_sums[:, own],
            *part.shape, *part.stride(), columns, transposed.shape[1],
            LARGEST=torch.finfo(dtype).max, SUMS=sums, **options,
        )  # fmt: skip
        first = own.stop
    return plain, transposed[:, :rows].contiguous(), inverse, column_sums.sum(0) if sums else column_sums.view(0)


def transpose(x: torch.Tensor) -> torch.Tensor:
    _need_triton(x)
    x = x.contiguous()
    transposed = x.new_empty(x.shape[1], x.shape[0])
    # neighbours share rows, as in the other kernels: what runs together reads whole rows
    grid = triton.cdiv(x.shape[1], TRANSPOSE_BN), triton.cdiv(x.shape[0], TRANSPOSE_BM)
    kernels.fp8_transpose_kernel[grid](
        x.view(torch.uint8), transposed.view(torch.uint8), *x.shape,
        BM=TRANSPOSE_BM, BN=TRANSPOSE_BN, num_warps=TRANSPOSE_WARPS,
    )  # fmt: skip
    return transposed


def norm(
    x: torch.Tensor,
    added: torch.Tensor | None,
    weight: torch.Tensor,
    bias: torch.Tensor,
    epsilon: float,
    scale: torch.Tensor,
    amax: torch.Tensor,
    dtype: torch.dtype,
) -> Five:
    _need_triton(x)
    x = x.contiguous()
    rows, width = x.shape
    plain = torch.empty_like(x, dtype=dtype)
    mean, rstd = (x.new_empty(rows, dtype=torch.float32) for _ in range(2))
    inverse = torch.empty_like(scale)
    total = x.new_empty(0) if added is None else torch.empty_like(x)
    padded = triton.next_power_of_2(width)
    at_once = max(1, NORM_BLOCK // padded)
    kernels.fp8_layer_norm_kernel[(triton.cdiv(rows, at_once),)](
        x, x if added is None else added.contiguous(), total, weight, bias, scale, plain, inverse, _bits(amax),
        mean, rstd, rows, width, epsilon,
        LARGEST=torch.finfo(dtype).max, ADD=added is not None, R=at_once, W=padded, num_warps=NORM_WARPS,
    )  # fmt: skip
    return total, plain, inverse, mean, rstd


def norm_backward(
    x: torch.Tensor,
    mean: torch.Tensor,
    rstd: torch.Tensor,
    weight: torch.Tensor,
    grad: torch.Tensor,
    residual: torch.Tensor,
) -> Two:
    _need_triton(x)
    x, grad, residual = x.contiguous(), grad.contiguous(), residual.contiguous()
    rows, width = x.shape
    grad_x = torch.empty_like(x)
    programs = triton.cdiv(rows, NORM_ROWS)
    sums = x.new_empty(programs, 2, width, dtype=torch.float32)
    padded = triton.next_power_of_2(width)
    kernels.layer_norm_backward_kernel[(programs,)](
        x, mean, rstd, weight, grad, residual, grad_x, sums, rows, width,
        ROWS=NORM_ROWS, W=padded, STAGES=NORM_STAGES, num_warps=norm_warps(padded),
    )  # fmt: skip
    return grad_x, sums.sum(0)


def gelu(h: torch.Tensor, scale: torch.Tensor, amax: torch.Tensor, dtype: torch.dtype) -> Two:
    _need_triton(h)
    h = h.contiguous()
    plain = torch.empty_like(h, dtype=dtype)
    inverse = torch.empty_like(scale)
    blocks = triton.cdiv(h.numel(), GELU_BLOCK)
    each = triton.cdiv(blocks, GELU_PROGRAMS)
    kernels.fp8_gelu_kernel[(triton.cdiv(blocks, each),)](
        h, scale, plain, inverse, _bits(amax), h.numel(), each,
        LARGEST=torch.finfo(dtype).max, BLOCK=GELU_BLOCK, TOGETHER=GELU_TOGETHER, STAGES=GELU_STAGES,
        num_warps=GELU_WARPS,
    )  # fmt: skip
    return plain, inverse


def gelu_backward(
    grad: torch.Tensor,
    h: torch.Tensor,
    scale: torch.Tensor,
    amax: torch.Tensor,
    dtype: torch.dtype,
    scale_out: torch.Tensor,
    dtype_out: torch.dtype,
) -> Five:
    _need_triton(h)
    h, grad = h.contiguous(), grad.contiguous()
    rows, columns = h.shape
    plain = torch.empty_like(h, dtype=dtype)
    transposed, out = _column_major(h, dtype), _column_major(h, dtype_out)
    inverse = torch.empty_like(scale)
    per_strip, options = _programs(GELU_BACKWARD, rows, columns)
    sums = h.new_empty(per_strip, columns, dtype=torch.float32)
    kernels.fp8_gelu_backward_kernel[(triton.cdiv(columns, GELU_BACKWARD.columns), per_strip)](
        grad, h, scale, scale_out, plain, _fours(transposed), inverse, _bits(amax), _fours(out), sums,
        rows, columns, transposed.shape[1],
        LARGEST=torch.finfo(dtype).max, LARGEST_OUT=torch.finfo(dtype_out).max, DTYPE_OUT=_TYPES[dtype_out], **options,
    )  # fmt: skip
    return plain, transposed[:, :rows].contiguous(), inverse, sums.sum(0), out[:, :rows].contiguous()


def norm_warps(padded_width: int) -> int:
    """Of the norm's backward kernel: 16 elements of a row to a thread."""
    return min(NORM_BACKWARD_WARPS, max(1, padded_width // 512))


def _need_triton(tensor: torch.Tensor) -> None:
    """Raises: RuntimeError, where Triton cannot run."""
    if not tensor.is_cuda and not triton.knobs.runtime.interpret:
        raise RuntimeError(
            f"Triton's kernels take tensors on an NVIDIA GPU, and this one is on {tensor.device}; on a CPU they run "
            "only in Triton's interpreter: set TRITON_INTERPRET=1"
        )


def _bits(amax: torch.Tensor) -> torch.Tensor:
    return amax.view(torch.int32)


def _programs(tiling: Tiling, rows: int, columns: int) -> tuple[int, dict[str, int]]:
    """How many for a strip of columns, and the options of each."""
    strips, tiles = triton.cdiv(columns, tiling.columns), triton.cdiv(rows, tiling.rows)
    each = triton.cdiv(strips * tiles, tiling.programs)
    return triton.cdiv(tiles, each), {
        "tiles": each,
        "BM": tiling.rows,
        "BN": tiling.columns,
        "TOGETHER": tiling.together,
        "STAGES": tiling.stages,
        "num_warps": tiling.warps,
        "maxnreg": tiling.registers,
    }


def _column_major(matrix: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """For the transposed matrix, with room for whole fours of each column."""
    rows, columns = matrix.shape
    return matrix.new_empty(columns, triton.cdiv(rows, 4) * 4, dtype=dtype)


def _fours(transposed: torch.Tensor) -> torch.Tensor:
    return transposed.view(torch.int32)
