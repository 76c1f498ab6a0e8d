"""Which parity runs follow from a study: families, recipes, combinations, their names and their order."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from halfstep.config_file import read_config
from halfstep.parity.plan import (
    COMBINATION_STEPS,
    RECIPE_STEPS,
    SEEDS,
    ParityKey,
    ParityRun,
    Recipe,
    parity_keys,
    recipe_of,
    resolve_parity,
    why_not,
)
from halfstep.registry import COMPILES, LEARNABLE, NORMS, OPTIMIZERS, PRECISIONS, WORKLOADS
from halfstep.runs import Run, Scope, resolve
from halfstep.study import Study, Variant, validate

H200 = Scope("h200", "full")
ROOT = Path(__file__).parents[2]


def study_of(variants: Mapping[str, Any], **keys: Any) -> Study:
    comparison = {"workload": "lm", "baseline": next(iter(variants)), "variants": variants}
    return validate({**keys, "comparisons": {"c": comparison}})


def folders(study: Study, scope: Scope = H200) -> list[str]:
    """Without the references' seeds."""
    return [key.folder for key in parity_keys(study, scope) if key.seed == 1]


def test_a_family_has_its_reference_its_recipes_and_its_combinations_in_this_order() -> None:
    study = study_of(
        {
            "both": {"precision": "fp16", "optimizer": "apex_adamw", "norm": "apex_layernorm", "compile": "blocks"},
            "fp32": {"optimizer": "adamw_fused"},
        }
    )
    keys = parity_keys(study, H200)
    family = "lm+adamw_fused+layernorm"
    assert [key.folder for key in keys] == [
        *(f"{family}/reference/seed{n}" for n in range(1, SEEDS + 1)),
        f"{family}/fp16/seed1",
        f"{family}/apex_adamw/seed1",
        f"{family}/apex_layernorm/seed1",
        f"{family}/fp16+blocks+apex_adamw+apex_layernorm/seed1",
    ]
    assert [key.recipe.steps for key in keys] == [RECIPE_STEPS] * (SEEDS + 3) + [COMBINATION_STEPS]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, []),
        ({"precision": "bf16"}, ["bf16"]),
        ({"precision": "bf16", "weights": "bf16"}, ["bf16+bf16_weights"]),
        ({"compile": "blocks"}, ["blocks"]),  # compilation is no recipe, but has its own short run
        ({"precision": "bf16", "compile": "graphs"}, ["bf16", "bf16+graphs"]),
        ({"optimizer": "adam_foreach"}, ["adam_foreach"]),
        ({"norm": "liger_layernorm"}, ["liger_layernorm"]),
    ],
)
def test_what_a_variant_needs(settings: dict[str, Any], expected: list[str]) -> None:
    found = folders(study_of({"it": settings}))
    assert found == [f"lm+adam_fused+layernorm/{name}/seed1" for name in ["reference", *expected]]


def test_another_algorithm_or_kind_of_norm_is_another_family() -> None:
    study = study_of({"a": {}, "w": {"optimizer": "te_adamw"}, "r": {"norm": "apex_rmsnorm"}})
    assert folders(study) == [
        "lm+adam_fused+layernorm/reference/seed1",
        "lm+adamw_fused+layernorm/reference/seed1",
        "lm+adamw_fused+layernorm/te_adamw/seed1",
        "lm+adam_fused+rmsnorm/reference/seed1",
        "lm+adam_fused+rmsnorm/apex_rmsnorm/seed1",
    ]


def test_an_optimizer_of_an_unknown_algorithm_is_its_own_reference() -> None:
    recipe = recipe_of("lm", Variant.model_construct(**{**Variant().model_dump(), "optimizer": "lion"}))
    assert recipe is not None and recipe.is_reference and recipe.family.optimizer == "lion"


def test_it_depends_on_nothing_but_workload_and_recipes() -> None:
    """Neither on the baseline, nor on batch, data, protocol or cap, nor on how often a recipe is used."""
    variants = {"a": {"precision": "fp32"}, "b": {"precision": "bf16"}}
    plain = study_of(variants)
    runs = [resolve_parity(plain, H200, key).hash() for key in parity_keys(plain, H200)]
    others = study_of(
        {
            "b": {"precision": "bf16", "batch": 64, "memory_cap_gib": 20},
            "c": {"precision": "bf16", "batch": 32, "data": "dataloader"},
            "a": {"precision": "fp32"},
        },
        replicates=5,
        window={"min_steps": 50},
        title="another",
    )
    assert [resolve_parity(others, H200, key).hash() for key in parity_keys(others, H200)] == runs


