"""Every precision, norm and optimizer on a real GPU: it does what it says, and training follows fp32's."""

from __future__ import annotations

import re
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from multiprocessing import get_context
from typing import Any

import learnable
import pytest
import torch
from torch import nn

from halfstep.kernel_kinds import kind_of
from halfstep.measure.profile import profile_kernels
from halfstep.measure.training import Loop, build_step, feed, look_up
from halfstep.recipes.precision.precision import Precision
from halfstep.recipes.requirements import load_apex_amp
from halfstep.registry import NORMS, OPTIMIZERS, PRECISIONS
from halfstep.runs import Scope, resolve
from halfstep.study import validate
from halfstep.validity import NORM_KERNELS, OPTIMIZER_KERNELS, operands_of

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA GPU"),
]

STEPS = 50
LINEARS = {"vit_huge": 4 * 2 + 1, "lm": 4 * 2 + 1}
FP8 = [name for name in PRECISIONS if getattr(look_up(PRECISIONS[name]), "gemm", "") == "fp8"]
# of the mean loss over all steps, relative to fp32's; of the first step's gradient, the cosine to fp32's
LOSS_TOLERANCE = {"fp32": 1e-3, "tf32": 0.01, "bf16": 0.01, "fp16": 0.01, "fp8": 0.03}
COSINE = {"fp32": 0.99999, "tf32": 0.9999, "bf16": 0.9995, "fp16": 0.9995, "fp8": 0.99}
SPREAD = 0.005  # of each loss between two runs from the same seed: some kernels add in no fixed order


@dataclass
class Trained:
    """What became of a training run: its losses, the first step's gradient by parameter, one step's kernels."""

    losses: list[float]
    applied: dict[str, Any]
    gradients: dict[str, torch.Tensor] = field(default_factory=dict)
    kernels: list[str] = field(default_factory=list)

    @property
    def mean_loss(self) -> float:
        return sum(self.losses) / len(self.losses)


def run_of(workload: str, **settings: Any) -> dict[str, Any]:
    comparison = {"workload": workload, "baseline": "a", "variants": {"a": settings}}
    study = validate({"comparisons": {"c": comparison}})
    run = resolve(study, Scope("gpu", "smoke"), ("c", "a", 1)).model_dump()
    run["modules"]["workload"] = learnable.WORKLOADS[workload]
    return {**run, "batch": 32}


@cache
def train(workload: str, again: int = 0, **settings: Any) -> Trained:
    """Fifty steps, then a profiled one; `again` tells identical runs apart."""
    if settings["precision"].startswith("apex_amp"):
        return process_of(settings["precision"]).submit(train_here, workload, settings).result()
    return train_here(workload, settings)


@cache
def process_of(precision: str) -> ProcessPoolExecutor:
    """A process for one level of apex.amp: it needs an Apex of its own, and changes torch's functions for good."""
    # timm imports the Apex that is installed, and this module timm: apex.amp has to be there before
    return ProcessPoolExecutor(max_workers=1, mp_context=get_context("spawn"), initializer=load_apex_amp)


