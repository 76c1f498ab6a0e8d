"""torchao's float8 linears, one recipe after the other."""

from __future__ import annotations

import importlib.metadata

from halfstep.system.libraries import load
from halfstep.system.probing import Missing, Probe, Removed


def tensorwise() -> str:
    """A float8 linear of torchao with one scale per tensor, forward and backward, against float64."""
    return _recipe("tensorwise")


def rowwise() -> str:
    """A float8 linear of torchao with one scale per row, forward and backward, against float64."""
    return _recipe("rowwise")


def rowwise_with_gw_hp() -> str:
    """The same as rowwise, with the weight's gradient in bf16."""
    from halfstep.system.checks import BF16

    return _recipe("rowwise_with_gw_hp", weight_gradient=BF16)


def delayed() -> str:
    """Delayed scaling by torchao, which it no longer has."""
    scaling = load("torchao.float8.config").ScalingType
    version = importlib.metadata.version("torchao")
    if not hasattr(scaling, "DELAYED"):
        raise Removed(
            f"torchao has no delayed scaling since 0.9 (dropped on 2025-02-22); this is {version}",
            "use halfstep's own delayed scaling (precision: native_delayed)",
        )
    raise Missing(f"torchao {version} still has delayed scaling, and halfstep measures none older than 0.9")


def _recipe(name: str, weight_gradient: tuple[float, float] | None = None) -> str:
    from torch import nn

    from halfstep.system.checks import prove_linear

    float8 = load("torchao.float8")

    def quantized(linear: nn.Linear) -> nn.Module:
        config = float8.Float8LinearConfig.from_recipe_name(name)
        return float8.convert_to_float8_training(nn.Sequential(linear), config=config)

    return prove_linear(quantized, weight_gradient=weight_gradient)


PROBES = {
    "torchao_tensorwise": Probe(tensorwise, "torchao", compute_capability=(8, 9), library="torchao.float8"),
    "torchao_rowwise": Probe(rowwise, "torchao", compute_capability=(8, 9), library="torchao.float8"),
    "torchao_rowwise_with_gw_hp": Probe(
        rowwise_with_gw_hp, "torchao", compute_capability=(8, 9), library="torchao.float8"
    ),
    "torchao_delayed": Probe(delayed, "torchao", cuda=False, library="torchao.float8"),
}
