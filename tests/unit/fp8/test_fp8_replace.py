"""What people set on a module before it is replaced: it stays, or the module is refused with the reason."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from blocks import KINDS, LAYERS, block, data, fused
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune, spectral_norm, weight_norm

from halfstep.fp8.fuse import FusedBlock, fuse
from halfstep.fp8.linear import Float8Linear, convert
from halfstep.fp8.synchronise import Synchroniser


class Called:
    """Counts what was called, and with which module."""

    def __init__(self) -> None:
        self.names: Counter[str] = Counter()
        self.modules: list[Any] = []

    def hook(self, name: str) -> Callable[..., None]:
        def call(*arguments: Any, **_: Any) -> None:
            self.names[name] += 1
            self.modules += [argument for argument in arguments if isinstance(argument, nn.Module)]

        return call


def with_hooks(module: nn.Module, called: Called) -> list[Any]:
    """Their handles; one of each kind that torch has."""
    return [
        module.register_forward_pre_hook(called.hook("forward pre")),
        module.register_forward_pre_hook(called.hook("forward pre with kwargs"), with_kwargs=True),
        module.register_forward_hook(called.hook("forward")),
        module.register_forward_hook(called.hook("forward with kwargs"), with_kwargs=True),
        module.register_forward_hook(called.hook("forward always"), always_call=True),
        module.register_full_backward_pre_hook(called.hook("full backward pre")),
        module.register_full_backward_hook(called.hook("full backward")),
        module.register_state_dict_pre_hook(called.hook("state dict pre")),
        module.register_state_dict_post_hook(called.hook("state dict post")),
        module.register_load_state_dict_pre_hook(called.hook("load pre")),
        module._register_load_state_dict_pre_hook(called.hook("load pre, without the module")),
        module.register_load_state_dict_post_hook(called.hook("load post")),
    ]


def use(model: nn.Module, x: torch.Tensor) -> None:
    model(x.clone().requires_grad_()).sum().backward()
    model.load_state_dict(model.state_dict())


def converted() -> tuple[nn.Sequential, Called, list[Any], torch.Tensor]:
    model, called = nn.Sequential(nn.Linear(16, 16)), Called()
    handles = with_hooks(model[0], called)
    convert(model, lambda *_: True, emulate=True)
    return model, called, handles, torch.ones(16, 16)


def in_a_block() -> tuple[nn.Sequential, Called, list[Any], torch.Tensor]:
    model, called = block("timm"), Called()
    handles = with_hooks(model[0], called)
    convert(model, lambda *_: True, emulate=True)
    assert fuse(model, KINDS) == (["0"], {})
    return model, called, handles, data()[0]


@pytest.mark.parametrize("made", [converted, in_a_block])
def test_hooks_of_every_kind_stay_and_can_be_removed(made: Callable[..., Any]) -> None:
    model, called, handles, x = made()
    use(model, x)
    assert called.names == dict.fromkeys(called.names, 1)
    assert len(called.names) == len(handles)
    assert all(module is model[0] for module in called.modules)
    for handle in handles:
        handle.remove()
    use(model, x)
    assert set(called.names.values()) == {1}


@pytest.mark.filterwarnings("ignore:Using a non-full backward hook")
def test_a_backward_hook_of_the_old_kind_stays_too() -> None:
    model, called = nn.Sequential(nn.Linear(16, 16)), Called()
    model[0].register_backward_hook(called.hook("backward"))
    convert(model, lambda *_: True, emulate=True)
    use(model, torch.ones(16, 16))
    assert called.names == {"backward": 1}


def test_a_hook_may_change_what_passes() -> None:
    model = nn.Sequential(nn.Linear(16, 16))
    model[0].register_forward_hook(lambda module, inputs, out: 0 * out)
    model[0].register_full_backward_hook(lambda module, of_input, of_output: (7 + 0 * of_input[0],))
    convert(model, lambda *_: True, emulate=True)
    x = torch.ones(16, 16, requires_grad=True)
    out = model(x)
    out.sum().backward()
    assert not out.any() and (x.grad == 7).all()


@pytest.mark.parametrize("made", [converted, in_a_block])
def test_attributes_buffers_and_modules_stay(made: Callable[..., Any]) -> None:
    """With their names in the state dict, and for a copy."""
    model = nn.Sequential(nn.Linear(16, 16)) if made is converted else block("timm")
    model[0].tag = "mine"
    model[0].register_buffer("seen", torch.ones(3))
    model[0].register_buffer("scratch", torch.ones(3), persistent=False)
    if made is converted:
        model[0].register_parameter("extra", nn.Parameter(torch.ones(2)))
        model[0].inner = nn.Identity()
    names = list(model.state_dict())
    convert(model, lambda *_: True, emulate=True)
    if made is in_a_block:
        assert fuse(model, KINDS) == (["0"], {})
    for one in (model, copy.deepcopy(model)):
        assert one[0].tag == "mine" and type(one[0]) in (Float8Linear, FusedBlock)
        assert list(one.state_dict()) == names
        assert one[0].scratch.tolist() == [1, 1, 1]
    assert model.to(torch.bfloat16)[0].seen.dtype == torch.bfloat16
    if made is converted:
        assert isinstance(model[0].inner, nn.Identity)


def test_the_replaced_layer_knows_nothing_of_the_new_ones_buffers() -> None:
    linear = nn.Linear(16, 16)
    Float8Linear(linear, emulate=True)
    assert not list(linear.buffers())


class Doubled(nn.Module):
    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return 2 * weight


COMPUTED: dict[str, Callable[[nn.Linear], object]] = {
    "a parametrization": lambda linear: parametrize.register_parametrization(linear, "weight", Doubled()),
    "weight norm": parametrizations.weight_norm,
    "weight norm of the older kind": weight_norm,
    "spectral norm": parametrizations.spectral_norm,
    "spectral norm of the older kind": spectral_norm,
    "pruning": lambda linear: prune.l1_unstructured(linear, "weight", 0.5),
}


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("kind", COMPUTED)
def test_a_weight_that_is_computed_is_refused_by_name_and_nothing_is_changed(kind: str) -> None:
    model = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 16))
    COMPUTED[kind](model[1])
    with pytest.raises(ValueError, match=r"^1: the weight of this layer is computed before each forward pass"):
        convert(model, lambda *_: True, emulate=True)
    assert type(model[0]) is nn.Linear
    assert convert(model, lambda name, _: name == "0", emulate=True) == ["0"]


def test_a_layer_whose_call_is_not_its_classs_is_refused() -> None:
    patched, compiled = (nn.Sequential(nn.Linear(16, 16)) for _ in range(2))
    patched[0].forward = lambda x: x
    compiled[0].compile(backend="eager")
    with pytest.raises(ValueError, match=r"^0: this layer has a forward of its own in place of its class's"):
        convert(patched, lambda *_: True, emulate=True)
    with pytest.raises(ValueError, match=r"^0: this layer is compiled already, and that would be lost"):
        convert(compiled, lambda *_: True, emulate=True)


def hooked(path: str, register: str) -> Callable[[nn.Sequential], object]:
    return lambda model: getattr(model[0].get_submodule(path), register)(lambda *_: None)


def patched(model: nn.Sequential) -> None:
    inner = model[0].attn
    inner.forward = lambda x: x


NOT_FUSED: dict[str, tuple[Callable[[nn.Sequential], object], str]] = {
    **{
        f"{register} of {path}": (hooked(path, register), f"{path} has a hook, which a fused block would not call")
        for path in ("norm1", "attn", "attn.qkv", "mlp.act", "mlp.drop1")
        for register in (
            "register_forward_hook",
            "register_forward_pre_hook",
            "register_full_backward_hook",
            "register_full_backward_pre_hook",
        )
    },
    "another forward inside": (patched, "attn has a forward of its own in place of its class's"),
    "another forward": (lambda model: setattr(model[0], "forward", lambda x: x), "it has a forward of its own"),
    "compiled": (lambda model: model[0].compile(backend="eager"), "it is compiled already"),
    "a parametrization": (
        lambda model: parametrize.register_parametrization(model[0].attn.qkv, "weight", Doubled()),
        "attn.qkv.parametrizations.weight.0, a Doubled, which is not part of a fused block",
    ),
    "a parametrized norm": (
        lambda model: parametrize.register_parametrization(model[0].norm1, "weight", Doubled()),
        "norm1 is not torch's LayerNorm",
    ),
}


@pytest.mark.parametrize("case", NOT_FUSED)
def test_what_a_fused_block_would_skip_keeps_it_from_being_fused(case: str) -> None:
    change, reason = NOT_FUSED[case]
    model = block("timm")
    convert(model, lambda *_: True, emulate=True)
    change(model)
    names, left = fuse(model, KINDS)
    assert names == [] and reason in left["0"]
    assert not isinstance(model[0], FusedBlock)


def test_hooks_on_saving_and_loading_inside_a_block_are_called_and_it_is_fused() -> None:
    model, called = block("timm"), Called()
    model[0].attn.qkv.register_state_dict_post_hook(called.hook("save"))
    model[0].attn.register_load_state_dict_pre_hook(called.hook("load"))
    convert(model, lambda *_: True, emulate=True)
    assert fuse(model, KINDS) == (["0"], {})
    model.load_state_dict(model.state_dict())
    assert called.names == {"save": 1, "load": 1}
    assert called.modules == [model[0].attn.qkv, model[0].attn]


@pytest.mark.parametrize("kind", LAYERS)
def test_a_hook_inside_a_block_that_is_fused_already_is_an_error(kind: str) -> None:
    model = fused(kind)
    handle = model.get_submodule(f"0.{LAYERS[kind][4]}").register_forward_hook(lambda *_: None)
    with pytest.raises(RuntimeError, match=r"has got a hook, which would not be called.*register hooks before fuse"):
        model(data()[0])
    handle.remove()
    model(data()[0])


def test_a_block_in_several_places_is_fused_in_all_of_them() -> None:
    model = block("timm")
    model.append(model[0])
    convert(model, lambda *_: True, emulate=True)
    assert fuse(model, KINDS) == (["0"], {})
    assert model[0] is model[1] and isinstance(model[1], FusedBlock)
    assert len(Synchroniser(model).linears) == 4
