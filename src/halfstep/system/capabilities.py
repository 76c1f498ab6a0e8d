"""What a study may need of a machine, each proved by doing it.

A probe runs on the GPU if torch can use one, and on the CPU otherwise. It returns how it proved the
capability, and raises where it is not there. The doctor runs each in a process of its own (probes.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pynvml

from halfstep.system.gpu import GpuError, ask, nvml, visible_gpu

if TYPE_CHECKING:
    import torch


class ProbeError(Exception):
    """The capability is not there; says why, and what to do about it."""

    status = "broken"

    def __init__(self, detail: str, remedy: str | None = None) -> None:
        super().__init__(detail)
        self.detail = detail
        self.remedy = remedy


class Broken(ProbeError):
    """All that it needs is there, and yet it does not work."""


class Missing(ProbeError):
    """Something that it needs is not there."""

    status = "missing"


def bf16() -> str:
    """A matrix product under bf16 autocast."""
    import torch

    if torch.cuda.is_available():
        _need_compute_capability(8, 0, "bf16 matrix units")  # older ones only emulate it
    return _autocast(torch.bfloat16, bound=1e-2)


def fp16() -> str:
    """A matrix product under fp16 autocast, and an optimizer step through GradScaler."""
    import torch

    detail = _autocast(torch.float16, bound=2e-3)
    device = _device()
    weight = torch.ones(64, 64, device=device, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    scaler = torch.amp.GradScaler(device)
    with torch.autocast(device, torch.float16):
        loss = (torch.ones(8, 64, device=device) @ weight).float().mean()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    # each weight's gradient is 1/64, exactly, and SGD takes a tenth of it off
    if not torch.allclose(weight, torch.full_like(weight, 1 - 0.1 / 64)):
        raise Broken("a step through GradScaler did not move the weights as SGD does")
    return f"{detail}, and a step through GradScaler"


def tf32() -> str:
    """A float32 matrix product with and without TF32: the one must be less exact, and within TF32's rounding."""
    import torch

    _need_compute_capability(8, 0, "TF32")
    a, b = _matrices("cuda")
    before = torch.backends.cuda.matmul.allow_tf32
    errors = []
    for allowed in (False, True):
        torch.backends.cuda.matmul.allow_tf32 = allowed
        errors.append(_error(a @ b, a.double() @ b.double()))
    torch.backends.cuda.matmul.allow_tf32 = before
    strict, fast = errors
    # TF32 keeps 10 bits of an operand's mantissa, fp32 23: about 3e-4 and 3e-7 over a whole product
    if not strict < 1e-5:
        raise Broken(f"strict fp32 has a relative error of {strict:.0e}", "unset NVIDIA_TF32_OVERRIDE")
    if not 1e-5 < fast < 2e-3:
        raise Broken(f"with TF32 allowed the relative error is {fast:.0e}", "unset NVIDIA_TF32_OVERRIDE")
    return f"matrix product on the GPU, relative error {fast:.0e}, and {strict:.0e} without TF32"


def fp8_matmul() -> str:
    """torch._scaled_mm of two e4m3 matrices against the float32 product of the same rounded values."""
    import torch

    _need_compute_capability(8, 9, "FP8 matrix units")
    a, b = _matrices("cuda")
    top = torch.finfo(torch.float8_e4m3fn).max
    scale_a, scale_b = a.abs().max() / top, b.abs().max() / top
    a8 = (a / scale_a).to(torch.float8_e4m3fn)
    b8 = (b / scale_b).to(torch.float8_e4m3fn).t().contiguous().t()  # column-major, as the hardware wants it
    out = torch._scaled_mm(a8, b8, scale_a=scale_a, scale_b=scale_b, out_dtype=torch.bfloat16)
    error = _error(out, (a8.double() @ b8.double()) * (scale_a * scale_b).double())
    if not error < 1e-2:
        raise Broken(f"torch._scaled_mm has a relative error of {error:.0e}")
    return f"torch._scaled_mm of e4m3 on the GPU, relative error {error:.0e}"


