"""Several ranks with data of their own have the scales of one process that saw all of it. Real processes, over Gloo."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import distributed, multiprocessing, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from halfstep.fp8.fuse import fuse
from halfstep.fp8.linear import convert
from halfstep.fp8.synchronise import Synchroniser
from halfstep.recipes.norms import layernorm
from halfstep.recipes.precision.native_delayed import LM_BLOCK
from halfstep.workloads.lm import LM

RANKS, STEPS, BATCH, CONTEXT, VOCABULARY = 2, 3, 2, 16, 64
State = dict[str, torch.Tensor]


def made() -> tuple[nn.Module, Synchroniser]:
    """The same on every rank: a Transformer with fused blocks, and a head of its own."""
    torch.manual_seed(0)
    model = LM.build(layernorm, vocabulary=VOCABULARY, context=CONTEXT, width=32, depth=2, heads=2)
    convert(model, lambda *_: True, emulate=True)
    assert len(fuse(model, [LM_BLOCK])[0]) == 2
    return model, Synchroniser(model)


def backward(model: nn.Module, step: int, rank: int) -> None:
    """A rank's data are its own: rank 1 has a larger loss, and so larger gradients."""
    generator = torch.Generator().manual_seed(RANKS * step + rank)
    data = LM.batch(BATCH, 0, generator, vocabulary=VOCABULARY, context=CONTEXT)
    with torch.autocast("cpu", torch.bfloat16):
        loss = LM.loss(model, *data)
    ((1 + rank) * loss).backward()


def seen(model: nn.Module, synchronise: Synchroniser) -> State:
    whole = {name: p.full_tensor() if isinstance(p, DTensor) else p for name, p in model.named_parameters()}
    state = {name: synchronise.state_dict()[name] for name in ("history", "scale")}
    return {**state, **{name: tensor.detach() for name, tensor in whole.items()}}


def alone() -> State:
    """One process that sees the data of all ranks, one after the other, before it synchronises."""
    model, synchronise = made()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for step in range(STEPS):
        for rank in range(RANKS):
            backward(model, step, rank)
        for parameter in model.parameters():
            parameter.grad /= RANKS
        synchronise()
        optimizer.step()
        optimizer.zero_grad()
    return seen(model, synchronise)


def train(model: nn.Module, synchronise: Synchroniser, rank: int) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for step in range(STEPS):
        backward(model, step, rank)
        synchronise()
        optimizer.step()
        optimizer.zero_grad()


def data_parallel(rank: int) -> State:
    model, synchronise = made()
    # nothing to broadcast: scales are equal, and amaxes are a rank's own
    parallel = DistributedDataParallel(model, broadcast_buffers=False)
    train(parallel, synchronise, rank)
    return seen(model, synchronise)


def sharded(rank: int) -> State:
    model, synchronise = made()
    mesh = distributed.device_mesh.init_device_mesh("cpu", (RANKS,))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    train(model, synchronise, rank)
    return seen(model, synchronise)


def bad_amaxes(rank: int) -> State:
    """Of its three tensors each rank saw something that is no number, or less than the other one."""
    model = nn.Sequential(nn.Linear(16, 16))
    convert(model, lambda *_: True, emulate=True)
    synchronise = Synchroniser(model)
    for amaxes in (((1.0, 2.0, 4.0), (2.0, 1.0, 4.0)), ((-math.nan, 1.0, 1.0), (1.0, math.nan, math.inf))):
        for tensor, amax in zip("xwg", amaxes[rank], strict=True):
            getattr(model[0], f"amax_{tensor}").fill_(amax)
        synchronise()
    return seen(model, synchronise)


def own_group(rank: int) -> State:
    groups = [distributed.new_group([other]) for other in range(RANKS)]
    model = nn.Sequential(nn.Linear(16, 16))
    convert(model, lambda *_: True, emulate=True)
    for tensor in "xwg":
        getattr(model[0], f"amax_{tensor}").fill_(1.0 + rank)
    synchronise = Synchroniser(model, group=groups[rank])
    synchronise()
    return seen(model, synchronise)


WORK: tuple[Callable[[int], State], ...] = (data_parallel, sharded, bad_amaxes, own_group)


def one_rank(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=RANKS)
    torch.save({work.__name__: work(rank) for work in WORK}, f"{folder}/{rank}.pt")
    distributed.destroy_process_group()


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, State]]:
    """What each rank had at the end of each work; all in one pair of processes, for starting them takes longest."""
    folder = tmp_path_factory.mktemp("ranks")
    multiprocessing.spawn(one_rank, (str(folder),), nprocs=RANKS)
    return [torch.load(folder / f"{rank}.pt") for rank in range(RANKS)]


@pytest.mark.parametrize("work", ["data_parallel", "sharded"])
def test_all_ranks_have_the_scales_of_one_process_that_saw_all_data(ranks: list[dict[str, State]], work: str) -> None:
    expected = alone()
    assert expected["history"].count_nonzero() == STEPS * expected["scale"].numel()
    for rank in ranks:
        assert not [name for name in expected if not torch.equal(rank[work][name], expected[name])]


def test_what_is_no_number_on_one_rank_keeps_the_scale_on_all(ranks: list[dict[str, State]]) -> None:
    first, second = (rank["bad_amaxes"] for rank in ranks)
    assert first["scale"].tolist() == second["scale"].tolist() == [448 / 2, 448 / 2, 57344 / 4]
    for found in (first, second):
        x, w, g = found["history"][0].tolist()
        assert math.isnan(x) and math.isnan(w) and g == math.inf
        assert found["history"][1].tolist() == [2, 2, 4]


def test_a_group_is_the_ranks_that_count(ranks: list[dict[str, State]]) -> None:
    assert [rank["own_group"]["scale"][0].item() for rank in ranks] == [448, 448 / 2]
