"""The recipe around our FP8: what it converts, when it synchronises, where it is unsupported."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from halfstep.errors import Unsupported
from halfstep.fp8.fuse import FusedBlock
from halfstep.fp8.linear import Float8Linear
from halfstep.measure.training import build_step, feed, look_up
from halfstep.recipes.linears import LinearUse
from halfstep.recipes.precision.native_delayed import NativeDelayed, NativeDelayedLinears, NativeDelayedNoInit
from halfstep.runs import Scope, resolve
from halfstep.study import validate

CPU = torch.device("cpu")


class Products(TorchDispatchMode):
    """Counts the matrix products by operator and the types of their operands."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: Counter[tuple[str, torch.dtype, torch.dtype]] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        name = func._schema.name.removeprefix("aten::")
        if name in ("mm", "addmm", "bmm", "_scaled_mm"):
            matrices = [arg.dtype for arg in args if isinstance(arg, torch.Tensor) and arg.dim() > 1][:2]
            self.seen[(name, *matrices)] += 1  # type: ignore[index]
        return func(*args, **(kwargs or {}))


def prepared(recipe: type[NativeDelayed], model: nn.Sequential) -> NativeDelayed:
    made = recipe(CPU, torch.float32)
    linears = [(name, layer) for name, layer in model.named_modules() if isinstance(layer, nn.Linear)]
    made.plan([LinearUse(name, layer.in_features, layer.out_features, 1) for name, layer in linears], 16)
    made.prepare(model)
    return made


def test_every_linear_of_a_step_multiplies_in_fp8() -> None:
    comparison = {"workload": "lm", "baseline": "a", "variants": {"a": {"precision": "native_delayed"}}}
    run = resolve(validate({"comparisons": {"c": comparison}}), Scope("cpu", "smoke"), ("c", "a", 1)).model_dump()
    step, precision, applied = build_step(run, CPU)
    batches = feed(run, look_up(run["modules"]["workload"]), CPU)
    assert applied["gemm"] == "fp8"
    assert applied["emulated"] is True
    assert len(applied["linears_converted"]) == 9
    assert applied["linears_skipped"] == {}
    for _ in range(2):
        with Products() as products:
            loss = step(*next(batches))
        linear = {key: count for key, count in products.seen.items() if key[0] in ("mm", "addmm", "_scaled_mm")}
        assert linear == {
            ("_scaled_mm", torch.float8_e4m3fn, torch.float8_e4m3fn): 9,
            ("_scaled_mm", torch.float8_e5m2, torch.float8_e4m3fn): 18,
        }
        assert loss.isfinite()
    assert precision.synchronise.history.count_nonzero(dim=1).tolist() == [27, 27] + 14 * [0]


def test_it_synchronises_between_backward_and_optimizer() -> None:
    model = nn.Sequential(nn.Linear(16, 32))
    recipe = prepared(NativeDelayed, model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    weight = model[0].weight.detach().clone()
    with recipe.autocast():
        loss = model(torch.ones(16, 16)).float().mean()
    recipe.backward(loss)
    recipe.update(optimizer)
    # from the weight of the forward pass, not from the updated one
    assert model[0].scale_w.item() == pytest.approx(448 / weight.abs().max().item())
    assert not torch.equal(model[0].weight, weight)
    assert recipe.synchronise.history.count_nonzero() == 3


def test_the_layer_of_a_batch_that_fits_is_converted_and_the_other_stays() -> None:
    model = nn.Sequential(nn.Linear(16, 32), nn.Linear(32, 10))
    prepared(NativeDelayed, model)
    assert [type(layer) for layer in model] == [Float8Linear, nn.Linear]


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[nn.Module, dict[str, Any]]]:
    """From a workload and settings to the model as the recipe left it, and what it says it did."""

    def build(workload: str, **settings: Any) -> tuple[nn.Module, dict[str, Any]]:
        comparison = {"workload": workload, "baseline": "a", "variants": {"a": settings}}
        run = resolve(validate({"comparisons": {"c": comparison}}), Scope("cpu", "smoke"), ("c", "a", 1)).model_dump()
        models: list[nn.Module] = []
        monkeypatch.setattr(NativeDelayed, "join", lambda self, model, optimizer: models.append(model))
        applied = build_step(run, CPU)[2]
        return models[0], applied

    return build


@pytest.mark.parametrize("workload", ["vit_huge", "lm", "lm_wide"])
def test_the_blocks_of_all_workloads_are_fused(built: Any, workload: str) -> None:
    model, applied = built(workload, precision="native_delayed")
    assert applied["blocks_fused"] == ["blocks.0", "blocks.1"]
    assert applied["blocks_not_fused"] == {}
    assert all(type(block) is FusedBlock for block in model.blocks)


def test_a_block_that_is_not_fused_is_reported_and_runs_in_fp8_all_the_same(built: Any) -> None:
    model, applied = built("lm", precision="native_delayed", norm="rmsnorm")
    assert applied["blocks_fused"] == []
    assert applied["blocks_not_fused"].keys() == {"blocks.0", "blocks.1"}
    assert "norm1 is not torch's LayerNorm" in applied["blocks_not_fused"]["blocks.0"]
    assert sum(isinstance(module, Float8Linear) for module in model.modules()) == 9


@pytest.mark.parametrize("precision", ["native_delayed_linears", "native_delayed_no_init"])
def test_linear_layers_alone_are_recipes_of_their_own(built: Any, precision: str) -> None:
    model, applied = built("vit_huge", precision=precision)
    assert "blocks_fused" not in applied
    assert not any(isinstance(module, FusedBlock) for module in model.modules())
    assert issubclass(NativeDelayedNoInit, NativeDelayedLinears)


@pytest.mark.parametrize(("recipe", "first_step"), [(NativeDelayed, True), (NativeDelayedNoInit, False)])
def test_the_articles_first_step_is_a_recipe_of_its_own(recipe: type[NativeDelayed], first_step: bool) -> None:
    model = nn.Sequential(nn.Linear(16, 16))
    prepared(recipe, model)
    assert set(model[0].first_step.values()) == {first_step}


def test_a_gpu_without_fp8_is_unsupported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 6))
    with pytest.raises(Unsupported, match=r"compute capability 8\.9"):
        NativeDelayed(torch.device("cuda", 0), torch.float32)


def test_a_gpu_without_triton_or_its_compiler_is_unsupported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.raises(Unsupported, match="needs a C compiler such as gcc for Triton, and none is on the PATH"):
        NativeDelayed(torch.device("cuda", 0), torch.float32)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(Unsupported, match="needs Triton, which comes with torch for Linux and CUDA"):
        NativeDelayed(torch.device("cuda", 0), torch.float32)
