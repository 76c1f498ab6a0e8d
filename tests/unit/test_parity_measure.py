"""What a parity run keeps of each step, and that the Vision Transformer learns to read."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.optimizer import _global_optimizer_pre_hooks, register_optimizer_step_pre_hook

from halfstep.errors import Invalid
from halfstep.measure import parity
from halfstep.measure.parity import Watch
from halfstep.parity import glyphs
from halfstep.parity.plan import ParityRun, parity_keys, resolve_parity
from halfstep.recipes.precision.precision import Precision
from halfstep.runs import Scope
from halfstep.study import validate

CPU = torch.device("cpu")

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def watch() -> Iterator[Watch]:
    found = Watch(0.01, CPU)
    handle = register_optimizer_step_pre_hook(found)
    yield found
    handle.remove()


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 1))


def backward(network: nn.Module) -> float:
    """The norm of the gradients that it leaves."""
    network(torch.ones(2, 4)).sum().backward()
    return math.sqrt(sum(float((p.grad.double() ** 2).sum()) for p in network.parameters() if p.grad is not None))


class Scaled:
    """A precision that scales its loss."""

    @staticmethod
    def loss_scale() -> torch.Tensor:
        return torch.tensor(8.0)


@pytest.mark.parametrize("make", [torch.optim.Adam, torch.optim.AdamW])
def test_it_sees_what_an_optimizer_takes_and_sets_its_learning_rate(watch: Watch, make: Any) -> None:
    network = model()
    optimizer = make(network.parameters(), lr=123.0)
    norm = backward(network)
    optimizer.step()
    assert watch.norm.item() == pytest.approx(norm, rel=1e-6)
    assert [group["lr"] for group in optimizer.param_groups] == [0.01]
    assert (watch.calls, watch.parameters, watch.with_gradient) == (1, 49, 49)


def test_a_learning_rate_on_the_device_stays_there(watch: Watch) -> None:
    network = model()
    optimizer = torch.optim.Adam(network.parameters(), lr=torch.tensor(1.0), foreach=False)
    rate = optimizer.param_groups[0]["lr"]
    backward(network)
    optimizer.step()
    assert optimizer.param_groups[0]["lr"] is rate
    assert rate.item() == pytest.approx(0.01)


def test_a_schedule_of_the_recipe_is_left_alone_after_the_first_step(watch: Watch) -> None:
    network = model()
    optimizer = torch.optim.Adam(network.parameters())
    for _ in range(2):
        backward(network)
        optimizer.step()
        optimizer.param_groups[0]["lr"] = 0.005
    assert optimizer.param_groups[0]["lr"] == 0.005


def test_parameters_without_a_gradient_are_counted(watch: Watch) -> None:
    network = model()
    network[0].bias.requires_grad_(False)
    optimizer = torch.optim.Adam(network.parameters())
    backward(network)
    optimizer.step()
    assert (watch.parameters, watch.with_gradient) == (49, 41)


def test_bf16_gradients_are_summed_in_fp32(watch: Watch) -> None:
    network = model().bfloat16()
    optimizer = torch.optim.Adam(network.parameters())
    network(torch.ones(2, 4, dtype=torch.bfloat16)).sum().backward()
    exact = math.sqrt(sum(float((p.grad.double() ** 2).sum()) for p in network.parameters()))
    optimizer.step()
    assert watch.norm.item() == pytest.approx(exact, rel=1e-6)


# gradients that are still multiplied by the loss's scale


def test_a_scale_that_the_optimizer_was_told_is_divided_out(watch: Watch) -> None:
    """As GradScaler tells torch's fused ones: by an attribute."""
    network = model()
    optimizer = torch.optim.Adam(network.parameters(), fused=True)
    watch.precision = Scaled()
    optimizer.grad_scale, optimizer.found_inf = torch.tensor(8.0), torch.tensor(0.0)
    norm = backward(network)
    optimizer.step()
    assert watch.norm.item() == pytest.approx(norm / 8, rel=1e-6)


def test_a_scaler_that_the_optimizer_was_given_is_too(watch: Watch) -> None:
    """As GradScaler gives itself to those of Apex and Transformer Engine that a CUDA graph can hold."""

    class Given(torch.optim.SGD):
        def step(self, closure: Any = None, grad_scaler: Any = None) -> None: ...

    network = model()
    watch.precision = Scaled()
    optimizer = Given(network.parameters(), lr=1.0)
    norm = backward(network)
    optimizer.step(grad_scaler=object())
    assert watch.norm.item() == pytest.approx(norm / 8, rel=1e-6)


def test_gradients_that_were_divided_already_are_taken_as_they_are(watch: Watch) -> None:
    network = model()
    watch.precision = Scaled()
    optimizer = torch.optim.Adam(network.parameters())
    norm = backward(network)
    optimizer.step()
    assert watch.norm.item() == pytest.approx(norm, rel=1e-6)


