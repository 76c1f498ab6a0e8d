"""Which blocks are fused, and what of them stays."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from blocks import HEADS, KINDS, LAYERS, WIDTH, block, fused
from timm.models.vision_transformer import Block as TimmBlock
from torch import nn

from halfstep.fp8.fuse import FusedBlock, fuse
from halfstep.fp8.linear import Float8Linear, convert
from halfstep.recipes.norms import rmsnorm
from halfstep.workloads.lm import Block as LmBlock


@pytest.mark.parametrize("kind", LAYERS)
def test_names_parameters_and_modes_stay(kind: str) -> None:
    model = block(kind)
    before, state = dict(model.named_parameters()), list(model.state_dict())
    convert(model, lambda *_: True, emulate=True)
    fuse(model, KINDS)
    assert dict(model.named_parameters()) == before
    assert list(model.state_dict()) == state
    assert not fuse(model, KINDS)[0]
    other = fused(kind)
    other.load_state_dict({name: tensor + 1 for name, tensor in model.state_dict().items()})
    assert torch.equal(other.state_dict()[state[0]], model.state_dict()[state[0]] + 1)


def replaced(path: str, module: nn.Module) -> Callable[[nn.Module], None]:
    def change(model: nn.Module) -> None:
        parent, _, name = f"0.{path}".rpartition(".")
        setattr(model.get_submodule(parent), name, module)

    return change


LEFT = {
    "layer scale": ({"init_values": 0.1}, None, "it has ls1, a LayerScale"),
    "drop path": ({"drop_path": 0.1}, None, "it has drop_path1, a DropPath"),
    "dropout": ({"proj_drop": 0.1}, None, "it has attn.proj_drop, a Dropout"),
    "attention dropout": ({"attn_drop": 0.1}, None, "it has attn.attn_drop, a Dropout"),
    "query norms": ({"qk_norm": True}, None, "it has attn.q_norm, a LayerNorm"),
    "another attention": ({"attn_layer": "diff"}, None, "its attn is not timm.layers.attention.Attention"),
    "another norm": ({"norm_layer": nn.RMSNorm}, None, "norm1 is not torch's LayerNorm"),
    "no affine parameters": (
        {},
        replaced("norm2", nn.LayerNorm(WIDTH, elementwise_affine=False)),
        "norm2 is not torch's",
    ),
    "tanh": ({"act_layer": lambda: nn.GELU("tanh")}, None, "mlp.act is not torch's exact GELU"),
    "a layer in bf16": ({}, replaced("mlp.fc2", nn.Linear(4 * WIDTH, WIDTH)), "mlp.fc2 is not in FP8"),
    "a parameter": (
        {},
        lambda model: model[0].register_parameter("gamma", nn.Parameter(torch.ones(1))),
        "the parameter gamma",
    ),
}


@pytest.mark.parametrize("case", LEFT)
def test_a_block_that_does_more_stays_and_is_reported(case: str) -> None:
    settings, change, reason = LEFT[case]
    model = block("timm", **settings)
    convert(model, lambda *_: True, emulate=True)
    if change:
        change(model)
    names, left = fuse(model, KINDS)
    assert names == []
    assert reason in left["0"]
    assert type(model[0]) is TimmBlock
    assert isinstance(model[0].mlp.fc1, Float8Linear)


def test_an_lm_with_another_norm_stays_and_a_lone_block_is_refused() -> None:
    model = nn.Sequential(LmBlock(WIDTH, HEADS, rmsnorm))
    convert(model, lambda *_: True, emulate=True)
    assert "norm1 is not torch's LayerNorm" in fuse(model, KINDS)[1]["0"]
    assert "no place to put the new one" in fuse(block("timm")[0], KINDS)[1][""]
    assert fuse(nn.Sequential(nn.Linear(16, 16)), KINDS) == ([], {})


def test_the_new_block_is_a_module_of_its_own_with_the_blocks_heads() -> None:
    assert isinstance(fused("lm")[0], FusedBlock)
    assert (fused("lm")[0].heads, fused("lm")[0].causal, fused("timm")[0].causal) == (HEADS, True, False)
