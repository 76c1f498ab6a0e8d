"""Time of each FP8 kernel and product in a step of ViT-Huge beside its floor: `python tests/gpu/fp8_floors.py`.

The floor of a kernel is the bytes that it has to read and write over the bandwidth of a large copy, measured first;
that of a product its operations over the stated dense FP8 peak of an H100 or H200. Medians of triton's do_bench.
A batch as the first argument, 128 by default; all tensors but those of batches below 32 are larger than the L2 cache.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import NamedTuple

import torch

from halfstep.fp8 import operators
from halfstep.fp8.products import scaled_product
from halfstep.fp8.scaling import E4M3, E5M2

TOKENS, WIDTH, HIDDEN, BLOCKS = 256, 1280, 5120, 32
PEAK_TFLOPS = 1979  # halfstep.system.peaks
BF16, FP32 = torch.bfloat16, torch.float32


class Case(NamedTuple):
    name: str
    per_block: int
    call: Callable[[], object]
    bytes: float = 0
    flops: float = 0


def cases(
    batch: int, device: str, width: int = WIDTH, hidden: int = HIDDEN, amax: torch.Tensor | None = None
) -> list[Case]:
    """Every launch of a block's forward and backward pass that touches an activation, and the casts of the weights.

    `amax`, fp32 [1], is raised by all of them.
    """
    rows = batch * TOKENS
    torch.manual_seed(0)

    def make(*shape: int, dtype: torch.dtype = BF16) -> torch.Tensor:
        return torch.randn(*shape, device=device).to(dtype)

    scale = torch.full((1,), 30.0, device=device)
    amax = torch.zeros(1, device=device) if amax is None else amax
    weight, bias = torch.ones(width, device=device), torch.zeros(width, device=device)
    x, residual, grad = make(rows, width, dtype=FP32), make(rows, width, dtype=FP32), make(rows, width)
    parts = [make(rows, width) for _ in range(3)]
    h, grad_h = make(rows, hidden), make(rows, hidden)
    mean, rstd = torch.zeros(rows, device=device), torch.ones(rows, device=device)
    x8 = grad.to(E4M3)
    unit, wide = rows * width, rows * hidden
    matrix = width * hidden
    w = make(hidden, width, dtype=FP32)
    ops = operators
    found = [
        Case("norm", 1, lambda: ops.norm(x, None, weight, bias, 1e-6, scale, amax, E4M3), 5 * unit),
        Case("add + norm", 1, lambda: ops.norm(x, grad, weight, bias, 1e-6, scale, amax, E4M3), 11 * unit),
        Case("cast of attention's output", 1, lambda: ops.cast([grad], scale, amax, E4M3, False), 4 * unit),
        Case("GELU", 1, lambda: ops.gelu(h, scale, amax, E4M3), 3 * wide),
        Case("residual", 1, lambda: x + grad, 10 * unit),
        Case("cast of a residual's gradient", 2, lambda: ops.cast([x], scale, amax, E5M2, True), 6 * unit),
        Case("cast of the gradients of q, k, v", 1, lambda: ops.cast(parts, scale, amax, E5M2, True), 12 * unit),
        Case("GELU backward", 1, lambda: ops.gelu_backward(grad_h, h, scale, amax, E5M2, scale, E4M3), 7 * wide),
        Case("norm backward", 2, lambda: ops.norm_backward(x, mean, rstd, weight, grad, residual), 14 * unit),
        Case("transpose", 2, lambda: ops.transpose(x8), 2 * unit),
        Case(
            "cast of a weight, a third of the block's", 3, lambda: ops.cast([w], scale, amax, E4M3, False), 6 * matrix
        ),
    ]
    one = torch.ones(1, device=device)
    # M, N, K, the result's type, fast accumulation: forward, then the input's and the weight's gradient
    products = {
        "qkv": (rows, 3 * width, width),
        "out": (rows, width, width),
        "up": (rows, hidden, width),
        "down": (rows, width, hidden),
    }
    for name, (m, n, k) in products.items():
        kinds = {
            "forward": (m, n, k, BF16, E4M3, True),
            "of x": (m, k, n, BF16, E5M2, False),
            "of w": (n, k, m, FP32, E5M2, False),
        }
        for kind, (a_rows, b_rows, inner, dtype, left, fast) in kinds.items():
            a, b = make(a_rows, inner).to(left), make(b_rows, inner).to(E4M3)

            def call(a: torch.Tensor = a, b: torch.Tensor = b, dtype: torch.dtype = dtype, fast: bool = fast) -> object:
                return scaled_product(a, b, one, one, dtype, fast_accumulation=fast)

            found.append(Case(f"{name} {kind}", 1, call, flops=2 * a_rows * b_rows * inner))
    return found


def main() -> None:
    from triton.testing import do_bench

    batch = int(sys.argv[1]) if len(sys.argv) > 1 else 128
    ends = torch.empty(2, 2**32, dtype=torch.uint8, device="cuda")
    bandwidth = ends.numel() / do_bench(lambda: ends[0].copy_(ends[1]), return_mode="median") * 1e3
    print(f"{torch.cuda.get_device_name()}, batch {batch}; a copy moves {bandwidth / 1e12:.2f} TB/s")
    print(f"{'what':44} {'a block':>8} {'floor ms':>9} {'ms':>9} {'of floor':>9} {'ms a step':>10}")
    rows, totals = [], {"kernels": [0.0, 0.0], "products": [0.0, 0.0]}
    for case in cases(batch, "cuda"):
        ms = do_bench(case.call, warmup=10, rep=60, return_mode="median")
        floor = case.bytes / bandwidth * 1e3 + case.flops / PEAK_TFLOPS / 1e9
        step = ms * case.per_block * BLOCKS
        for total, value in zip((0, 1), (floor * case.per_block * BLOCKS, step), strict=True):
            totals["products" if case.flops else "kernels"][total] += value
        print(f"{case.name:44} {case.per_block:8} {floor:9.4f} {ms:9.4f} {floor / ms:9.0%} {step:10.2f}")
        rows.append({"name": case.name, "per_block": case.per_block, "floor_ms": floor, "ms": ms})
    for name, (floor, ms) in totals.items():
        print(f"all {name} of a step: {ms:.1f} ms, floor {floor:.1f} ms")
    print(json.dumps({"batch": batch, "bandwidth_tb_s": bandwidth / 1e12, "rows": rows}))


if __name__ == "__main__":
    main()