@pytest.mark.parametrize("fused", [True, False])
def test_the_real_gradscaler(watch: Watch, fused: bool) -> None:
    network = model()
    optimizer = torch.optim.Adam(network.parameters(), fused=fused)
    norm = backward(network)
    network.zero_grad()
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)

    class Real:
        @staticmethod
        def loss_scale() -> Any:
            return scaler._scale

    watch.precision = Real()
    scaler.scale(network(torch.ones(2, 4)).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    assert watch.norm.item() == pytest.approx(norm, rel=1e-5)


# whole runs


def run_of(workload: str, **settings: Any) -> ParityRun:
    comparison = {"workload": workload, "baseline": "it", "variants": {"it": settings}}
    study, scope = validate({"parity": "always", "comparisons": {"c": comparison}}), Scope("cpu", "smoke")
    return resolve_parity(study, scope, [key for key in parity_keys(study, scope) if key.seed == 1][-1])


def measured(run: ParityRun) -> dict[str, Any]:
    return parity.measure(run.model_dump(), lambda event, **details: None)


class Silent:
    """An optimizer that is none of torch's."""

    def __init__(self, parameters: Any, capturable: bool) -> None:
        self.parameters = list(parameters)

    def step(self) -> None: ...

    def zero_grad(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None


def test_an_optimizer_that_cannot_be_watched_is_no_parity_run() -> None:
    run = run_of("lm", optimizer="adamw_foreach").model_copy(update={"steps": 2})
    run.modules["optimizer"] = f"{__name__}:Silent"
    with pytest.raises(Invalid, match="no optimizer of torch's kind took a step"):
        measured(run)


class Overflows(Precision):
    """Its first two updates are skipped, as GradScaler's are whose scale is too large at first."""

    def __init__(self, device: torch.device, weights: torch.dtype) -> None:
        super().__init__(device, weights)
        self.scale, self.largest = 1024.0, 256.0

    def backward(self, loss: torch.Tensor) -> None:
        (loss * self.scale).backward()

    def update(self, optimizer: torch.optim.Optimizer) -> None:
        if self.scale > self.largest:
            self.scale /= 2
            return
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad /= self.scale
        optimizer.step()

    def loss_scale(self) -> float:
        return self.scale


class OverflowsForEver(Overflows):
    def __init__(self, device: torch.device, weights: torch.dtype) -> None:
        super().__init__(device, weights)
        self.largest = 0.0


def test_a_skipped_update_is_made_up_for() -> None:
    """So the run is no update behind: it has the losses and gradients of fp32, step by step."""
    run = run_of("lm", precision="bf16").model_copy(update={"steps": 6})
    run.modules["precision"] = f"{__name__}:Overflows"
    found, fp32 = measured(run)["curve"], measured(run_of("lm").model_copy(update={"steps": 6}))["curve"]
    assert [row["skipped"] for row in found] == [2, 0, 0, 0, 0, 0]
    for ours, theirs in zip(found, fp32, strict=True):
        assert ours["data"] == theirs["data"]
        assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-4)
        assert ours["gradient_norm"] == pytest.approx(theirs["gradient_norm"], rel=1e-2)


def test_a_scale_that_never_fits_is_invalid() -> None:
    run = run_of("lm", precision="bf16").model_copy(update={"steps": 2})
    run.modules["precision"] = f"{__name__}:OverflowsForEver"
    with pytest.raises(Invalid, match="skipped 31 times in a row"):
        measured(run)


def test_a_run_leaves_nothing_behind_and_repeats_itself() -> None:
    run = run_of("lm", precision="bf16").model_copy(update={"steps": 4})
    one, two = measured(run), measured(run)
    assert one["curve"] == two["curve"]
    assert [row["step"] for row in one["curve"]] == [0, 1, 2, 3]
    assert len({row["data"] for row in one["curve"]}) == 4
    assert one["applied"]["data_source"] and one["applied"]["parameters_trained"] == one["applied"]["parameters"]
    assert not _global_optimizer_pre_hooks


def test_recipes_begin_with_the_same_weights_and_data() -> None:
    fp32 = measured(run_of("lm").model_copy(update={"steps": 3}))["curve"]
    for settings in ({"optimizer": "adam_foreach"}, {"precision": "bf16"}, {"precision": "native_delayed"}):
        curve = measured(run_of("lm", **settings).model_copy(update={"steps": 3}))["curve"]
        assert [row["data"] for row in curve] == [row["data"] for row in fp32]
        assert curve[0]["loss"] == pytest.approx(fp32[0]["loss"], rel=5e-3)


def test_it_can_be_learnt(tmp_path: Path) -> None:
    """A fifth of the way from chance to the entropy of labels that are partly drawn by lot: nobody comes below it."""
    chance, other = math.log(16), glyphs.BY_LOT / 16
    own = 1 - 15 * other
    least = -own * math.log(own) - 15 * other * math.log(other)
    result = tmp_path / "result.json"
    subprocess.run(
        [sys.executable, "-m", "halfstep.measure.child", run_of("vit_huge").canonical(), str(result)],
        check=True,
        timeout=500,
        preexec_fn=lambda: os.sched_setaffinity(0, os.sched_getaffinity(0)),  # what one_thread says
    )
    found = json.loads(result.read_text(encoding="utf-8"))
    assert found["status"] == "ok", found["reason"]
    losses = [row["loss"] for row in found["curve"]]
    assert losses[0] > 0.95 * chance
    assert fmean(losses[-30:]) < chance - 0.21 * (chance - least)