def train_here(workload: str, settings: dict[str, Any]) -> Trained:
    torch._dynamo.reset()
    device = torch.device("cuda", 0)
    run = run_of(workload, **settings)
    recipe = look_up(run["modules"]["precision"])
    gradients: dict[str, torch.Tensor] = {}
    joined: list[nn.Module] = []

    class Watched(recipe):  # type: ignore[misc, valid-type]
        def join(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
            super().join(model, optimizer)
            joined.append(model)

        def update(self, optimizer: torch.optim.Optimizer) -> None:
            if not gradients:
                # apex.amp's O2 has other parameters in the optimizer, in the model's order
                tensors = [tensor for group in optimizer.param_groups for tensor in group["params"]]
                names = [name for name, _ in joined[0].named_parameters()]
                for name, tensor in zip(names, tensors, strict=True):
                    gradients[plain_name(name)] = tensor.grad.detach().float().cpu()
            super().update(optimizer)

    run["modules"]["precision"] = f"{__name__}:WATCHED"
    globals()["WATCHED"] = Watched
    step, precision, applied = build_step(run, device)
    loop = Loop(step, feed(run, look_up(run["modules"]["workload"]), device), precision, lambda *_, **__: None)
    losses = [row["loss"] for row in loop.run("window", device, STEPS)]
    kernels, _ = profile_kernels(lambda: loop.step(*next(loop.batches)))
    return Trained(losses, applied, gradients, [row["kernel"] for row in kernels])


def plain_name(name: str) -> str:
    """timm's name of a parameter of a te.TransformerLayer; any other name as it is."""
    for pattern, plain in (
        (r"self_attention\.layernorm_qkv\.layer_norm_", "norm1."),
        (r"self_attention\.layernorm_qkv\.", "attn.qkv."),
        (r"self_attention\.proj\.", "attn.proj."),
        (r"layernorm_mlp\.layer_norm_", "norm2."),
        (r"layernorm_mlp\.(fc[12])_", r"mlp.\1."),
    ):
        name = re.sub(pattern, plain, name)
    return name


def cosine(one: Trained, other: Trained) -> float:
    """Of the two whole gradients."""
    assert one.gradients.keys() == other.gradients.keys()
    left = torch.cat([one.gradients[name].flatten() for name in one.gradients])
    right = torch.cat([other.gradients[name].flatten() for name in one.gradients])
    return float(nn.functional.cosine_similarity(left.double(), right.double(), dim=0))


def check_training(trained: Trained, plain: Trained, gemm: str) -> None:
    """The loss falls as fp32's does, and the first gradient points the same way."""
    print(f"mean loss {trained.mean_loss:.4f}, fp32 {plain.mean_loss:.4f}, cosine {cosine(trained, plain):.6f}")
    assert plain.losses[-1] < 0.7 * plain.losses[0], plain.losses
    assert trained.mean_loss == pytest.approx(plain.mean_loss, rel=LOSS_TOLERANCE[gemm])
    assert cosine(trained, plain) > COSINE[gemm]


@pytest.mark.parametrize("precision", ["native_delayed_no_init", "te_linears_delayed"])
def test_without_a_right_first_step_fp8_learns_all_the_same(precision: str) -> None:
    """Delayed scaling that begins with the scale 1, as the article's and Transformer Engine's.

    The language model's first gradients are mostly flushed to zero, so neither they nor the mean loss are fp32's.
    """
    trained, plain = train("lm", precision=precision), train("lm", precision="fp32")
    print(f"mean loss {trained.mean_loss:.4f}, fp32 {plain.mean_loss:.4f}, cosine {cosine(trained, plain):.6f}")
    assert cosine(trained, plain) < COSINE["fp8"]
    assert trained.mean_loss == pytest.approx(plain.mean_loss, rel=0.2)
    assert trained.losses[-1] == pytest.approx(plain.losses[-1], rel=0.2)


def test_transformer_engines_delayed_scaling_begins_like_the_articles() -> None:
    """Both cast the first step with the scale 1, so their losses agree as closely as FP8 has to follow fp32."""
    theirs, ours = train("lm", precision="te_linears_delayed"), train("lm", precision="native_delayed_no_init")
    assert theirs.mean_loss == pytest.approx(ours.mean_loss, rel=LOSS_TOLERANCE["fp8"])


def needs_another_model(workload: str, precision: str) -> bool:
    return workload == "lm" and precision.startswith("te_layers")


# where the first step is known to be wrong; a test of its own has these
WRONG_FIRST_STEP = [("lm", "native_delayed_no_init"), ("lm", "te_linears_delayed")]
CASES = [(w, p) for p in PRECISIONS for w in learnable.WORKLOADS if not needs_another_model(w, p)]


@pytest.mark.parametrize(("workload", "precision"), [case for case in CASES if case not in WRONG_FIRST_STEP])
def test_training_in_every_precision_follows_fp32(workload: str, precision: str) -> None:
    gemm = look_up(PRECISIONS[precision]).gemm
    check_training(train(workload, precision=precision), train(workload, precision="fp32"), gemm)


@pytest.mark.parametrize("workload", learnable.WORKLOADS)
@pytest.mark.parametrize("precision", ["bf16", "torchao_tensorwise", "torchao_rowwise", "native_delayed"])
def test_compiled_training_follows_fp32_without_a_graph_break(workload: str, precision: str) -> None:
    from torch._dynamo.utils import counters

    trained = train(workload, precision=precision, compile="blocks")
    assert trained.applied["compiled_modules"] == 2
    assert not counters["graph_break"]
    check_training(trained, train(workload, precision="fp32"), look_up(PRECISIONS[precision]).gemm)


@pytest.mark.parametrize("precision", ["bf16", "torchao_tensorwise", "native_delayed", "te_linears_delayed"])
def test_bf16_weights_follow_fp32(precision: str) -> None:
    trained = train("vit_huge", precision=precision, weights="bf16")
    assert trained.applied["parameters_bf16"] == trained.applied["parameters"]
    # Adam in bf16 loses steps smaller than a 256th of a weight: the tolerance is that of FP8 throughout
    check_training(trained, train("vit_huge", precision="fp32"), "fp8")


@pytest.mark.parametrize(("workload", "precision"), CASES)
def test_a_second_identical_run_agrees(workload: str, precision: str) -> None:
    first, second = train(workload, precision=precision), train(workload, again=1, precision=precision)
    assert second.losses == pytest.approx(first.losses, rel=SPREAD)


@pytest.mark.parametrize(("workload", "precision"), [case for case in CASES if case[1] in FP8])
def test_an_fp8_recipe_converts_what_it_says_and_its_kernels_run(workload: str, precision: str) -> None:
    trained = train(workload, precision=precision)
    if precision.startswith("te_layers"):
        assert trained.applied["layers_converted"] == ["blocks.0", "blocks.1"]
        assert trained.applied["linears_skipped"] == {"head": "not inside a block"}
    else:
        assert len(trained.applied["linears_converted"]) == LINEARS[workload]
        assert trained.applied["linears_skipped"] == {}
    kinds = [kind_of(kernel) for kernel in trained.kernels]
    assert "FP8 GEMM" in kinds, trained.kernels
    if not precision.startswith("te_layers") and precision != "torchao_rowwise_with_gw_hp":
        # every linear layer is FP8; what is left in bf16 is the patch embedding
        plain = [kernel for kernel, kind in zip(trained.kernels, kinds, strict=True) if kind == "GEMM"]
        print("bf16 products:", plain)
    assert "other" not in kinds, [k for k in trained.kernels if kind_of(k) == "other"]


@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16", "fp16", "apex_amp_o0", "apex_amp_o1", "apex_amp_o2"])
def test_other_precisions_run_no_fp8_kernel(precision: str) -> None:
    products = {operands_of(kernel) for kernel in train("lm", precision=precision).kernels} - {None}
    asked = look_up(PRECISIONS[precision]).gemm
    assert asked in products and "fp8" not in products, products
    assert asked != "fp32" or products == {"fp32"}, products


KERNELS = NORM_KERNELS | OPTIMIZER_KERNELS


def ran(kernels: list[str], name: str) -> None:
    assert any(re.search(KERNELS[name], kernel) for kernel in kernels), f"{KERNELS[name]} not in {kernels}"


@pytest.mark.parametrize("name", NORM_KERNELS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_fused_norm_is_torchs_norm_forward_and_backward(name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    with torch.device("cuda"):
        norm, plain = look_up(NORMS[name])(256), look_up(NORMS[name.partition("_")[2]])(256)
        x = torch.randn(64, 256)
        for parameter in norm.parameters():
            nn.init.normal_(parameter)
    plain.load_state_dict({key: value for key, value in norm.state_dict().items() if key in ("weight", "bias")})
    norm, plain = norm.to(dtype), plain.double()
    x = x.to(dtype)
    inputs = [x.clone().requires_grad_(), x.double().requires_grad_()]
    outputs = [module(tensor) for module, tensor in zip((norm, plain), inputs, strict=True)]
    grad = torch.randn_like(x, dtype=torch.float32)
    for output in outputs:
        output.backward(grad.to(output.dtype, copy=True))  # Liger writes its result over it
    tolerance = {"rtol": 2e-2, "atol": 5e-2} if dtype is torch.bfloat16 else {"rtol": 1e-4, "atol": 1e-4}
    torch.testing.assert_close(outputs[0].double(), outputs[1], **tolerance)
    torch.testing.assert_close(inputs[0].grad.double(), inputs[1].grad, **tolerance)


@pytest.mark.parametrize("name", [name for name in NORMS if name != "layernorm"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_training_with_every_norm_follows_torchs(name: str, precision: str) -> None:
    trained = train("vit_huge", precision=precision, norm=name)
    plain = train("vit_huge", precision="fp32", norm="rmsnorm" if name.endswith("rmsnorm") else "layernorm")
    check_training(trained, plain, precision)
    if name in KERNELS:
        ran(trained.kernels, name)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_training_with_every_optimizer_follows_torchs(name: str) -> None:
    trained = train("lm", precision="fp32", optimizer=name)
    plain = train(
        "lm", precision="fp32", optimizer=f"{name.replace('apex_', '').replace('te_', '').split('_')[0]}_forloop"
    )
    check_training(trained, plain, "fp32")
    if name in KERNELS:
        ran(trained.kernels, name)


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("capturable", [False, True])
def test_an_optimizers_weights_are_torchs_after_five_steps(name: str, capturable: bool) -> None:
    def after(make: Callable[..., torch.optim.Optimizer]) -> torch.Tensor:
        torch.manual_seed(0)
        layer = nn.Linear(64, 64, device="cuda")
        optimizer = make(layer.parameters(), capturable)
        for _ in range(5):
            layer(torch.randn(16, 64, device="cuda")).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            assert layer.weight.grad is None
        return layer.weight.detach()

    family = torch.optim.AdamW if "adamw" in name else torch.optim.Adam
    expected = after(lambda parameters, capturable: family(parameters, foreach=False, capturable=capturable))
    torch.testing.assert_close(after(look_up(OPTIMIZERS[name])), expected, rtol=1e-5, atol=1e-6)


def test_every_recipe_is_a_precision() -> None:
    assert all(issubclass(look_up(reference), Precision) for reference in PRECISIONS.values())
