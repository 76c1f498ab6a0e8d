"""Everything that a study can name is there and has what the measuring code asks of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from halfstep.errors import Unsupported
from halfstep.keys import NAME
from halfstep.measure.training import look_up
from halfstep.recipes.compilation import Compilation
from halfstep.recipes.gemms import Gemm
from halfstep.recipes.precision.precision import Precision
from halfstep.registry import COMPILES, GEMMS, NEEDS_GPU, NORMS, OPERATORS, OPTIMIZERS, PRECISIONS, WORKLOADS
from halfstep.study import Settings
from halfstep.system.peaks import stated_peak

CPU = torch.device("cpu")
KINDS = (WORKLOADS, OPERATORS, PRECISIONS, NORMS, OPTIMIZERS, COMPILES)
ALL = [name for kind in KINDS for name in kind]


def test_names_are_valid_and_of_one_kind_only() -> None:
    assert all(NAME.fullmatch(name) for name in [*ALL, *GEMMS])
    assert len(ALL) == len(set(ALL))


@pytest.mark.parametrize("name", OPERATORS)
def test_an_operator_has_two_sizes_and_knows_settings_only(name: str) -> None:
    operator = look_up(OPERATORS[name].reference)
    assert set(operator.sizes) == {"full", "smoke"}
    assert set(OPERATORS[name].keys) <= set(Settings.model_fields)


@pytest.mark.parametrize("name", GEMMS)
def test_a_gemm_has_a_stated_peak_or_says_what_it_needs(name: str) -> None:
    try:
        gemm = look_up(GEMMS[name])(CPU)
    except Unsupported as error:
        assert "needs an NVIDIA GPU; this run is on the CPU" in str(error)
    else:
        assert isinstance(gemm, Gemm)
        assert stated_peak("NVIDIA H200", gemm.precision)


@pytest.mark.parametrize("name", PRECISIONS)
def test_a_precision_recipe_has_a_stated_peak_and_works_or_says_why_not(name: str) -> None:
    recipe = look_up(PRECISIONS[name])
    assert issubclass(recipe, Precision)
    assert stated_peak("NVIDIA H200", recipe.gemm)
    try:
        made = recipe(CPU, torch.float32)
    except Unsupported as error:
        assert "needs an NVIDIA GPU; this run is on the CPU" in str(error)
    else:
        assert made.device == CPU


@pytest.mark.parametrize("name", COMPILES)
def test_a_compile_mode_is_one(name: str) -> None:
    mode = look_up(COMPILES[name])
    assert isinstance(mode, Compilation)
    assert mode.compiles == (name != "none")


def test_compile_modes_differ() -> None:
    assert len({look_up(reference) for reference in COMPILES.values()}) == len(COMPILES)


# torch's own layers, which ours are to be measured against
NORM_REFERENCES: dict[str, Callable[[torch.Tensor, nn.Module], torch.Tensor]] = {
    "layernorm": lambda x, norm: nn.functional.layer_norm(x, x.shape[-1:], norm.weight, norm.bias, 1e-6),
    "rmsnorm": lambda x, norm: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * norm.weight,
}


FUSED = ("apex_", "te_", "liger_")
"""of libraries that need a GPU; tests/gpu has them"""
TORCH_NORMS = [name for name in NORMS if not name.startswith(FUSED)]
TORCH_OPTIMIZERS = [name for name in OPTIMIZERS if not name.startswith(FUSED)]


@pytest.mark.parametrize("name", sorted({*NORMS, *OPTIMIZERS} - {*TORCH_NORMS, *TORCH_OPTIMIZERS}))
def test_a_fused_norm_or_optimizer_needs_a_gpu(name: str) -> None:
    with pytest.raises(Unsupported, match="needs an NVIDIA GPU; this run is on the CPU"):
        if name in NORMS:
            look_up(NORMS[name])(32)
        else:
            look_up(OPTIMIZERS[name])(nn.Linear(4, 4).parameters(), False)


@pytest.mark.parametrize("name", TORCH_NORMS)
def test_a_norm_is_what_torch_computes(name: str) -> None:
    torch.manual_seed(0)
    norm = look_up(NORMS[name])(32)
    for parameter in norm.parameters():
        nn.init.normal_(parameter)
    x = 1e-3 * torch.randn(4, 7, 32)  # small, so that the epsilon shows
    torch.testing.assert_close(norm(x), NORM_REFERENCES[name](x, norm))


OPTIMIZER_FLAGS: dict[str, dict[str, Any]] = {
    "forloop": {"foreach": False, "fused": False},
    "foreach": {"foreach": True, "fused": None},
    "fused": {"foreach": None, "fused": True},
}


@pytest.mark.parametrize("name", TORCH_OPTIMIZERS)
def test_an_optimizer_is_what_its_name_says_with_torchs_defaults(name: str) -> None:
    family, _, implementation = name.partition("_")
    kind = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[family]
    model = nn.Linear(4, 4)
    optimizer = look_up(OPTIMIZERS[name])(model.parameters(), False)
    assert type(optimizer) is kind
    expected = {**kind(model.parameters()).defaults, **OPTIMIZER_FLAGS[implementation]}
    different = {key for key, value in expected.items() if optimizer.defaults[key] != value}
    # torch turns `foreach` off by itself where `fused` is asked for
    assert different <= ({"foreach"} if implementation == "fused" else set())


@pytest.mark.parametrize("name", TORCH_OPTIMIZERS)
def test_all_optimizers_of_a_family_make_the_same_step(name: str) -> None:
    def after_three_steps(make: Callable[..., torch.optim.Optimizer]) -> torch.Tensor:
        torch.manual_seed(0)
        model = nn.Linear(8, 8)
        optimizer = make(model.parameters())
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.ones(2, 8)).square().sum().backward()
            optimizer.step()
        return model.weight.detach()

    family = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[name.partition("_")[0]]
    ours = after_three_steps(lambda parameters: look_up(OPTIMIZERS[name])(parameters, False))
    torch.testing.assert_close(ours, after_three_steps(family))


@pytest.mark.parametrize("name", WORKLOADS)
@pytest.mark.parametrize("norm", TORCH_NORMS)
def test_a_workload_builds_batches_and_a_finite_loss_at_smoke_size(name: str, norm: str) -> None:
    workload = look_up(WORKLOADS[name])
    size = workload.sizes["smoke"]
    torch.manual_seed(0)
    model = workload.build(look_up(NORMS[norm]), **size)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    kinds = {"layernorm": nn.LayerNorm, "rmsnorm": nn.RMSNorm}
    normed = [module for module in model.modules() if isinstance(module, tuple(kinds.values()))]
    assert normed and all(type(module) is kinds[norm] and module.eps == 1e-6 for module in normed)
    blocks = workload.blocks(model)
    assert len(blocks) == size["depth"] == 2
    inside = {id(parameter) for block in blocks for parameter in block.parameters()}
    assert inside < {id(parameter) for parameter in model.parameters()}

    inputs, targets = workload.batch(3, 0, torch.Generator().manual_seed(1), **size)
    again, _ = workload.batch(3, 0, torch.Generator().manual_seed(1), **size)
    assert torch.equal(inputs, again)
    assert workload.samples(3, **size) == targets.numel()
    loss = workload.loss(model, inputs, targets)
    assert loss.shape == () and loss.dtype == torch.float32
    # a new model knows nothing: about the loss of a uniform guess
    choices = size.get("vocabulary") or size["num_classes"]
    assert abs(loss.item() - torch.tensor(float(choices)).log().item()) < 1
    loss.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_full_sizes_are_those_that_the_documentation_names() -> None:
    assert look_up(WORKLOADS["vit_huge"]).sizes["full"] == {
        "img_size": 256,
        "embed_dim": 1280,
        "num_classes": 1024,
        "depth": 32,
        "num_heads": 16,
    }
    assert look_up(WORKLOADS["lm"]).samples(16, **look_up(WORKLOADS["lm"]).sizes["full"]) == 16 * 1024
    lm, wide = look_up(WORKLOADS["lm"]), look_up(WORKLOADS["lm_wide"])
    assert wide.sizes["full"] == {**lm.sizes["full"], "width": 4096, "heads": 64}
    with torch.device("meta"):
        model = wide.build(look_up(NORMS["layernorm"]), **wide.sizes["full"])
    assert sum(parameter.numel() for parameter in model.parameters()) == 2_689_196_032


def test_the_language_model_looks_only_back() -> None:
    workload = look_up(WORKLOADS["lm"])
    size = workload.sizes["smoke"]
    torch.manual_seed(0)
    model = workload.build(look_up(NORMS["layernorm"]), **size).eval()
    tokens, targets = workload.batch(1, 0, torch.Generator().manual_seed(0), **size)
    assert torch.equal(tokens[:, 1:], targets[:, :-1])
    changed = tokens.clone()
    changed[0, 40] = (changed[0, 40] + 1) % size["vocabulary"]
    with torch.no_grad():
        one, other = model(tokens), model(changed)
    torch.testing.assert_close(one[:, :40], other[:, :40])
    assert not torch.allclose(one[:, 40:], other[:, 40:])


@pytest.mark.parametrize("name", PRECISIONS)
def test_the_supervisor_knows_which_precisions_need_a_gpu(name: str) -> None:
    try:
        look_up(PRECISIONS[name])(CPU, torch.float32)
    except Unsupported as error:
        assert name in NEEDS_GPU and "NVIDIA GPU" in str(error)
    else:
        assert name not in NEEDS_GPU


def test_the_supervisor_knows_which_other_recipes_need_a_gpu() -> None:
    fused = {*NORMS, *OPTIMIZERS} - {*TORCH_NORMS, *TORCH_OPTIMIZERS}
    compiles = {name for name, reference in COMPILES.items() if look_up(reference).captured}
    gemms = set()
    for name, reference in GEMMS.items():
        try:
            look_up(reference)(CPU)
        except Unsupported:
            gemms.add(name)
    assert fused | compiles | gemms == NEEDS_GPU - {*PRECISIONS}
