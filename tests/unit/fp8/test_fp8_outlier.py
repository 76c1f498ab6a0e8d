"""An outlier in an activation: clipped in its step, in the way for as long as the history is long, then gone."""

from __future__ import annotations

import pytest
import torch
from blocks import KINDS, LAYERS, block, data, off, step
from torch import nn

from halfstep.fp8.fuse import fuse
from halfstep.fp8.linear import convert
from halfstep.fp8.synchronise import Synchroniser

BEFORE, AFTER = 3, 8


@pytest.mark.parametrize("history_length", [2, 16])
@pytest.mark.parametrize("fused", [True, False], ids=["fused", "linears"])
@pytest.mark.parametrize("kind", LAYERS)
def test_a_block_recovers_when_the_outlier_leaves_the_history(kind: str, fused: bool, history_length: int) -> None:
    """In one step a channel of the second norm is 30,000 times itself: the input of the feed-forward's first layer.

    What follows it is disturbed too, in both directions. Weights and data are the same in all steps.
    """
    model = block(kind)
    exact = step(model, *data())
    convert(model, lambda *_: True, emulate=True)
    if fused:
        assert fuse(model, KINDS) == (["0"], {})
    synchronise = Synchroniser(model, history_length)
    norm, up = model.get_submodule("0.norm2"), model.get_submodule(f"0.{LAYERS[kind][4]}")
    weight = norm.weight.detach().clone()
    errors, scales = [], []
    for number in range(BEFORE + 1 + history_length + AFTER):
        with torch.no_grad():
            norm.weight[5] = weight[5] * (30_000 if number == BEFORE else 1)
        scales.append(up.scale_x.item())
        found = step(model, *data(), autocast=True)
        assert all(tensor.isfinite().all() for tensor in found.values())
        errors.append(max(off(found[name], exact[name]) for name in ("out", "x")))
        synchronise()

    end = BEFORE + 1 + history_length
    usual, disturbed = scales[BEFORE], scales[BEFORE + 1]
    assert usual > 1000 * disturbed
    assert scales[1:] == [usual] * BEFORE + [disturbed] * history_length + [usual] * AFTER
    clean = errors[BEFORE - 1]
    assert errors[BEFORE] > 1000 * clean  # the outlier itself
    # small values lose bits beside it; few, since FP8 is a floating-point format
    assert all(1.05 * clean < error < 1.5 * clean for error in errors[BEFORE + 1 : end])
    assert all(error < 1.02 * clean for error in errors[end:])


def test_by_the_scale_of_the_steps_before_an_outlier_is_clipped_to_what_they_left_room_for() -> None:
    model = nn.Sequential(nn.Linear(16, 16, bias=False))
    nn.init.eye_(model[0].weight)
    convert(model, lambda *_: True, emulate=True)
    synchronise = Synchroniser(model, history_length=2)
    ones = torch.ones(16, 16)
    outlier = ones.clone()
    outlier[3, 4] = 1000
    seen = []
    for x in (ones, outlier, outlier, ones, ones, ones):
        seen.append(model(x)[3, 4].item())
        synchronise()
    coarse = 0.4375 / 0.448  # 1 by the outlier's scale is 0.448, and the next number of e4m3 is 0.4375
    assert seen == pytest.approx([1, 1, 1000, coarse, coarse, 1])
