"""torch.compile of FP8 layers: no graph breaks, few graphs, the same numbers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch._dynamo
import torch._inductor.config
from torch import nn
from torch._inductor.utils import fresh_cache

from halfstep.fp8.linear import convert
from halfstep.fp8.synchronise import Synchroniser

WIDTH, ROWS, DEPTH = 32, 48, 12
PARAMETERS = 7  # tensors of a model with one block


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


class Model(nn.Module):
    """Not an nn.Sequential, which torch.compile never compiles as a whole."""

    def __init__(self, depth: int = DEPTH) -> None:
        super().__init__()
        self.stem = nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(depth))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return x


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    # a cache of its own: code that another process left for other vector instructions does not compile here
    with torch._dynamo.config.patch(fail_on_recompile_limit_hit=True), fresh_cache():
        yield
    torch._dynamo.reset()


def train(
    backend: str | None, whole: bool, steps: int = 4, depth: int = DEPTH, autocast: bool = True, **flags: Any
) -> tuple[list[float], list[torch.Tensor]]:
    """Losses, then all parameters and all scales."""
    torch.manual_seed(0)
    model = Model(depth)
    convert(model, lambda *_: True, emulate=True, **flags)
    synchronise = Synchroniser(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    if backend:
        for module in [model] if whole else model.blocks:
            module.compile(backend=backend, dynamic=False, fullgraph=True)
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(ROWS, WIDTH, generator=generator)
    losses = []
    for _ in range(steps):
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            out = model(x)
        loss = (out.float() - x.roll(1, 1)).square().mean()
        loss.backward()
        synchronise()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses, [*model.parameters(), *model.buffers()]


@pytest.mark.parametrize("flags", [{}, {"amax_init": False}, {"pre_and_post_forward": True}], ids=str)
@pytest.mark.parametrize("whole", [False, True], ids=["blocks", "model"])
def test_compiled_equals_eager_to_the_last_bit_and_compiles_twice(whole: bool, flags: dict[str, bool]) -> None:
    """Through AOTAutograd, which moves the amaxes of both passes into its graphs, without Inductor's arithmetic."""
    depth = 3 if whole else DEPTH
    losses, tensors = train(None, whole, depth=depth, **flags)
    compiled_losses, compiled_tensors = train("aot_eager", whole, depth=depth, **flags)
    assert losses == compiled_losses
    assert all(torch.equal(a, b) for a, b in zip(tensors, compiled_tensors, strict=True))
    # one for the first step and one for all that follow, whatever the number of blocks
    graphs = 1 if flags.get("amax_init") is False else 2
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == graphs
    assert not torch._dynamo.utils.counters["graph_break"]


def test_no_graph_breaks_are_explained_away() -> None:
    model = Model(1)
    convert(model, lambda *_: True, emulate=True)
    with torch.autocast("cpu", torch.bfloat16):
        explanation = torch._dynamo.explain(model)(torch.randn(ROWS, WIDTH))
    assert explanation.graph_break_count == 0
    assert explanation.graph_count == 1


def test_inductor_follows_eager() -> None:
    losses, tensors = train(None, whole=True, depth=1)
    # without vector instructions, whose support Inductor would find out by compiling for each in turn; by their length
    # too, since it keeps what it has found out before in this process
    with torch._inductor.config.patch({"cpp.vec_isa_ok": False, "cpp.simdlen": 1}):
        compiled_losses, compiled_tensors = train("inductor", whole=True, depth=1)
    assert compiled_losses == pytest.approx(losses, rel=1e-2)
    # three steps later: Inductor keeps fp32 between operations where eager rounds to bf16, and a value near
    # the middle of two FP8 values then falls on the other side
    assert sum(tensor.requires_grad for tensor in tensors) == PARAMETERS
    vectors = [
        torch.cat([tensor.detach().flatten() for tensor in group[:PARAMETERS]]) for group in (tensors, compiled_tensors)
    ]
    assert (vectors[0] - vectors[1]).norm() <= 0.05 * vectors[0].norm()  # not each: Adam makes a step of any gradient
    for eager, compiled in zip(tensors[PARAMETERS:], compiled_tensors[PARAMETERS:], strict=True):
        assert (eager - compiled).norm() <= 0.05 * eager.norm() + 1e-6


def test_a_compiled_layer_that_was_not_synchronised_says_so() -> None:
    model = Model(1)
    convert(model, lambda *_: True, pre_and_post_forward=True, emulate=True)
    model.compile(backend="aot_eager", dynamic=False)
    x = torch.randn(ROWS, WIDTH)
    model(x)
    with pytest.raises(RuntimeError, match="not synchronised since the last forward pass"):
        model(x)
