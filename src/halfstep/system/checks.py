"""What several probes compare: a fused or quantized part against torch's own in float64, and the kernels it ran."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import nn
from torch.nn import functional as F

from halfstep.kernel_kinds import kind_of
from halfstep.measure.profile import profile_kernels
from halfstep.system.probing import Broken, Missing

SIZE = 1024  # a small product may not go to the GPU's matrix units
# relative errors between which a product of rounded operands lies, over all its elements: rounding to e4m3 is off
# by 2.4 %, to e5m2 by 4.7 %, to FP4 by some 10 %; a product in bf16 by 0.3 %
FP8 = (0.01, 0.1)
FP4 = (0.05, 0.35)
BF16 = (0.0, 0.01)
EXACT = (0.0, 1e-4)  # fp32 against float64
EPSILON = 1e-5


def device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def matrices(device: str) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    size = SIZE if device == "cuda" else 256
    return torch.randn(size, size, device=device), torch.randn(size, size, device=device)


def relative_error(out: torch.Tensor, exact: torch.Tensor) -> float:
    """Over the whole tensor; NaN where the output holds one, which is below no bound."""
    return float((out.double() - exact.double()).norm() / exact.double().norm())


def need_between(errors: Mapping[str, float], bounds: Mapping[str, tuple[float, float]]) -> None:
    """Raises: Broken, for an error that is too large, or too small for the rounding to have happened."""
    for what, error in errors.items():
        low, high = bounds[what]
        if not error < high:
            raise Broken(f"the {what} has a relative error of {error:.0e}, more than {high:.0e}")
        if error < low:
            raise Broken(f"the {what} has a relative error of {error:.0e}, less than the rounding asked for gives")


def need_kernel(step: Callable[[], object], pattern: str) -> None:
    """See which kernels `step` runs on the GPU.

    Raises:
        Broken: none of them has a name that `pattern` finds.
        Missing: the profiler sees none at all.
    """
    names = _kernels(step)
    if not any(re.search(pattern, name) for name in names):
        raise Broken(f"it ran no kernel named like {pattern}, but {_shortly(names)}")


def need_fp8_gemm(step: Callable[[], object]) -> None:
    """See which kernels `step` runs on the GPU.

    Raises:
        Broken: none of them is an FP8 matrix product.
        Missing: the profiler sees none at all.
    """
    names = _kernels(step)
    if not any(kind_of(name) == "FP8 GEMM" for name in names):
        raise Broken(f"it ran no FP8 matrix product, but {_shortly(names)}")


def linear_errors(
    quantized: Callable[[nn.Linear], nn.Module],
    context: Callable[[], AbstractContextManager[object]] = nullcontext,
    device: str = "cuda",
) -> tuple[dict[str, float], Callable[[], torch.Tensor]]:
    """The relative errors of a linear that `quantized` makes of a bf16 one, within `context`; and its step.

    They are those of the second step, whose delayed scales come from the first.
    """
    torch.manual_seed(0)
    plain = nn.Linear(SIZE, SIZE, device=device, dtype=torch.bfloat16)
    weight, bias = plain.weight.detach().double(), plain.bias.detach().double()
    inputs = torch.randn(SIZE, SIZE, device=device, dtype=torch.bfloat16, requires_grad=True)
    gradient = torch.randn(SIZE, SIZE, device=device, dtype=torch.bfloat16)
    module = quantized(plain)

    def step() -> torch.Tensor:
        inputs.grad = None
        module.zero_grad(set_to_none=True)
        with context():
            out = module(inputs)
        out.backward(gradient)
        return out

    step()
    out = step()
    trained = next(parameter for parameter in module.parameters() if parameter.ndim == 2)
    if inputs.grad is None or trained.grad is None:
        raise Broken("the backward pass left a gradient out")
    exact = inputs.detach().double()
    errors = {
        "output": relative_error(out.detach(), exact @ weight.t() + bias),
        "input's gradient": relative_error(inputs.grad, gradient.double() @ weight),
        "weight's gradient": relative_error(trained.grad, gradient.double().t() @ exact),
    }
    return errors, step


def norm_errors(norm: nn.Module, eps: float, device: str = "cuda") -> tuple[dict[str, float], Callable[[], None]]:
    """The relative errors of a norm of width SIZE, LayerNorm if it has a bias and RMSNorm otherwise; and its step."""
    torch.manual_seed(0)
    parameters = dict(norm.named_parameters())
    with torch.no_grad():
        for parameter in parameters.values():
            parameter.copy_(1 + 0.1 * torch.randn(SIZE, device=device))
    inputs = (3 * torch.randn(512, SIZE, device=device) + 1).requires_grad_()
    gradient = torch.randn(512, SIZE, device=device)

    exact_inputs = inputs.detach().double().requires_grad_()
    exact = {name: parameter.detach().double().requires_grad_() for name, parameter in parameters.items()}
    if "bias" in exact:
        exact_out = F.layer_norm(exact_inputs, (SIZE,), exact["weight"], exact["bias"], eps)
    else:
        exact_out = F.rms_norm(exact_inputs, (SIZE,), exact["weight"], eps)
    exact_out.backward(gradient.double())

    def step() -> None:
        norm(inputs).backward(gradient.clone())  # Liger writes its result over the gradient it is given

    with torch.no_grad():
        errors = {"output": relative_error(norm(inputs), exact_out.detach())}
    step()
    for name, ours, theirs in [
        ("input", inputs, exact_inputs),
        *((name, parameters[name], exact[name]) for name in parameters),
    ]:
        if ours.grad is None or theirs.grad is None:
            raise Broken(f"the backward pass left the {name}'s gradient out")
        errors[f"{name}'s gradient"] = relative_error(ours.grad, theirs.grad)
    return errors, step


def adamw_error(
    optimizer_of: Callable[..., torch.optim.Optimizer], device: str = "cuda"
) -> tuple[float, torch.optim.Optimizer]:
    """The relative error of what three steps of AdamW change; and the optimizer."""
    torch.manual_seed(0)
    shapes = [(SIZE, SIZE), (257, 33), (1000,), (1,)]
    starts = [torch.randn(shape, device=device) for shape in shapes]
    ours = [nn.Parameter(start.clone()) for start in starts]
    exact = [nn.Parameter(start.double()) for start in starts]
    optimizer = optimizer_of(ours, lr=0.01, weight_decay=0.1)
    reference = torch.optim.AdamW(exact, lr=0.01, weight_decay=0.1)
    for _ in range(3):
        for parameter, twin in zip(ours, exact, strict=True):
            parameter.grad = torch.randn_like(parameter)
            twin.grad = parameter.grad.double()
        optimizer.step()
        reference.step()
    moved, should = (
        torch.cat([(end.detach().double() - start.double()).flatten() for end, start in zip(ends, starts, strict=True)])
        for ends in (ours, exact)
    )
    return relative_error(moved, should), optimizer


def prove_linear(
    quantized: Callable[[nn.Linear], nn.Module],
    context: Callable[[], AbstractContextManager[object]] = nullcontext,
    bounds: tuple[float, float] = FP8,
    weight_gradient: tuple[float, float] | None = None,
) -> str:
    """How a quantized linear was proved on the GPU.

    Raises:
        Broken: its result or a gradient is not what this rounding gives, or it ran no FP8 kernel.
    """
    errors, step = linear_errors(quantized, context)
    need_between(errors, {**dict.fromkeys(errors, bounds), "weight's gradient": weight_gradient or bounds})
    if bounds == FP8:  # the names of FP4's kernels are not known here, and the error alone tells it from FP8
        need_fp8_gemm(step)
    return f"forward and backward of a linear, relative errors {percent(errors)}"


def prove_norm(norm_of: Callable[[int, float], nn.Module], kernel: str) -> str:
    """How a fused norm, made of its width and epsilon, was proved on the GPU.

    Raises:
        Broken: its result or a gradient is off, or it ran no such kernel.
    """
    errors, step = norm_errors(norm_of(SIZE, EPSILON), EPSILON)
    need_between(errors, dict.fromkeys(errors, EXACT))
    need_kernel(step, kernel)
    return f"forward and backward, largest relative error {max(errors.values()):.0e}"


def prove_adamw(optimizer_of: Callable[..., torch.optim.Optimizer]) -> str:
    """How a fused AdamW, made of parameters, `lr` and `weight_decay`, was proved on the GPU.

    Raises:
        Broken: what it changes is off, or it ran no fused kernel.
    """
    error, optimizer = adamw_error(optimizer_of)
    need_between({"change by the steps": error}, {"change by the steps": EXACT})
    need_kernel(optimizer.step, r"Adam\w*Functor")
    return f"three steps over parameters of several shapes, relative error {error:.0e}"


def percent(errors: Mapping[str, float]) -> str:
    return ", ".join(f"{error:.1%} ({what})" for what, error in errors.items())


def _kernels(step: Callable[[], object]) -> list[str]:
    rows, _ = profile_kernels(step)
    if not rows:
        raise Missing(
            "its numbers are right, and torch's profiler sees no kernels here, so which ones ran is not known",
            "end other profilers of this GPU",
        )
    return [row["kernel"] for row in rows]


def _shortly(names: list[str]) -> str:
    return ", ".join(name[:60] for name in names[:3])