def torch_compile() -> str:
    """A function compiled by Inductor into an empty cache, with Triton on a GPU and the C++ compiler on a CPU."""
    import torch
    from torch._inductor import config, metrics
    from torch._inductor.utils import fresh_cache

    def compute(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.gelu(a @ b + 1)

    device = _device()
    a, b = _matrices(device)
    metrics.reset()
    # Inductor would try every vector instruction set in a process of its own, 20 s of it, and prove no more.
    with fresh_cache(), config.patch({"cpp.vec_isa_ok": False}):
        out = torch.compile(compute, fullgraph=True, dynamic=False)(a, b)
    if not metrics.generated_kernel_count:
        raise Broken("torch.compile ran without generating a kernel")
    error = _error(out, compute(a, b))
    if not error < 1e-5:
        raise Broken(f"the compiled function's result is off by {error:.0e}")
    return f"a {'Triton' if device == 'cuda' else 'C++'} kernel by Inductor gives what eager gives"


def cuda_graphs() -> str:
    """A captured product, replayed on inputs that it was not captured with."""
    import torch

    _need_gpu()
    a, b = _matrices("cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # cuBLAS has to make its workspace before the capture
        (a @ b).relu()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = (a @ b).relu()
    for factor in (2.0, -3.0):
        a.copy_(a * factor)
        graph.replay()
        error = _error(out, (a.double() @ b.double()).relu())
        if not error < 1e-2:
            raise Broken(f"a replay on changed input has a relative error of {error:.0e}")
    return "a captured product replayed on changed inputs"


def nvml_queries() -> str:
    """The board's power and energy."""
    try:
        gpu = visible_gpu()
    except GpuError as error:
        raise Missing(str(error)) from error
    if gpu is None:
        raise Missing("NVML gives no GPU")
    with nvml():
        handle = ask(pynvml.nvmlDeviceGetHandleByUUID, gpu.uuid)
        asked = {"power": pynvml.nvmlDeviceGetPowerUsage, "energy": pynvml.nvmlDeviceGetTotalEnergyConsumption}
        refused = [name for name, query in asked.items() if handle is None or ask(query, handle) is None]
    if refused:
        raise Missing(
            f"NVML refuses the question for {' and '.join(refused)}",
            "use a whole GPU of the Volta generation or newer; without NVML those columns stay empty",
        )
    return "power and energy are answered"


def _device() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def _need_gpu() -> None:
    if _device() == "cpu":
        raise Missing("no CUDA GPU is visible")


def _need_compute_capability(major: int, minor: int, what: str) -> None:
    import torch

    _need_gpu()
    has = torch.cuda.get_device_capability()
    if has < (major, minor):
        raise Missing(
            f"a GPU of compute capability {has[0]}.{has[1]} has no {what}",
            f"use a GPU of compute capability {major}.{minor} or newer",
        )


def _matrices(device: str) -> tuple[torch.Tensor, torch.Tensor]:
    import torch

    torch.manual_seed(0)
    size = 1024 if device == "cuda" else 256  # a small product may not go to the GPU's matrix units
    return torch.randn(size, size, device=device), torch.randn(size, size, device=device)


def _error(out: torch.Tensor, exact: torch.Tensor) -> float:
    """Relative error of the whole matrix; NaN where the output holds one, which is below no bound."""
    return float((out.double() - exact.double()).norm() / exact.double().norm())


def _autocast(dtype: torch.dtype, bound: float) -> str:
    import torch

    device = _device()
    a, b = _matrices(device)
    with torch.autocast(device, dtype):
        out = a @ b
    if out.dtype != dtype:
        raise Broken(f"autocast gave {out.dtype} instead of {dtype}")
    error = _error(out, a.double() @ b.double())
    if not error < bound:
        raise Broken(f"a matrix product has a relative error of {error:.0e}")
    return f"matrix product under autocast on the {device.upper().replace('CUDA', 'GPU')}, relative error {error:.0e}"


PROBES: dict[str, Callable[[], str]] = {
    "bf16": bf16,
    "fp16": fp16,
    "tf32": tf32,
    "fp8_matmul": fp8_matmul,
    "torch_compile": torch_compile,
    "cuda_graphs": cuda_graphs,
    "nvml": nvml_queries,
}
CAPABILITIES = tuple(PROBES)  # the names that recipes require
