"""Precision recipes on the CPU: what they really do to a step."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.profiler import profile
from torch.utils._python_dispatch import TorchDispatchMode

from halfstep.errors import Invalid, Unsupported
from halfstep.measure.linears import linears_of
from halfstep.measure.training import build_step, feed, look_up
from halfstep.mistakes import StudyError
from halfstep.recipes.linears import LinearUse, plan_linears
from halfstep.recipes.precision.bf16 import Bf16
from halfstep.recipes.precision.fp32 import Fp32
from halfstep.recipes.precision.precision import set_tf32
from halfstep.registry import NEEDS_GPU, NO_BF16_WEIGHTS, PRECISIONS, WORKLOADS
from halfstep.runs import Scope, resolve
from halfstep.study import validate

pytestmark = pytest.mark.usefixtures("keep_switches")

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


def run_of(precision: str, weights: str = "fp32", workload: str = "lm") -> dict[str, Any]:
    settings = {"precision": precision, "weights": weights}
    study = validate({"comparisons": {"c": {"workload": workload, "baseline": "a", "variants": {"a": settings}}}})
    return resolve(study, Scope("cpu", "smoke"), ("c", "a", 1)).model_dump()


def products_of_a_step(precision: str, weights: str, workload: str = "lm") -> tuple[list[torch.dtype], torch.Tensor]:
    run = run_of(precision, weights, workload)
    step, _, _ = build_step(run, CPU)
    batch = next(feed(run, look_up(WORKLOADS[workload]), CPU))
    with Products() as products:
        loss = step(*batch)
    return products.dtypes, loss


@pytest.mark.parametrize("workload", WORKLOADS)
@pytest.mark.parametrize(
    ("precision", "weights", "dtype"),
    [("fp32", "fp32", torch.float32), ("bf16", "fp32", torch.bfloat16), ("bf16", "bf16", torch.bfloat16)],
)
def test_every_matrix_product_of_a_step_is_in_the_recipes_precision(
    precision: str, weights: str, dtype: torch.dtype, workload: str
) -> None:
    dtypes, loss = products_of_a_step(precision, weights, workload)
    assert len(dtypes) > 20  # two operands, forward and twice backward, of each linear layer
    assert set(dtypes) == {dtype}
    assert loss.dtype == torch.float32 and loss.isfinite() and not loss.requires_grad


def test_bf16_autocast_keeps_the_weights_and_their_gradients_in_fp32() -> None:
    recipe, model = Bf16(CPU, torch.float32), nn.Linear(8, 8)
    assert recipe.prepare(model) == {}
    with recipe.autocast():
        out = model(torch.ones(2, 8))
    assert out.dtype == torch.bfloat16
    recipe.backward(out.float().sum())
    assert model.weight.dtype == model.weight.grad.dtype == torch.float32


def test_bf16_weights_are_bf16_throughout_and_the_record_says_so() -> None:
    recipe = Bf16(CPU, torch.bfloat16)
    assert recipe.cast_inputs(torch.ones(2)).dtype == torch.bfloat16
    tokens = torch.ones(2, dtype=torch.int64)
    assert recipe.cast_inputs(tokens) is tokens
    with recipe.autocast():
        assert not torch.is_autocast_enabled("cpu")
    _, _, applied = build_step(run_of("bf16", "bf16"), CPU)
    assert applied["parameters_bf16"] == applied["parameters"] > 0


def test_strict_fp32_takes_tf32_back_wherever_torch_has_it() -> None:
    set_tf32(True)
    assert torch.backends.cuda.matmul.allow_tf32
    assert torch.backends.cudnn.allow_tf32
    Fp32(CPU, torch.float32)
    assert not torch.backends.cuda.matmul.allow_tf32
    assert not torch.backends.cudnn.allow_tf32
    assert torch.get_float32_matmul_precision() == "highest"


def test_a_recipe_does_not_inherit_tf32_from_what_ran_before() -> None:
    set_tf32(True)
    Bf16(CPU, torch.float32)
    assert not torch.backends.cuda.matmul.allow_tf32


@pytest.mark.parametrize("weights", [torch.float32, torch.bfloat16])
def test_bf16_on_a_gpu_that_only_emulates_it_is_unsupported(
    weights: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    with pytest.raises(Unsupported, match=r"bf16 needs compute capability 8\.0"):
        Bf16(torch.device("cuda", 0), weights)


@pytest.mark.parametrize("precision", NO_BF16_WEIGHTS)
def test_bf16_weights_need_a_precision_that_computes_in_bf16(precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Unsupported, match="weights: bf16 goes with a precision that computes in bf16"):
        look_up(PRECISIONS[precision])(CPU, torch.bfloat16)
    with pytest.raises(StudyError, match=f"weights: bf16 with precision: {precision}, .*choose from bf16"):
        run_of(precision, "bf16")


def test_fp32_and_bf16_weights_are_not_mixed_in_one_comparison() -> None:
    variants = {"a": {"precision": "bf16"}, "b": {"precision": "bf16", "weights": "bf16"}}
    with pytest.raises(StudyError, match=r"comparisons\.c mixes fp32 and bf16 weights"):
        validate({"comparisons": {"c": {"workload": "lm", "baseline": "a", "variants": variants}}})


def test_linears_of_vit_huge_have_their_rows() -> None:
    uses = {use.name: use for use in linears_of(look_up(WORKLOADS["vit_huge"]), "full")}
    assert len(uses) == 4 * 32 + 1
    assert uses["blocks.0.mlp.fc1"] == LinearUse("blocks.0.mlp.fc1", 1280, 5120, 256)
    assert uses["head"] == LinearUse("head", 1280, 1024, 1)


def test_the_rule_of_16_names_the_nearest_batch() -> None:
    linears = linears_of(look_up(WORKLOADS["vit_huge"]), "full")
    for batch, nearest in ((30, 32), (17, 16), (1, 16), (24, 32), (100, 96)):
        with pytest.raises(Unsupported, match=rf"batch {batch} makes {batch} rows in the layer 'head', .* {nearest}$"):
            plan_linears(linears, batch)
    assert len(plan_linears(linears, 48).convert) == 129
    assert len(plan_linears(linears_of(look_up(WORKLOADS["lm"]), "full"), 3).convert) == 49


def test_a_layer_whose_features_do_not_divide_by_16_is_left_and_told() -> None:
    plan = plan_linears([LinearUse("a", 64, 64, 1), LinearUse("b", 64, 10, 1)], 16)
    assert plan.convert == ("a",)
    assert plan.skip == {"b": "64 to 10 features do not both divide by 16"}
    with pytest.raises(Invalid, match="not one linear layer of the model can be converted to FP8: b: 64 to 10"):
        plan_linears([LinearUse("b", 64, 10, 1)], 16)


@pytest.mark.parametrize("workload", WORKLOADS)
def test_torchao_tensorwise_multiplies_in_fp8_and_keeps_the_weights(workload: str) -> None:
    run = run_of("torchao_tensorwise", workload=workload)
    step, _, applied = build_step(run, CPU)
    assert applied["linears_skipped"] == {}
    converted = len(applied["linears_converted"])
    batch = next(feed(run, look_up(WORKLOADS[workload]), CPU))
    with profile() as profiler:  # torchao's tensors hide the product from a dispatch mode
        loss = step(*batch)
    names = [event.name for event in profiler.events()]
    assert names.count("aten::_scaled_mm") == 3 * converted  # forward and twice backward
    plain, _, _ = build_step(run_of("fp32", workload=workload), CPU)
    assert loss == pytest.approx(float(plain(*batch)), rel=0.02)


@pytest.mark.parametrize(
    "precision", [name for name in PRECISIONS if name in NEEDS_GPU and not name.startswith("torchao_")]
)
def test_what_needs_a_gpu_says_so_on_a_cpu(precision: str) -> None:
    with pytest.raises(Unsupported, match="needs an NVIDIA GPU; this run is on the CPU"):
        look_up(PRECISIONS[precision])(CPU, torch.float32)
