"""Calls of the Triton kernels: outputs, grids, block sizes. What they compute is told in operators.py.

Block sizes are fixed, without autotuning, so that a run adds the same numbers in the same order each time.
"""

from __future__ import annotations

import torch

try:
    import triton

    from halfstep.fp8 import kernels
except ImportError as error:  # torch for macOS, or for a CPU alone
    raise ImportError(f"FP8 on a GPU needs Triton, which comes with torch for Linux and CUDA: {error}") from error

Two = tuple[torch.Tensor, torch.Tensor]
Four = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]
Five = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]

BM, BN = 64, 128
"""a tile: 128 to 256 bytes of a row lie together where it is read, 64 of a column where it is written"""
WARPS = 8
GELU_BLOCK = 8192
"""elements of a program of GELU's forward kernel"""
NORM_BLOCK, NORM_WARPS = 4096, 4
"""elements of a program of the norm's forward kernel, in whole rows"""
NORM_ROWS, NORM_STAGES = 32, 3
"""rows of a program of the norm's backward kernel, one after the other, and how many are on their way at once"""
GELU_BACKWARD_REGISTERS = 128
"""a thread's, so that a multiprocessor holds two programs: left alone Triton takes 186, and one fits"""


def cast(parts: list[torch.Tensor], scale: torch.Tensor, amax: torch.Tensor, dtype: torch.dtype, sums: bool) -> Four:
    like = parts[0]
    _need_triton(like)
    rows, columns = like.shape[0], sum(part.shape[1] for part in parts)
    plain = like.new_empty(rows, columns, dtype=dtype)
    transposed = like.new_empty(columns, rows, dtype=dtype)
    inverse = torch.empty_like(scale)
    column_sums = like.new_empty(triton.cdiv(rows, BM) if sums else 0, columns, dtype=torch.float32)
    first = 0
    for part in parts:
        own = slice(first, first + part.shape[1])
        kernels.fp8_cast_kernel[_tiles(*part.shape)](
            part, scale, plain[:, own], transposed[own], inverse, _bits(amax), column_sums[:, own],
            *part.shape, *part.stride(), columns,
            LARGEST=torch.finfo(dtype).max, SUMS=sums, BM=BM, BN=BN, num_warps=WARPS,
        )  # fmt: skip
        first = own.stop
    return plain, transposed, inverse, column_sums.sum(0) if sums else column_sums.view(0)


def transpose(x: torch.Tensor) -> torch.Tensor:
    _need_triton(x)
    x = x.contiguous()
    transposed = x.new_empty(x.shape[1], x.shape[0])
    kernels.fp8_transpose_kernel[_tiles(*x.shape)](
        x.view(torch.uint8), transposed.view(torch.uint8), *x.shape, BM=BM, BN=BN, num_warps=WARPS
    )
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
    kernels.fp8_gelu_kernel[(triton.cdiv(h.numel(), GELU_BLOCK),)](
        h, scale, plain, inverse, _bits(amax), h.numel(),
        LARGEST=torch.finfo(dtype).max, BLOCK=GELU_BLOCK, num_warps=WARPS,
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
    transposed = h.new_empty(columns, rows, dtype=dtype)
    out = h.new_empty(columns, rows, dtype=dtype_out)
    inverse = torch.empty_like(scale)
    sums = h.new_empty(triton.cdiv(rows, BM), columns, dtype=torch.float32)
    kernels.fp8_gelu_backward_kernel[_tiles(rows, columns)](
        grad, h, scale, scale_out, plain, transposed, inverse, _bits(amax), out, sums, rows, columns,
        LARGEST=torch.finfo(dtype).max, LARGEST_OUT=torch.finfo(dtype_out).max, BM=BM, BN=BN,
        num_warps=WARPS, maxnreg=GELU_BACKWARD_REGISTERS,
    )  # fmt: skip
    return plain, transposed, inverse, sums.sum(0), out


def norm_warps(padded_width: int) -> int:
    """Of the norm's backward kernel: 16 elements of a row to a thread."""
    return min(WARPS, max(1, padded_width // 512))


def _need_triton(tensor: torch.Tensor) -> None:
    """Raises: RuntimeError, where Triton cannot run."""
    if not tensor.is_cuda and not triton.knobs.runtime.interpret:
        raise RuntimeError(
            f"Triton's kernels take tensors on an NVIDIA GPU, and this one is on {tensor.device}; on a CPU they run "
            "only in Triton's interpreter: set TRITON_INTERPRET=1"
        )


def _bits(amax: torch.Tensor) -> torch.Tensor:
    return amax.view(torch.int32)


def _tiles(rows: int, columns: int) -> tuple[int, int]:
    # neighbours share rows: so what runs together reads whole rows, and writes long pieces of columns
    return triton.cdiv(columns, BN), triton.cdiv(rows, BM)
