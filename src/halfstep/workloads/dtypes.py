"""The number types: their limits, what a cast makes of a sample, and which operations FP8 tensors have on this device.

The first two are the FP8 article's tables, with its sample; the third is probed, since it changes with every torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch

from halfstep.errors import describe
from halfstep.workloads.operator import Case, Operator, Work

TYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float8_e4m3fn": torch.float8_e4m3fn,
    "float8_e5m2": torch.float8_e5m2,
}
LIMITS = ("bits", "max", "min", "smallest_normal", "eps")
SAMPLE = (2.073093891143, -0.78251332044, -0.47084918620, -1.32557279110)
DIGITS = 7  # significant; what float32 holds

Operation = Callable[[torch.Tensor], Any]
# on a matrix of ones [16, 16] of the type
OPERATIONS: dict[str, Operation] = {
    "copy": lambda x: x.clone(),
    "fill": lambda x: torch.full_like(x, 1.5),
    "cast to float32": lambda x: x.to(torch.float32),
    "cast to the other FP8 type": lambda x: x.to(
        torch.float8_e5m2 if x.dtype is torch.float8_e4m3fn else torch.float8_e4m3fn
    ),
    "view": lambda x: x.view(4, 64),
    "transposed copy": lambda x: x.t().contiguous(),
    "index": lambda x: x[0],
    "index by a tensor": lambda x: x[torch.zeros(2, dtype=torch.int64, device=x.device)],
    "cat": lambda x: torch.cat([x, x]),
    "compare": lambda x: x == x,
    "negate": lambda x: -x,
    "abs": lambda x: x.abs(),
    "relu": lambda x: x.relu(),
    "add": lambda x: x + x,
    "multiply": lambda x: x * x,
    "multiply by a number": lambda x: x * 2.0,
    "sum": lambda x: x.sum(),
    "max": lambda x: x.max(),
    "matmul": lambda x: x @ x,
}
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
SCALED = {"e4m3 times e4m3": (E4M3, E4M3), "e5m2 times e4m3": (E5M2, E4M3), "e5m2 times e5m2": (E5M2, E5M2)}


def cases(device: torch.device, recipes: Mapping[str, Any]) -> Iterator[Case]:
    for name, dtype in TYPES.items():
        for limit in LIMITS:
            yield Case(f"finfo {name} {limit}", partial(look_up_limit, dtype, limit))
    for name, dtype in TYPES.items():
        for index in range(len(SAMPLE)):
            yield Case(f"cast {name} {index}", partial(cast, device, dtype, index))
    for dtype in (E4M3, E5M2):
        for operation, call in OPERATIONS.items():
            name = str(dtype).removeprefix("torch.")
            yield Case(f"operation {name} {operation}", partial(probe, device, dtype, call))
    for name, (left, right) in SCALED.items():
        yield Case(f"product _scaled_mm {name}", partial(probe_scaled_mm, device, left, right))


def look_up_limit(dtype: torch.dtype, limit: str) -> Work:
    return Work(value=format(getattr(torch.finfo(dtype), limit), f".{DIGITS}g"))


def cast(device: torch.device, dtype: torch.dtype, index: int) -> Work:
    """One value of the sample, a float32 tensor on the device, in `dtype` and back."""
    sample = torch.tensor(SAMPLE, device=device).view(2, 2)
    there = sample.to(dtype).to(torch.float32).flatten()[index].item()
    exact = sample.flatten()[index].item()
    return Work(value=format(there, f".{DIGITS}g"), max_abs_error=abs(there - exact))


def probe(device: torch.device, dtype: torch.dtype, operation: Operation) -> Work:
    """`works`, or the first line of the error."""
    return _tried(lambda: operation(torch.ones(16, 16, device=device).to(dtype)), device)


def probe_scaled_mm(device: torch.device, left: torch.dtype, right: torch.dtype) -> Work:
    def multiply() -> torch.Tensor:
        ones, scale = torch.ones(16, 16, device=device), torch.ones((), device=device)
        return torch._scaled_mm(ones.to(left), ones.to(right).t(), scale, scale, out_dtype=torch.bfloat16)

    return _tried(multiply, device)


def _tried(operation: Callable[[], Any], device: torch.device) -> Work:
    try:
        operation()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
    except (RuntimeError, TypeError, ValueError) as error:  # NotImplementedError is a RuntimeError
        return Work(value=describe(error))
    return Work(value="works")


DTYPES = Operator(sizes={"full": {}, "smoke": {}}, cases=cases, timed=False)
