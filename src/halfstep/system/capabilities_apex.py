"""NVIDIA Apex, one extension after the other, and its legacy mixed precision."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from halfstep.system.libraries import load, load_apex_amp
from halfstep.system.probing import Broken, Probe

if TYPE_CHECKING:
    import torch
    from torch import nn

STEPS = 5
# of what the steps change, relative: fp32 is nearly exact, and fp16 must show that it rounded
AMP_ERRORS = {"O0": (0.0, 1e-4), "O1": (1e-5, 2e-2), "O2": (1e-5, 2e-2)}


def fused_adam() -> str:
    """Steps of Apex's FusedAdam through `amp_C`, against torch's AdamW in float64."""
    from halfstep.system.checks import prove_adamw

    load("amp_C")
    return prove_adamw(load("apex.optimizers").FusedAdam)


def layernorm() -> str:
    """Apex's FusedLayerNorm through `fused_layer_norm_cuda`, forward and backward, against float64."""
    return _norm("FusedLayerNorm", "cuApplyLayerNorm")


def rmsnorm() -> str:
    """Apex's FusedRMSNorm through `fused_layer_norm_cuda`, forward and backward, against float64."""
    return _norm("FusedRMSNorm", "cuApplyRMSNorm")


def amp() -> str:
    """Training steps under legacy `apex.amp` at O0, O1 and O2, against the same steps in float64."""
    import torch

    from halfstep.system.checks import need_between, percent

    apex_amp = load_apex_amp()
    load("amp_C")  # without it apex.amp falls back to Python
    exact = weights_change(torch.float64, plain_training)
    # O1 goes last, since it patches torch
    errors = {level: _amp_error(apex_amp, level, exact) for level in ("O0", "O2", "O1")}
    need_between(errors, AMP_ERRORS)
    return f"training steps, relative errors {percent(errors)}"


Backward = Callable[[Any], None]
Wrap = Callable[["nn.Linear", "torch.optim.Optimizer"], tuple["nn.Linear", "torch.optim.Optimizer", Backward]]


def _norm(name: str, kernel: str) -> str:
    from halfstep.system.checks import prove_norm

    load("fused_layer_norm_cuda")
    fused = getattr(load("apex.normalization"), name)
    return prove_norm(lambda width, eps: fused(width, eps=eps).cuda(), kernel)


def weights_change(dtype: torch.dtype, wrap: Wrap, device: str = "cuda") -> torch.Tensor:
    """What a few steps of SGD change in a linear's weights, in float64; always from the same start on the same data."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    inputs, targets = torch.randn(2, 64, 256, device=device).to(dtype)
    model = nn.Linear(256, 256, bias=False).to(device, dtype)
    start = model.weight.detach().double().clone()  # `double` alone would hand out float64 weights themselves
    model, optimizer, backward = wrap(model, torch.optim.SGD(model.parameters(), lr=10.0))
    for _ in range(STEPS):
        optimizer.zero_grad()
        backward((model(inputs).to(dtype) - targets).square().mean())
        optimizer.step()
    return model.weight.detach().double() - start


def plain_training(
    model: nn.Linear, optimizer: torch.optim.Optimizer
) -> tuple[nn.Linear, torch.optim.Optimizer, Backward]:
    """Nothing wrapped, for `weights_change`."""
    return model, optimizer, lambda loss: loss.backward()


def _amp_error(apex_amp: Any, level: str, exact: torch.Tensor) -> float:
    """The relative error of what the steps change at an opt level.

    Raises:
        Broken: weights or products are not of the type that the level stands for.
    """
    import torch

    from halfstep.system.checks import relative_error

    def wrap(model: nn.Linear, optimizer: torch.optim.Optimizer) -> tuple[nn.Linear, torch.optim.Optimizer, Backward]:
        model, optimizer = apex_amp.initialize(model, optimizer, opt_level=level, loss_scale=128.0, verbosity=0)
        # without gradients: O1 keeps its casts of weights for the step, and fails on using one again with this torch
        with torch.no_grad():
            found = model.weight.dtype, model(torch.ones(16, 256, device="cuda")).dtype
        asked = {
            "O0": (torch.float32, torch.float32),
            "O1": (torch.float32, torch.float16),
            "O2": (torch.float16, torch.float32),  # the product is in fp16, and its result handed out in fp32
        }[level]
        if found != asked:
            raise Broken(f"at {level} weights and outputs are {found[0]} and {found[1]}")

        def backward(loss: torch.Tensor) -> None:
            with apex_amp.scale_loss(loss, optimizer) as scaled:
                scaled.backward()

        return model, optimizer, backward

    return relative_error(weights_change(torch.float32, wrap), exact)


PROBES = {
    "apex_fused_adam": Probe(fused_adam, "apex", library="amp_C"),
    "apex_layernorm": Probe(layernorm, "apex", library="fused_layer_norm_cuda"),
    "apex_rmsnorm": Probe(rmsnorm, "apex", library="fused_layer_norm_cuda"),
    "apex_amp": Probe(amp, "apex_amp", library="apex.amp"),  # it may bring an `apex` of its own
}
