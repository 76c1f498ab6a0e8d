"""What happens to a model around training: how it is made, moved, copied, frozen, tied and checkpointed."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch._dynamo
from blocks import HEADS, KINDS, WIDTH, data, fused, step
from timm.models.vision_transformer import Block as TimmBlock
from torch import nn
from torch.utils.checkpoint import checkpoint

from halfstep.fp8.fuse import fuse
from halfstep.fp8.linear import Float8Linear, convert
from halfstep.fp8.synchronise import Synchroniser

X = torch.randn(32, 16, generator=torch.Generator().manual_seed(1))


def linears(**flags: Any) -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))
    convert(model, lambda *_: True, emulate=True, **flags)
    return model


def train(model: nn.Module, synchronise: Synchroniser, steps: int = 2, x: torch.Tensor = X) -> list[torch.Tensor]:
    """Losses; the weights stay, so that two models can be compared."""
    losses = []
    for _ in range(steps):
        loss = model(x).float().square().mean()
        loss.backward()
        synchronise()
        losses.append(loss.detach())
    return losses


def layers(model: nn.Module) -> list[Float8Linear]:
    return [module for module in model.modules() if isinstance(module, Float8Linear)]


def scales(model: nn.Module) -> list[float]:
    return [getattr(layer, f"scale_{tensor}").item() for layer in layers(model) for tensor in "xwg"]


def on_meta(model: Callable[[], nn.Module]) -> nn.Module:
    with torch.device("meta"):
        made = model()
    convert(made, lambda *_: True, emulate=True)
    fuse(made, KINDS)
    return made


MODELS: dict[str, tuple[Callable[[], nn.Module], torch.Tensor]] = {
    "linears": (lambda: nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16)), X),
    "block": (lambda: nn.Sequential(TimmBlock(WIDTH, HEADS, qkv_bias=True)), data()[0]),
}


@pytest.mark.parametrize("way", ["to_empty", "assign"])
@pytest.mark.parametrize("kind", MODELS)
def test_a_model_made_on_the_meta_device_trains_as_one_that_was_not(kind: str, way: str) -> None:
    make, x = MODELS[kind]
    plain = make()
    model = on_meta(make)
    early = Synchroniser(model)
    if way == "to_empty":
        model.to_empty(device="cpu")
        model.load_state_dict(plain.state_dict())
    else:
        model.load_state_dict(plain.state_dict(), assign=True)
    weights = plain.state_dict()
    convert(plain, lambda *_: True, emulate=True)
    fuse(plain, KINDS)
    assert torch.equal(torch.stack(train(model, early, x=x)), torch.stack(train(plain, Synchroniser(plain), x=x)))
    assert scales(model) == scales(plain)
    assert model.state_dict().keys() == weights.keys()


def test_to_empty_keeps_scales_and_amaxes_which_nobody_else_would_make_again() -> None:
    model = linears()
    synchronise = Synchroniser(model)
    train(model, synchronise)
    model(X)
    before = [buffer.clone() for buffer in model.buffers()]
    model.to_empty(device="cpu")
    assert all(map(torch.equal, model.buffers(), before))


def test_a_layer_that_lost_its_scales_on_the_meta_device_starts_anew() -> None:
    model = linears()
    train(model, Synchroniser(model))
    model.to("meta").to_empty(device="cpu")
    assert set(scales(model)) == {1.0}
    assert all(all(layer.first_step.values()) for layer in layers(model))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("kind", ["linears", "block"])
def test_a_model_in_another_dtype_computes_in_it_and_keeps_scales_in_fp32(kind: str, dtype: torch.dtype) -> None:
    model, x = (linears(), X) if kind == "linears" else (fused("timm"), data()[0])
    synchronise = Synchroniser(model)
    truth = model(x)
    train(model, synchronise, x=x)
    addresses = [buffer.data_ptr() for buffer in model.buffers()]
    model.to(dtype)
    assert {buffer.dtype for buffer in model.buffers()} == {torch.float32}
    assert [buffer.data_ptr() for buffer in model.buffers()] == addresses  # a CUDA graph knows them by address
    out = model(x.to(dtype))
    assert out.dtype == dtype
    assert (out.float() - truth).norm() < 0.1 * truth.norm()
    model.zero_grad()
    out.float().sum().backward()
    assert {p.grad.dtype for p in model.parameters()} == {dtype}
    assert all(p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("kind", ["linears", "block"])
def test_a_model_in_fp64_is_refused_and_is_right_again_in_fp32(kind: str) -> None:
    model, x = (linears(), X) if kind == "linears" else (fused("timm"), data()[0])
    expected = model(x)
    model.double()
    with pytest.raises(TypeError, match=r"in fp32, bf16, fp16; this input is torch.float64"):
        model(x.double())
    with pytest.raises(TypeError, match=r"in fp32, bf16, fp16; this weight is torch.float64"):
        model(x)
    assert torch.equal(model.float()(x), expected)


def test_a_model_in_shared_memory_trains_there() -> None:
    model, other = linears(), linears()
    synchronise = Synchroniser(model)
    model.share_memory()
    addresses = [buffer.data_ptr() for buffer in model.buffers()]
    assert all(map(torch.equal, train(model, synchronise), train(other, Synchroniser(other))))
    assert all(buffer.is_shared() for buffer in model.buffers())
    assert [buffer.data_ptr() for buffer in model.buffers()] == addresses


def through_file(parts: Any) -> Any:
    file = io.BytesIO()
    torch.save(parts, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


COPIES = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda parts: pickle.loads(pickle.dumps(parts)),
    "torch.save": through_file,
}


@pytest.mark.parametrize("way", COPIES)
@pytest.mark.parametrize("kind", ["linears", "block"])
def test_a_copy_trains_on_with_the_same_bits_and_leaves_the_model_alone(kind: str, way: str) -> None:
    model, x = (linears(), X) if kind == "linears" else (fused("timm"), data()[0])
    synchronise = Synchroniser(model)
    train(model, synchronise, x=x)
    twin, theirs = COPIES[way]((model, synchronise))
    before = scales(model)
    losses = train(twin, theirs, x=3 * x)
    assert scales(model) == before != scales(twin)
    assert all(map(torch.equal, losses, train(model, synchronise, x=3 * x)))
    assert scales(model) == scales(twin)


@pytest.mark.parametrize("kind", ["linears", "block"])
def test_eval_and_passes_without_gradients_change_nothing(kind: str) -> None:
    model, x = (linears(), X) if kind == "linears" else (fused("timm"), data()[0])
    synchronise = Synchroniser(model)
    train(model, synchronise, x=x)
    before = [buffer.clone() for buffer in model.buffers()]
    expected = model(x).detach()
    synchronise.load_state_dict(synchronise.state_dict())
    model.eval()
    for context in (torch.no_grad(), torch.inference_mode()):
        with context:
            assert torch.equal(model(x), expected)
            model(100 * x)
    assert all(map(torch.equal, model.buffers(), before))
    model.train()
    assert all(module.training for module in model.modules())
    assert torch.equal(model(x), expected)


def test_a_model_converted_in_inference_mode_trains() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))
    with torch.inference_mode():
        convert(model, lambda *_: True, emulate=True)
        synchronise = Synchroniser(model)
    other = linears()
    assert all(map(torch.equal, train(model, synchronise), train(other, Synchroniser(other))))


FROZEN: dict[str, Callable[[nn.Module], list[nn.Parameter]]] = {
    "weights": lambda model: [p for p in model.parameters() if p.dim() > 1],
    "biases": lambda model: [p for p in model.parameters() if p.dim() == 1],
    "all": lambda model: list(model.parameters()),
}


@pytest.mark.parametrize("of_x", [True, False])
@pytest.mark.parametrize("what", FROZEN)
@pytest.mark.parametrize("kind", ["linears", "block"])
def test_what_is_frozen_has_no_gradient_and_the_rest_has_its_own(kind: str, what: str, of_x: bool) -> None:
    def made() -> nn.Module:
        return linears() if kind == "linears" else fused("timm")

    x = X if kind == "linears" else data()[0]
    whole, model = made(), made()
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    frozen = {names[id(parameter)] for parameter in FROZEN[what](model)}
    for parameter in FROZEN[what](model):
        parameter.requires_grad_(False)
    if what == "all" and not of_x:
        assert not model(x).requires_grad
        return
    leaf = x.clone().requires_grad_(of_x)
    model(leaf).square().sum().backward()
    expected = x.clone().requires_grad_()
    whole(expected).square().sum().backward()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}
    assert gradients.keys() == dict(whole.named_parameters()).keys() - frozen
    assert all(torch.equal(gradients[name], whole.get_parameter(name).grad) for name in gradients)
    assert leaf.grad is None if not of_x else torch.equal(leaf.grad, expected.grad)


def test_tied_weights_are_one_after_conversion_moving_and_training() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(32, 16)
            self.inner, self.again = nn.Linear(16, 16, bias=False), nn.Linear(16, 16, bias=False)
            self.head = nn.Linear(16, 32, bias=False)
            self.again.weight, self.head.weight = self.inner.weight, self.embedding.weight

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            return self.head(self.again(self.inner(self.embedding(tokens))))

    torch.manual_seed(0)
    model = Tied()
    plain = copy.deepcopy(model)
    convert(model, lambda *_: True, emulate=True)
    model.bfloat16().float()
    plain.load_state_dict(model.state_dict())
    synchronise = Synchroniser(model)
    tokens = torch.arange(32)
    for _ in range(2):
        for one in (model, plain):
            one.zero_grad()
            one(tokens).square().sum().backward()
        synchronise()
    assert model.head.weight is model.embedding.weight and model.again.weight is model.inner.weight
    assert len(list(model.parameters())) == 2
    assert model.again.scale_x.item() != model.inner.scale_x.item()
    for ours, exact in zip(model.parameters(), plain.parameters(), strict=True):
        assert (ours.grad - exact.grad).norm() < 0.2 * exact.grad.norm()


@pytest.mark.parametrize("flags", [{}, {"pre_and_post_forward": True}], ids=str)
@pytest.mark.parametrize("reentrant", [True, False], ids=["reentrant", "not reentrant"])
@pytest.mark.parametrize("kind", ["linears", "block"])
def test_checkpointing_changes_no_bit(kind: str, reentrant: bool, flags: dict[str, bool]) -> None:
    def run(checkpointed: bool) -> list[torch.Tensor]:
        model, x = (linears(**flags), X) if kind == "linears" else (fused("timm", **flags), data()[0])
        synchronise = Synchroniser(model)
        seen = []
        for factor in (1, 3):
            leaf = (factor * x).requires_grad_()
            out = checkpoint(model, leaf, use_reentrant=reentrant) if checkpointed else model(leaf)
            out.square().sum().backward()
            seen += [out.detach(), leaf.grad, *(buffer.clone() for buffer in model.buffers())]
            synchronise()
        return [*seen, *model.buffers(), *(parameter.grad for parameter in model.parameters())]

    assert all(map(torch.equal, run(True), run(False)))


@pytest.mark.parametrize("kind", ["linears", "block"])
def test_checkpointing_inside_compiled_code_changes_no_bit(kind: str) -> None:
    class Model(nn.Module):
        def __init__(self, inner: nn.Module, checkpointed: bool) -> None:
            super().__init__()
            self.inner, self.checkpointed = inner, checkpointed

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return checkpoint(self.inner, x, use_reentrant=False) if self.checkpointed else self.inner(x)

    def run(checkpointed: bool) -> list[torch.Tensor]:
        inner, x = (linears(), X) if kind == "linears" else (fused("timm"), data()[0])
        model = Model(inner, checkpointed)
        if checkpointed:
            model.compile(backend="aot_eager", fullgraph=True, dynamic=False)
        losses = train(model, Synchroniser(model), 3, x.clone().requires_grad_())
        return [*losses, *model.buffers(), *(parameter.grad for parameter in model.parameters())]

    torch._dynamo.reset()
    assert all(map(torch.equal, run(True), run(False)))
    torch._dynamo.reset()


def test_gradients_of_several_passes_add_up() -> None:
    """Of linear layers; test_fp8_block.py has it of a block."""
    model = linears(amax_init=False)
    grads = []
    for factor in (1, 2):
        model.zero_grad()
        model(factor * X).sum().backward()
        grads.append([parameter.grad.clone() for parameter in model.parameters()])
    model.zero_grad()
    for factor in (1, 2):
        model(factor * X).sum().backward()
    for parameter, one, two in zip(model.parameters(), *grads, strict=True):
        torch.testing.assert_close(parameter.grad, one + two)


def test_a_synchroniser_made_before_the_model_was_moved_follows_it() -> None:
    """To the device that this machine has beside the CPU: the meta device, which computes nothing but says where."""
    model = linears()
    synchronise = Synchroniser(model)
    train(model, synchronise)
    model.to("meta")
    synchronise()
    assert {tensor.device.type for tensor in (synchronise.history, synchronise.largest, *model.buffers())} == {"meta"}
    assert synchronise.state_dict()["scale"].is_meta
    model.to_empty(device="cpu")
    for parameter in model.parameters():
        nn.init.ones_(parameter.data)
    train(model, synchronise)
    assert synchronise.history.count_nonzero(dim=1).tolist() == [6, 6] + 14 * [0]


def test_a_model_on_several_devices_is_refused_and_its_parts_are_not() -> None:
    model = linears()
    late = Synchroniser(model)
    model[2].to("meta")
    with pytest.raises(ValueError, match=r"are on cpu and meta, .* make one of each part of the model"):
        Synchroniser(model)
    with pytest.raises(ValueError, match=r"are on cpu and meta"):
        late()
    Synchroniser(model[0])()
    Synchroniser(model[2])()


def test_an_empty_model_has_nothing_to_convert() -> None:
    for model in (nn.Sequential(), nn.Module(), nn.ModuleList()):
        assert convert(model, lambda *_: True) == []
        assert fuse(model, KINDS) == ([], {})
        with pytest.raises(ValueError, match="no Float8Linear"):
            Synchroniser(model)


def test_a_step_is_that_of_a_model_that_was_never_touched() -> None:
    """All of the above at once, and none of it in the way."""
    model = fused("timm")
    plain = fused("timm")
    model = copy.deepcopy(model).eval().train().share_memory().to("cpu").requires_grad_(False).requires_grad_(True)
    assert all(map(torch.equal, step(model, *data()).values(), step(plain, *data()).values()))