def test_recipes_share_weights_data_and_order_and_seeds_differ_in_weights_alone() -> None:
    study = study_of({"a": {"precision": "fp32"}, "b": {"precision": "bf16"}}, seed=7)
    runs = {key.folder: resolve_parity(study, H200, key) for key in parity_keys(study, H200)}
    reference, recipe, other = (
        runs[f"lm+adam_fused+layernorm/{name}"] for name in ("reference/seed1", "bf16/seed1", "reference/seed2")
    )
    assert (recipe.seed, recipe.data_seed) == (reference.seed, reference.data_seed) == (8, 7)
    assert (other.seed, other.data_seed) == (9, 7)
    assert (recipe.batch, recipe.learning_rate, recipe.scale) == (4, 2e-4, "full")


def test_parity_runs_are_made_at_full_scale_unless_the_study_says_otherwise() -> None:
    smoke = Scope("cpu", "smoke")
    for said, full, small in (("auto", True, False), ("always", True, True), ("never", False, False)):
        study = study_of({"a": {}}, parity=said)
        assert (bool(parity_keys(study, H200)), bool(parity_keys(study, smoke))) == (full, small)
        assert (not why_not(study, H200), not why_not(study, smoke)) == (full, small)


def test_operators_have_none() -> None:
    comparison = {"workload": "norm", "baseline": "a", "variants": {"a": {}}}
    study = validate({"comparisons": {"c": comparison}})
    assert parity_keys(study, H200) == []
    assert why_not(study, H200) == "no workload of the study has data that can be learnt"


def test_folders_are_no_ones_else() -> None:
    """Names of recipes of two kinds never agree, and a family's name is none that a comparison can have."""
    kinds = (PRECISIONS, COMPILES, OPTIMIZERS, NORMS)
    names = [name for kind in kinds for name in kind]
    assert len(names) == len(set(names))
    assert not [name for name in names if "+" in name or name == "reference" or name.endswith("_weights")]
    keys = parity_keys(validate(read_config(ROOT / "config.yaml")), H200)
    assert len({key.folder for key in keys}) == len(keys) == len(set(keys))
    recipes: set[Recipe] = {key.recipe for key in keys}
    assert len({(recipe.family, recipe.name) for recipe in recipes}) == len(recipes)


def test_the_studys_own_plan() -> None:
    """By estimate half an hour on an H200: a change here is one of the time that a study takes."""
    keys = parity_keys(validate(read_config(ROOT / "config.yaml")), H200)
    long = [key for key in keys if key.recipe.steps == RECIPE_STEPS]
    assert (len(keys), len(long)) == (66, 39)
    assert {key.recipe.family.name for key in keys} == {"vit_huge+adam_fused+layernorm", "lm+adamw_fused+layernorm"}


def test_every_training_workload_of_ours_can_be_checked_but_the_wide_one() -> None:
    """Five seeds of its fp32 would take longer than all other parity runs; its recipes are checked on `lm`."""
    assert WORKLOADS.keys() - LEARNABLE.keys() == {"lm_wide"}
    assert LEARNABLE.keys() <= WORKLOADS.keys()
    study = validate(read_config(ROOT / "config.yaml"))
    wide = {
        recipe_of("lm", v) for c in study.comparisons.values() if c.workload == "lm_wide" for v in c.variants.values()
    }
    assert wide <= {key.recipe for key in parity_keys(study, H200)}


def test_a_run_of_parity_is_no_timed_run() -> None:
    study = study_of({"a": {}})
    key = parity_keys(study, H200)[0]
    assert isinstance(key, ParityKey)
    run = resolve_parity(study, H200, key)
    assert ParityRun.model_validate_json(run.canonical()) == run
    # what would make every timed run another one
    timed = resolve(study, H200, ("c", "a", 1))
    assert set(Run.model_fields) == set(timed.model_dump())
    assert set(ParityRun.model_fields) - set(Run.model_fields) == {"steps", "learning_rate", "data_seed"}
