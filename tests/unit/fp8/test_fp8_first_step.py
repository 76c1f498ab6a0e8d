"""Each tensor of each layer has a first step of its own: that in which it is first seen."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable

import pytest
import torch
import torch._dynamo
from blocks import KINDS, block, data
from torch import nn
from torch.utils.checkpoint import checkpoint

from halfstep.fp8.fuse import fuse
from halfstep.fp8.linear import Float8Linear, convert
from halfstep.fp8.synchronise import Synchroniser

ALL, NONE = {"x": True, "w": True, "g": True}, {"x": False, "w": False, "g": False}


class Branches(nn.Module):
    """A stem, and the branch that is asked for. Gradients are so small that e5m2 by the scale 1 makes them 0."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(16, 16)
        self.left, self.right = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x: torch.Tensor, right: bool) -> torch.Tensor:
        return (self.right if right else self.left)(self.stem(x))


def branches(seed: int = 0) -> tuple[Branches, Synchroniser]:
    torch.manual_seed(seed)
    model = Branches()
    convert(model, lambda *_: True, emulate=True)
    return model, Synchroniser(model)


X = torch.randn(16, 16, generator=torch.Generator().manual_seed(1))


def backward(model: nn.Module, right: bool) -> dict[str, torch.Tensor]:
    model.zero_grad()
    (1e-6 * model(X, right)).sum().backward()
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def compiled(model: nn.Module, backend: str) -> None:
    torch._dynamo.reset()
    if backend != "eager":
        model.compile(backend=backend, fullgraph=True, dynamic=False)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_branch_has_its_right_first_step_whenever_it_is_first_taken(backend: str) -> None:
    model, synchronise = branches()
    compiled(model, backend)
    for _ in range(3):
        backward(model, right=False)
        synchronise()
    assert (model.stem.first_step, model.left.first_step, model.right.first_step) == (NONE, NONE, ALL)
    late = backward(model, right=True)
    first = backward(branches()[0], right=True)
    for name in ("right.weight", "right.bias"):
        torch.testing.assert_close(late[name], first[name], rtol=0.1, atol=0)
        assert late[name].any()
    synchronise()
    assert model.right.first_step == NONE
    torch._dynamo.reset()


def test_a_layer_whose_output_no_loss_used_has_its_gradients_first_step_still_to_come() -> None:
    """Such as the heads of tasks whose turn it is not: their forward pass ran, with gradients on, and no backward."""
    model, synchronise = branches()
    for head in (model.left, model.right):
        outs = {layer: layer(model.stem(X)) for layer in (model.left, model.right)}
        (1e-6 * outs[head]).sum().backward()
        assert head.weight.grad.any()
        synchronise()
        others = [layer for layer in model.children() if layer not in (head, model.stem) and layer.weight.grad is None]
        assert all(layer.first_step == {"x": False, "w": False, "g": True} for layer in others)


def test_a_frozen_layer_has_its_gradients_first_step_when_it_is_thawed() -> None:
    model, synchronise = branches()
    model.stem.requires_grad_(False)
    backward(model, right=False)
    synchronise()
    assert model.stem.first_step == {"x": False, "w": False, "g": True}
    model.stem.requires_grad_(True)
    assert backward(model, right=False)["stem.weight"].any()
    synchronise()
    assert model.stem.first_step == NONE


def test_a_pass_without_gradients_ends_no_first_step() -> None:
    model, synchronise = branches()
    with torch.no_grad():
        model(X, False)
    with torch.inference_mode():
        model(X, True)
    synchronise()
    assert model.stem.first_step == model.left.first_step == model.right.first_step == ALL


def test_a_block_that_was_skipped_keeps_its_first_step_and_the_block_beside_it_does_not() -> None:
    model = nn.Sequential(block("timm")[0], block("timm")[0])
    convert(model, lambda *_: True, emulate=True)
    assert len(fuse(model, KINDS)[0]) == 2
    synchronise = Synchroniser(model)
    x, grad = data()
    model[1](x).backward(grad)
    synchronise()
    layers = {name: module for name, module in model.named_modules() if isinstance(module, Float8Linear)}
    assert [layer.first_step for name, layer in layers.items() if name.startswith("1.")] == [NONE] * 4
    assert [layer.first_step for name, layer in layers.items() if name.startswith("0.")] == [ALL] * 4
    twin = nn.Sequential(block("timm")[0])
    convert(twin, lambda *_: True, emulate=True)
    fuse(twin, KINDS)
    assert torch.equal(model[0](x), twin[0](x))


def saved(model: nn.Module) -> nn.Module:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("copied", [copy.deepcopy, saved], ids=["deepcopy", "torch.save"])
@pytest.mark.parametrize("moment", ["fresh", "after a step", "within a step"])
def test_a_copy_has_the_first_steps_that_the_model_has(copied: Callable[[nn.Module], nn.Module], moment: str) -> None:
    """Tensors of a copy count their versions anew."""
    model, synchronise = branches()
    if moment == "after a step":
        for _ in range(3):
            backward(model, right=False)
            synchronise()
    if moment == "within a step":
        backward(model, right=False)
    twin = copied(model)
    Synchroniser(twin)()
    synchronise()
    expected = {"fresh": (ALL, ALL, ALL)}.get(moment, (NONE, NONE, ALL))
    assert tuple(layer.first_step for layer in twin.children()) == expected
    assert tuple(layer.first_step for layer in model.children()) == expected


def test_a_move_ends_no_first_step_and_forgets_none_that_ended() -> None:
    model, synchronise = branches()
    for _ in range(2):
        backward(model, right=False)
        synchronise()
    model.double().float()
    synchronise()
    assert [layer.first_step for layer in model.children()] == [NONE, NONE, ALL]
    assert backward(model, right=True)["right.weight"].any()
    model.double().float()
    synchronise()
    assert model.right.first_step == NONE


def test_a_state_has_the_first_steps_and_one_of_the_older_form_is_refused() -> None:
    model, synchronise = branches()
    backward(model, right=False)
    synchronise()
    state = synchronise.state_dict()
    assert state["first_step"] == 6 * [False] + 3 * [True]
    other, theirs = branches(seed=1)
    backward(other, right=True)  # a step that is not finished
    theirs.load_state_dict(state)
    theirs()
    assert [layer.first_step for layer in other.children()] == [NONE, NONE, ALL]
    before = theirs.state_dict()
    for wrong in ({**state, "first_step": False}, {}):
        with pytest.raises(ValueError, match=r"no state of a Synchroniser, or one of an older form"):
            theirs.load_state_dict(wrong)
    assert torch.equal(theirs.state_dict()["scale"], before["scale"])


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_checkpointed_layers_first_step_ends_too(reentrant: bool) -> None:
    model, synchronise = branches()
    checkpoint(model.left, X.clone().requires_grad_(), use_reentrant=reentrant).sum().backward()
    synchronise()
    assert (model.left.first_step, model.right.first_step) == (NONE, ALL)
