"""Matrix products y = a bᵀ: squares, and those of ViT-Huge's linear layers in a forward pass.

Each shape [m, k] times [n, k] is measured from bf16 operands with their casts, and from operands that are cast
already. FLOPs are those of the product, 2 m n k, in both.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import torch

from halfstep.errors import Invalid, Unsupported
from halfstep.workloads.operator import Case, Operator, Work, accuracy

CHECKED_ROWS = 256
"""of the product, in float64: all of a large one would take longer than its timing"""
EXAMPLE = "example 16x16x16, bias, e4m3 output"


def cases(
    device: torch.device, recipes: Mapping[str, Any], *, squares: list[int], layers: Mapping[str, tuple[int, int, int]]
) -> Iterator[Case]:
    """`layers` maps a name to (m, n, k)."""
    gemm = recipes["gemm"](device)
    yield Case(EXAMPLE, partial(example, gemm, device))
    shapes = {f"{n}x{n}x{n}": (n, n, n) for n in squares} | {
        f"{name} {'x'.join(map(str, shape))}": shape for name, shape in layers.items()
    }
    largest = max(shapes, key=lambda name: shapes[name][0] * shapes[name][1] * shapes[name][2])
    for name, shape in shapes.items():
        yield Case(name, partial(prepare, gemm, device, shape, casts=False), profiled=name == largest)
        yield Case(f"{name}, cast included", partial(prepare, gemm, device, shape, casts=True))


def prepare(gemm: Any, device: torch.device, shape: tuple[int, int, int], *, casts: bool) -> Work:
    """Standard normal operands in bf16; the result against the float64 product of these, so that casts count."""
    m, n, k = shape
    a = torch.randn(m, k, device=device, dtype=torch.bfloat16)
    b = torch.randn(n, k, device=device, dtype=torch.bfloat16)
    operands = gemm.cast(a, b)
    rows = min(m, CHECKED_ROWS)
    error, sqnr = accuracy(gemm.multiply(operands)[:rows], a[:rows].double() @ b.double().t())

    def call() -> torch.Tensor:
        return gemm.multiply(gemm.cast(a, b) if casts else operands)

    tflop = 2 * m * n * k / 1e12
    return Work(call, tflop=tflop, precision=gemm.precision, max_abs_error=error, sqnr_db=sqnr)


def example(gemm: Any, device: torch.device) -> Work:
    """The FP8 article's call: e4m3 times e4m3 transposed, a bias of 16, all scales 1, the output in e4m3 too.

    Small whole numbers are exact in e4m3 and their sums in any accumulator, so the result has one right value.

    Raises:
        Unsupported: this product is not asked for an FP8 output.
        Invalid: a value is wrong.
    """
    if gemm.to_fp8 is None:
        raise Unsupported("an FP8 output with a bias is asked of the tensorwise scaled product of torch alone")
    a, b = (torch.randint(-2, 3, (16, 16), device=device).to(torch.float8_e4m3fn) for _ in "ab")
    bias = torch.arange(16, device=device, dtype=torch.bfloat16)
    right = (a.double() @ b.double().t() + bias.double()).float().to(torch.float8_e4m3fn)
    got = gemm.to_fp8(a, b, bias)
    wrong = int((got.float() != right.float()).sum())
    if got.dtype != torch.float8_e4m3fn or wrong:
        raise Invalid(f"{wrong} of 256 values of the FP8 output ({got.dtype}) are not the right ones")
    return Work(partial(gemm.to_fp8, a, b, bias), tflop=2 * 16**3 / 1e12, precision=gemm.precision, max_abs_error=0.0)


VIT_ROWS = 128 * 256  # images of a batch times tokens of one
VIT_WIDTH = 1280

GEMM = Operator(
    sizes={
        "full": {
            "squares": [1024, 2048, 4096, 8192, 16384],
            "layers": {
                "ViT-Huge qkv": (VIT_ROWS, 3 * VIT_WIDTH, VIT_WIDTH),
                "ViT-Huge proj": (VIT_ROWS, VIT_WIDTH, VIT_WIDTH),
                "ViT-Huge fc1": (VIT_ROWS, 4 * VIT_WIDTH, VIT_WIDTH),
                "ViT-Huge fc2": (VIT_ROWS, VIT_WIDTH, 4 * VIT_WIDTH),
            },
        },
        "smoke": {"squares": [64, 128], "layers": {"ViT-Huge fc1": (256, 256, 64)}},
    },
    cases=cases,
)
