"""The step between backward and optimizer: history, scales, and how many operations that takes."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from torch import distributed, nn
from torch.utils._python_dispatch import TorchDispatchMode

from halfstep.fp8.linear import Float8Linear, convert
from halfstep.fp8.synchronise import Synchroniser


def model_of(layers: int, **flags: Any) -> nn.Sequential:
    model = nn.Sequential(*(nn.Linear(16, 16) for _ in range(layers)))
    convert(model, lambda *_: True, emulate=True, **flags)
    return model


def see(linear: Float8Linear, x: float, w: float = 1.0, g: float = 1.0) -> None:
    for buffer, value in ((linear.amax_x, x), (linear.amax_w, w), (linear.amax_g, g)):
        buffer.fill_(value)


def test_each_tensor_of_each_layer_gets_its_own_scale_in_its_own_format() -> None:
    model = model_of(3)
    synchronise = Synchroniser(model)
    for number, linear in enumerate(model):
        see(linear, x=number + 1, w=10 * (number + 1), g=100 * (number + 1))
    synchronise()
    for number, linear in enumerate(model):
        assert linear.scale_x.item() == pytest.approx(448 / (number + 1))
        assert linear.scale_w.item() == pytest.approx(448 / (10 * (number + 1)))
        assert linear.scale_g.item() == pytest.approx(57344 / (100 * (number + 1)))


def test_a_peak_counts_for_as_many_steps_as_the_history_is_long() -> None:
    model = model_of(1)
    synchronise = Synchroniser(model, history_length=4)
    scales = []
    for x in (1.0, 8.0, 2.0, 1.0, 4.0, 2.0, 1.0, 1.0, 1.0, 1.0):
        see(model[0], x)
        synchronise()
        scales.append(448 / model[0].scale_x.item())
    assert scales == [1, 8, 8, 8, 8, 4, 4, 4, 2, 1]


def test_the_history_is_16_long_by_default() -> None:
    model = model_of(1)
    synchronise = Synchroniser(model)
    see(model[0], 8.0)
    synchronise()
    for _ in range(15):
        see(model[0], 1.0)
        synchronise()
    assert model[0].scale_x.item() == 448 / 8
    see(model[0], 1.0)
    synchronise()
    assert model[0].scale_x.item() == 448


@pytest.mark.parametrize("bad", [math.inf, math.nan])
def test_a_step_that_overflowed_keeps_the_scale_while_it_is_in_the_history(bad: float) -> None:
    model = model_of(1)
    synchronise = Synchroniser(model, history_length=2)
    scales = []
    for x in (2.0, bad, 4.0, 4.0):
        see(model[0], x)
        synchronise()
        scales.append(model[0].scale_x.item())
    assert scales == [224, 224, 224, 112]


def test_a_layer_that_did_not_run_keeps_its_scale() -> None:
    model = model_of(2)
    synchronise = Synchroniser(model, history_length=1)
    see(model[0], 2.0)
    see(model[1], 2.0)
    synchronise()
    see(model[0], 4.0)
    synchronise()
    assert (model[0].scale_x.item(), model[1].scale_x.item()) == (112, 224)


def test_a_margin_is_headroom() -> None:
    model = model_of(1)
    see(model[0], 1.0)
    Synchroniser(model, margin=2)()
    assert model[0].scale_x.item() == 448 / 4


def test_the_buffers_stay_where_they_are() -> None:
    """A CUDA graph knows them by address."""
    model = model_of(3)
    synchronise = Synchroniser(model)
    before = [buffer.data_ptr() for buffer in (*model.buffers(), synchronise.history)]
    for linear in model:
        see(linear, 3.0)
    synchronise()
    assert [buffer.data_ptr() for buffer in (*model.buffers(), synchronise.history)] == before
    assert len(set(before)) == 3 * 6 + 1  # no storage is shared: AOTAutograd handles those best


class Operations(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        self.names.append(func._schema.name)
        return func(*args, **(kwargs or {}))


def operations(layers: int) -> list[str]:
    model = model_of(layers)
    for linear in model:
        see(linear, 1.0)
    synchronise = Synchroniser(model)
    with Operations() as seen:
        synchronise()
    return seen.names


def test_the_number_of_operations_does_not_depend_on_the_number_of_layers_and_none_waits() -> None:
    names = operations(1)
    assert names == operations(20)
    assert len(names) < 25
    assert "aten::_local_scalar_dense" not in names  # .item(), bool(tensor)
    assert not any(name.startswith("c10d::") for name in names)


def test_in_a_process_group_there_is_one_all_reduce_more_and_no_wait(tmp_path: Path) -> None:
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    try:
        names = operations(1)
        assert names == operations(20)
    finally:
        distributed.destroy_process_group()
    assert [name for name in names if name.startswith("c10d::")] == ["c10d::allreduce_"]
    assert "aten::_local_scalar_dense" not in names


def test_synchronising_ends_the_first_step_of_what_was_seen() -> None:
    model = model_of(2)
    assert all(all(linear.first_step.values()) for linear in model)
    see(model[0], 1.0)
    model[1].amax_x.fill_(1.0)
    Synchroniser(model)()
    assert [list(linear.first_step.values()) for linear in model] == [3 * [False], [False, True, True]]
    assert not any(any(linear.first_step.values()) for linear in model_of(2, amax_init=False))


def test_a_model_without_fp8_is_refused() -> None:
    with pytest.raises(ValueError, match="no Float8Linear"):
        Synchroniser(nn.Sequential(nn.Linear(16, 16)))
