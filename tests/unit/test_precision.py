"""Precision recipes on the CPU: what they really do to a step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from halfstep.measure.training import build_step, feed, look_up
from halfstep.recipes.precision.bf16 import Bf16Autocast
from halfstep.recipes.precision.bf16_weights import Bf16Weights
from halfstep.recipes.precision.fp32 import Fp32
from halfstep.recipes.precision.precision import set_tf32
from halfstep.registry import WORKLOADS
from halfstep.study import Scope, resolve, validate

CPU = torch.device("cpu")
PRODUCTS = {"aten::mm", "aten::addmm", "aten::bmm"}


class Products(TorchDispatchMode):
    """Keeps the types of the operands of each matrix product, forward and backward."""

    def __init__(self) -> None:
        super().__init__()
        self.dtypes: list[torch.dtype] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        if func._schema.name in PRODUCTS:
            self.dtypes += [arg.dtype for arg in args if isinstance(arg, torch.Tensor)][-2:]
        return func(*args, **(kwargs or {}))


@pytest.fixture(autouse=True)
def keep_switches() -> Iterator[None]:
    matmul, cudnn = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    yield
    torch.set_float32_matmul_precision(matmul)
    torch.backends.cudnn.allow_tf32 = cudnn


def products_of_a_step(precision: str, workload: str = "lm") -> tuple[list[torch.dtype], torch.Tensor]:
    comparison = {"workload": workload, "baseline": "a", "variants": {"a": {"precision": precision}}}
    study = validate({"comparisons": {"c": comparison}})
    run = resolve(study, Scope("cpu", "smoke"), ("c", "a", 1)).model_dump()
    step, _, _ = build_step(run, CPU)
    batch = next(feed(run, look_up(WORKLOADS[workload]), CPU))
    with Products() as products:
        loss = step(*batch)
    return products.dtypes, loss


@pytest.mark.parametrize("workload", WORKLOADS)
@pytest.mark.parametrize(
    ("precision", "dtype"), [("fp32", torch.float32), ("bf16", torch.bfloat16), ("bf16_weights", torch.bfloat16)]
)
def test_every_matrix_product_of_a_step_is_in_the_recipes_precision(
    precision: str, dtype: torch.dtype, workload: str
) -> None:
    dtypes, loss = products_of_a_step(precision, workload)
    assert len(dtypes) > 20  # two operands, forward and twice backward, of each linear layer
    assert set(dtypes) == {dtype}
    assert loss.dtype == torch.float32 and loss.isfinite() and not loss.requires_grad


def test_bf16_autocast_keeps_the_weights_and_their_gradients_in_fp32() -> None:
    recipe, model = Bf16Autocast(CPU), nn.Linear(8, 8)
    assert recipe.prepare(model) == {}
    with recipe.autocast():
        out = model(torch.ones(2, 8))
    assert out.dtype == torch.bfloat16
    recipe.backward(out.float().sum())
    assert model.weight.dtype == model.weight.grad.dtype == torch.float32


def test_bf16_weights_casts_every_parameter_and_says_how_many() -> None:
    recipe = Bf16Weights(CPU)
    model = nn.Sequential(nn.Linear(8, 4), nn.LayerNorm(4), nn.BatchNorm1d(4))
    applied = recipe.prepare(model)
    assert {tensor.dtype for tensor in model.parameters()} == {torch.bfloat16}
    assert applied == {"parameters_bf16": sum(parameter.numel() for parameter in model.parameters())}
    assert recipe.cast_inputs(torch.ones(2)).dtype == torch.bfloat16
    tokens = torch.ones(2, dtype=torch.int64)
    assert recipe.cast_inputs(tokens) is tokens


def test_strict_fp32_takes_tf32_back_wherever_torch_has_it() -> None:
    set_tf32(True)
    assert torch.backends.cuda.matmul.allow_tf32
    assert torch.backends.cudnn.allow_tf32
    Fp32(CPU)
    assert not torch.backends.cuda.matmul.allow_tf32
    assert not torch.backends.cudnn.allow_tf32
    assert torch.get_float32_matmul_precision() == "highest"


@pytest.mark.parametrize("recipe", [Bf16Autocast, Bf16Weights])
def test_a_recipe_does_not_inherit_tf32_from_what_ran_before(recipe: type) -> None:
    set_tf32(True)
    recipe(CPU)
    assert not torch.backends.cuda.matmul.allow_tf32


@pytest.mark.parametrize("recipe", [Bf16Autocast, Bf16Weights])
def test_bf16_on_a_gpu_that_only_emulates_it_is_unsupported(recipe: type, monkeypatch: pytest.MonkeyPatch) -> None:
    from halfstep.errors import Unsupported

    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    with pytest.raises(Unsupported, match=r"bf16 needs compute capability 8\.0"):
        recipe(torch.device("cuda", 0))
