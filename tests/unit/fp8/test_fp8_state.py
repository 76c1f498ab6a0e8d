"""Saving and loading: a training goes on with the same bits, and plain weights come and go as if there were no FP8."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed import checkpoint

from halfstep.fp8.fuse import fuse
from halfstep.fp8.linear import Float8Linear, convert
from halfstep.fp8.synchronise import Synchroniser
from halfstep.recipes.norms import layernorm
from halfstep.recipes.precision.native_delayed import LM_BLOCK
from halfstep.workloads.lm import LM

CONTEXT, VOCABULARY = 16, 64
STEPS, INTERRUPTED = 6, 3


class Training:
    """A small Transformer with fused blocks, or without FP8; all its steps are those of the same data."""

    def __init__(self, seed: int = 0, fp8: bool = True, history_length: int = 4) -> None:
        torch.manual_seed(seed)
        self.model = LM.build(layernorm, vocabulary=VOCABULARY, context=CONTEXT, width=32, depth=2, heads=2)
        if fp8:
            convert(self.model, lambda *_: True, emulate=True)
            assert len(fuse(self.model, [LM_BLOCK])[0]) == 2
        self.synchronise = Synchroniser(self.model, history_length) if fp8 else None
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)

    def run(self, first: int, end: int) -> list[torch.Tensor]:
        """The losses of the steps from `first` to before `end`, of which each is on data of its own."""
        losses = []
        for step in range(first, end):
            data = LM.batch(2, 0, torch.Generator().manual_seed(step), vocabulary=VOCABULARY, context=CONTEXT)
            with torch.autocast("cpu", torch.bfloat16):
                loss = LM.loss(self.model, *data)
            loss.backward()
            if self.synchronise:
                self.synchronise()
            self.optimizer.step()
            self.optimizer.zero_grad()
            losses.append(loss.detach())
        return losses

    def parts(self) -> dict[str, Any]:
        parts = {"model": self.model, "optimizer": self.optimizer}
        return {**parts, "fp8": self.synchronise} if self.synchronise else parts

    def save(self, path: Path) -> None:
        torch.save({name: part.state_dict() for name, part in self.parts().items()}, path)

    def load(self, path: Path, *parts: str) -> None:
        state = torch.load(path, weights_only=True)
        for name in parts or self.parts():
            self.parts()[name].load_state_dict(state[name])

    def bits(self) -> list[torch.Tensor]:
        state = self.synchronise.state_dict() if self.synchronise else {}
        found = [*self.model.state_dict().values(), *(state[name] for name in ("history", "scale") if state)]
        return [tensor.clone() for tensor in found]


def same(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    return len(a) == len(b) and all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("interrupted", [0, INTERRUPTED])
def test_an_interrupted_training_goes_on_with_the_same_bits(tmp_path: Path, interrupted: int) -> None:
    """After step 0 too, where the first step is still to come."""
    whole, before, after = Training(), Training(), Training(seed=1)
    losses = whole.run(0, STEPS)
    before.run(0, interrupted)
    before.save(tmp_path / "training.pt")
    after.run(0, 2)  # what it knew goes
    after.load(tmp_path / "training.pt")
    assert same(after.run(interrupted, STEPS), losses[interrupted:])
    assert same(after.bits(), whole.bits())


def test_without_the_state_it_starts_as_a_fresh_one_and_not_with_the_same_bits(tmp_path: Path) -> None:
    """What the test above is worth."""
    whole, before, after = Training(), Training(), Training(seed=1)
    losses = whole.run(0, STEPS)
    before.run(0, INTERRUPTED)
    before.save(tmp_path / "training.pt")
    after.load(tmp_path / "training.pt", "model", "optimizer")
    assert not same(after.run(INTERRUPTED, STEPS), losses[INTERRUPTED:])


def test_a_checkpoint_without_fp8_loads_and_starts_as_a_fresh_model_does(tmp_path: Path) -> None:
    plain, converted = Training(fp8=False), Training(seed=1)
    plain.run(0, INTERRUPTED)
    plain.save(tmp_path / "plain.pt")
    converted.load(tmp_path / "plain.pt", "model", "optimizer")
    fresh = Training(seed=2)
    fresh.model = copy.deepcopy(plain.model)
    convert(fresh.model, lambda *_: True, emulate=True)
    fuse(fresh.model, [LM_BLOCK])
    fresh.synchronise = Synchroniser(fresh.model, 4)
    fresh.optimizer = torch.optim.AdamW(fresh.model.parameters())
    fresh.optimizer.load_state_dict(plain.optimizer.state_dict())
    assert same(converted.run(INTERRUPTED, STEPS), fresh.run(INTERRUPTED, STEPS))
    assert same(converted.bits(), fresh.bits())


def test_a_checkpoint_with_fp8_loads_into_a_model_without(tmp_path: Path) -> None:
    trained, plain = Training(), Training(seed=1, fp8=False)
    trained.run(0, INTERRUPTED)
    trained.save(tmp_path / "fp8.pt")
    plain.load(tmp_path / "fp8.pt")
    assert same(plain.bits(), [tensor.detach() for tensor in trained.model.state_dict().values()])
    assert all(loss.isfinite() for loss in plain.run(INTERRUPTED, STEPS))


def test_a_training_is_saved_by_torch_distributed_checkpoint_too(tmp_path: Path) -> None:
    whole, before, after = Training(), Training(), Training(seed=1)
    losses = whole.run(0, STEPS)
    before.run(0, INTERRUPTED)
    after.run(0, 1)  # so that the optimizer has a state to load into
    checkpoint.save(before.parts(), checkpoint_id=tmp_path, no_dist=True)
    checkpoint.load(after.parts(), checkpoint_id=tmp_path, no_dist=True)
    assert same(after.run(INTERRUPTED, STEPS), losses[INTERRUPTED:])


def test_a_state_is_a_copy_and_is_loaded_in_place() -> None:
    """A CUDA graph knows the tensors by address."""
    training = Training()
    training.run(0, 2)
    state = training.synchronise.state_dict()
    kept = copy.deepcopy(state)
    addresses = [tensor.data_ptr() for tensor in (*training.model.buffers(), training.synchronise.history)]
    training.run(2, 4)
    assert torch.equal(state["history"], kept["history"]) and torch.equal(state["scale"], kept["scale"])
    training.synchronise.load_state_dict(state)
    assert [tensor.data_ptr() for tensor in (*training.model.buffers(), training.synchronise.history)] == addresses


@pytest.mark.parametrize("length", [2, 8])
def test_a_history_of_another_length_keeps_the_latest_steps(length: int) -> None:
    training, other = Training(history_length=4), Training(history_length=length)
    training.run(0, 4)
    other.run(0, 1)
    other.synchronise.load_state_dict(training.synchronise.state_dict())
    assert torch.equal(other.synchronise.history[:4], training.synchronise.history[:length])
    assert other.synchronise.history[4:].count_nonzero() == 0
    assert torch.equal(other.synchronise.state_dict()["scale"], training.synchronise.state_dict()["scale"])


def test_amaxes_of_a_step_that_was_not_finished_are_forgotten() -> None:
    training = Training()
    training.run(0, 2)
    state = training.synchronise.state_dict()
    training.model(torch.zeros(2, CONTEXT, dtype=torch.int64))
    linears = [module for module in training.model.modules() if isinstance(module, Float8Linear)]
    assert all(linear.amax_x.item() for linear in linears)
    training.synchronise.load_state_dict(state)
    assert not any(linear.amax_x.item() for linear in linears)


def test_a_state_of_another_model_is_refused_in_a_sentence_and_changes_nothing() -> None:
    training = Training()
    training.run(0, 2)
    other = nn.Sequential(nn.Linear(16, 16))
    convert(other, lambda *_: True, emulate=True)
    before = training.bits()
    with pytest.raises(ValueError, match=r"of 1 FP8 layers, with '0' among them, .* 9, with 'blocks.0.attention.qkv'"):
        training.synchronise.load_state_dict(Synchroniser(other).state_dict())
    assert same(training.bits(), before)


def test_a_copy_of_model_and_synchroniser_goes_its_own_way() -> None:
    training = Training()
    training.run(0, 1)
    other = Training()
    parts = training.model, training.synchronise, training.optimizer
    other.model, other.synchronise, other.optimizer = copy.deepcopy(parts)
    kept = training.bits()
    losses = other.run(1, 3)
    assert same(training.bits(), kept) and not same(other.bits(), kept)
    assert same(training.run(1, 3), losses)
    assert same(training.bits(), other.bits())
