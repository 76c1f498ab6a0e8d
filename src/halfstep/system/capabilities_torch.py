"""What torch itself can do here: precisions, scaled products, compilation, CUDA graphs; and what NVML answers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pynvml

from halfstep.system.gpu import GpuError, ask, nvml, visible_gpu
from halfstep.system.probing import Broken, Missing, Probe

if TYPE_CHECKING:
    import torch


def bf16() -> str:
    """A matrix product under bf16 autocast."""
    import torch

    return _autocast(torch.bfloat16, bound=1e-2)


def fp16() -> str:
    """A matrix product under fp16 autocast, and an optimizer step through GradScaler."""
    import torch

    from halfstep.system.checks import device

    detail = _autocast(torch.float16, bound=2e-3)
    on = device()
    weight = torch.ones(64, 64, device=on, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    scaler = torch.amp.GradScaler(on)
    with torch.autocast(on, torch.float16):
        loss = (torch.ones(8, 64, device=on) @ weight).float().mean()
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

    from halfstep.system.checks import matrices, relative_error

    a, b = matrices("cuda")
    before = torch.backends.cuda.matmul.allow_tf32
    errors = []
    for allowed in (False, True):
        torch.backends.cuda.matmul.allow_tf32 = allowed
        errors.append(relative_error(a @ b, a.double() @ b.double()))
    torch.backends.cuda.matmul.allow_tf32 = before
    strict, fast = errors
    # TF32 keeps 10 bits of an operand's mantissa, fp32 23: about 3e-4 and 3e-7 over a whole product
    if not strict < 1e-5:
        raise Broken(f"strict fp32 has a relative error of {strict:.0e}", "unset NVIDIA_TF32_OVERRIDE")
    if not 1e-5 < fast < 2e-3:
        raise Broken(f"with TF32 allowed the relative error is {fast:.0e}", "unset NVIDIA_TF32_OVERRIDE")
    return f"matrix product on the GPU, relative error {fast:.0e}, and {strict:.0e} without TF32"


def scaled_mm_tensorwise() -> str:
    """`torch._scaled_mm` of e4m3 by e4m3 and of e5m2 by e4m3, one scale per matrix."""
    import torch

    errors = [_scaled_mm(dtype, rowwise=False) for dtype in (torch.float8_e4m3fn, torch.float8_e5m2)]
    return f"torch._scaled_mm on the GPU, relative error {errors[0]:.0e} of e4m3 and {errors[1]:.0e} of e5m2 by e4m3"


def scaled_mm_rowwise() -> str:
    """`torch._scaled_mm` of e4m3 by e4m3, one scale per row and column."""
    import torch

    error = _scaled_mm(torch.float8_e4m3fn, rowwise=True)
    return f"torch._scaled_mm on the GPU, relative error {error:.0e}"


def torch_compile() -> str:
    """A function compiled by Inductor into an empty cache, with Triton on a GPU and the C++ compiler on a CPU."""
    import torch
    from torch._inductor import config, metrics
    from torch._inductor.utils import fresh_cache

    from halfstep.system.checks import device, matrices, relative_error

    def compute(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.gelu(a @ b + 1)

    on = device()
    a, b = matrices(on)
    metrics.reset()
    # Inductor would try every vector instruction set in a process of its own, 20 s of it, and prove no more.
    with fresh_cache(), config.patch({"cpp.vec_isa_ok": False}):
        out = torch.compile(compute, fullgraph=True, dynamic=False)(a, b)
    if not metrics.generated_kernel_count:
        raise Broken("torch.compile ran without generating a kernel")
    error = relative_error(out, compute(a, b))
    if not error < 1e-5:
        raise Broken(f"the compiled function's result is off by {error:.0e}")
    return f"a {'Triton' if on == 'cuda' else 'C++'} kernel by Inductor gives what eager gives"


def cuda_graphs() -> str:
    """A captured product, replayed on inputs that it was not captured with."""
    import torch

    from halfstep.system.checks import matrices, relative_error

    a, b = matrices("cuda")
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
        error = relative_error(out, (a.double() @ b.double()).relu())
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


def _scaled_mm(dtype: torch.dtype, rowwise: bool) -> float:
    """The relative error of `dtype` by e4m3, against the exact product of the same rounded values."""
    import torch

    from halfstep.system.checks import matrices, relative_error

    def scaled(matrix: torch.Tensor, to: torch.dtype, dim: int) -> tuple[torch.Tensor, torch.Tensor]:
        largest = matrix.abs().amax(dim, keepdim=True) if rowwise else matrix.abs().max()
        scale = largest / torch.finfo(to).max
        return (matrix / scale).to(to), scale

    a, b = matrices("cuda")
    b *= torch.logspace(-2, 2, b.shape[1], device="cuda")  # so that a scale at a wrong place shows
    a8, scale_a = scaled(a, dtype, 1)
    b8, scale_b = scaled(b, torch.float8_e4m3fn, 0)
    b8 = b8.t().contiguous().t()  # column-major, as the hardware wants it
    out = torch._scaled_mm(a8, b8, scale_a=scale_a, scale_b=scale_b, out_dtype=torch.bfloat16)
    error = relative_error(out, (a8.double() * scale_a) @ (b8.double() * scale_b))
    if not error < 1e-2:
        raise Broken(f"torch._scaled_mm of {dtype} by e4m3 has a relative error of {error:.0e}")
    return error


def _autocast(dtype: torch.dtype, bound: float) -> str:
    import torch

    from halfstep.system.checks import device, matrices, relative_error

    a, b = matrices(device())
    with torch.autocast(device(), dtype):
        out = a @ b
    if out.dtype != dtype:
        raise Broken(f"autocast gave {out.dtype} instead of {dtype}")
    error = relative_error(out, a.double() @ b.double())
    if not error < bound:
        raise Broken(f"a matrix product has a relative error of {error:.0e}")
    return f"matrix product under autocast on the {device().upper().replace('CUDA', 'GPU')}, relative error {error:.0e}"


PROBES = {
    "bf16": Probe(bf16, "torch", cuda=False, compute_capability=(8, 0)),  # an older GPU only emulates it
    "fp16": Probe(fp16, "torch", cuda=False),
    "tf32": Probe(tf32, "torch", compute_capability=(8, 0)),
    "scaled_mm_tensorwise": Probe(scaled_mm_tensorwise, "torch", compute_capability=(8, 9)),
    "scaled_mm_rowwise": Probe(scaled_mm_rowwise, "torch", compute_capability=(8, 9)),
    "torch_compile": Probe(torch_compile, "torch_compile", cuda=False),
    "cuda_graphs": Probe(cuda_graphs, "torch"),
    "nvml": Probe(nvml_queries, "nvml", cuda=False),
}
