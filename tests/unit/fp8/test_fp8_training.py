"""FP8 with delayed scaling learns what fp32 learns: a small Transformer on a sequence that can be learned."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from halfstep.fp8.fuse import fuse
from halfstep.fp8.linear import convert
from halfstep.fp8.synchronise import Synchroniser
from halfstep.recipes.norms import layernorm
from halfstep.recipes.precision.native_delayed import LM_BLOCK
from halfstep.workloads.lm import LM

VOCABULARY, CONTEXT, BATCH, STEPS = 256, 32, 8, 50
Gradients = dict[str, torch.Tensor]


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Each token decides the next: 5 * token + 17, mod the vocabulary."""
    generator = torch.Generator().manual_seed(step)
    tokens = [torch.randint(VOCABULARY, (BATCH, 1), generator=generator)]
    for _ in range(CONTEXT):
        tokens.append((5 * tokens[-1] + 17) % VOCABULARY)
    sequence = torch.cat(tokens, dim=1)
    return sequence[:, :-1], sequence[:, 1:]


def train(precision: str, steps: int = STEPS, **flags: Any) -> tuple[torch.Tensor, Gradients]:
    """The loss of each step, and the gradients of the first. `fused`: FP8 with fused blocks."""
    torch.manual_seed(0)
    model = LM.build(layernorm, vocabulary=VOCABULARY, context=CONTEXT, width=64, depth=2, heads=2)
    if precision in ("fp8", "fused"):
        assert len(convert(model, lambda *_: True, emulate=True, **flags)) == 2 * 4 + 1
        if precision == "fused":
            assert len(fuse(model, [LM_BLOCK])[0]) == 2
        synchronise = Synchroniser(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses, gradients = [], {}
    for step in range(steps):
        with torch.autocast("cpu", torch.bfloat16, enabled=precision != "fp32"):
            loss = LM.loss(model, *batch(step))
        loss.backward()
        if not step:
            gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
        if precision in ("fp8", "fused"):
            synchronise()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return torch.stack(losses), gradients


def cosine(a: Gradients, b: Gradients) -> float:
    flat = [torch.cat([gradients[name].double().flatten() for name in a]) for gradients in (a, b)]
    return float(torch.nn.functional.cosine_similarity(*flat, dim=0))


@pytest.fixture(scope="module")
def fp32() -> tuple[torch.Tensor, Gradients]:
    return train("fp32")


@pytest.mark.parametrize(("precision", "amax_init"), [("fp8", True), ("fp8", False), ("fused", True)])
def test_the_loss_follows_fp32s(fp32: tuple[torch.Tensor, Gradients], precision: str, amax_init: bool) -> None:
    expected, _ = fp32
    assert expected[-1] < 0.2 * expected[0]  # it learns
    losses, _ = train(precision, amax_init=amax_init)
    # over three seeds: up to 3 % apart where the loss falls fastest, with default amaxes 5 %
    assert ((losses - expected).abs() / expected).max() < 0.08


@pytest.mark.parametrize("precision", ["fp8", "fused"])
def test_the_first_gradient_points_where_fp32s_does(fp32: tuple[torch.Tensor, Gradients], precision: str) -> None:
    _, expected = fp32
    _, bf16 = train("bf16", steps=1)
    _, gradients = train(precision, steps=1)
    assert cosine(gradients, expected) > 0.99
    # the worst are norms, whose gradients pass all of the rounding; e5m2 keeps 2 bits of mantissa
    assert min(cosine({name: gradients[name]}, {name: expected[name]}) for name in expected) > 0.97
    assert cosine(bf16, expected) > cosine(gradients, expected)


def test_a_right_first_step_is_better_than_default_amaxes(fp32: tuple[torch.Tensor, Gradients]) -> None:
    _, expected = fp32
    right, default = (train("fp8", steps=1, amax_init=flag)[1] for flag in (True, False))
    assert 1 - cosine(right, expected) < 0.5 * (1 - cosine(default, expected))
