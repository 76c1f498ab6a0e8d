"""Which runs follow from a study, and in which order."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from typing import Any

import pytest

from halfstep.mistakes import StudyError
from halfstep.runs import SMOKE_WINDOW, Run, Scope, at_scale, resolve, run_keys
from halfstep.study import SMOKE_BATCH, SMOKE_REPLICATES, Study, validate

H200 = Scope("h200", "full")
MINIMAL: dict[str, Any] = {"comparisons": {"c": {"workload": "lm", "baseline": "a", "variants": {"a": {}, "b": {}}}}}


def study_of(variants: Mapping[str, Any], **keys: Any) -> Study:
    comparison = {"workload": "lm", "baseline": next(iter(variants)), "variants": variants}
    return validate({**keys, "comparisons": {"c": comparison}})


def run_of(settings: Mapping[str, Any], scope: Scope = H200, **keys: Any) -> Run:
    return resolve(study_of({"a": settings}, **keys), scope, ("c", "a", 1))


# what makes another run, and what does not


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"batch": 16, "precision": "bf16"}, {"precision": "bf16", "batch": 16}),
        ({"batch": 32}, {"batch": 32.0}),
        ({"memory_cap_gib": 22}, {"memory_cap_gib": 22.0}),
        ({}, {"precision": "fp32", "compile": "none", "batch": 16, "data": "resident", "memory_cap_gib": None}),
    ],
    ids=["order", "16.0", "22.0", "defaults written out"],
)
def test_the_same_run_written_in_another_way_has_the_same_text_and_hash(
    one: Mapping[str, Any], other: Mapping[str, Any]
) -> None:
    assert run_of(one).canonical() == run_of(other).canonical()
    assert run_of(one).hash() == run_of(other).hash()


def test_moving_a_value_into_the_defaults_changes_no_run() -> None:
    inside = run_of({"precision": "bf16", "batch": 32})
    assert run_of({"batch": 32}, defaults={"precision": "bf16"}).hash() == inside.hash()
    assert run_of({"batch": 32}, defaults={"precision": "bf16", "batch": 8}).hash() == inside.hash()
    assert run_of({"batch": 32, "compile": "none"}, defaults={"precision": "bf16", "compile": "blocks"}) == inside


def test_names_titles_and_the_baseline_are_no_part_of_a_run() -> None:
    study = study_of({"a": {"batch": 8}, "b": {"batch": 8}}, title="one")
    assert resolve(study, H200, ("c", "a", 2)).hash() == resolve(study, H200, ("c", "b", 2)).hash()
    assert (
        resolve(study, H200, ("c", "a", 2)).hash()
        == resolve(study_of({"b": {}, "a": {"batch": 8}}, title="two"), H200, ("c", "a", 2)).hash()
    )


@pytest.mark.parametrize(
    "keys",
    [{"seed": 1}, {"timeout_s": 60}, {"window": {"min_steps": 30}}, {"defaults": {"norm": "rmsnorm"}}],
    ids=str,
)
def test_what_is_measured_differently_is_another_run(keys: Mapping[str, Any]) -> None:
    assert run_of({}, **keys).hash() != run_of({}).hash()


def test_scope_and_replicate_make_another_run() -> None:
    study = validate(MINIMAL)
    hashes = {
        resolve(study, scope, ("c", "a", n)).hash()
        for scope in (H200, Scope("h200", "smoke"), Scope("l4", "full"))
        for n in (1, 2)
    }
    assert len(hashes) == 6


def test_a_run_survives_its_own_text() -> None:
    run = run_of({"precision": "fp16", "memory_cap_gib": 22})
    assert Run.model_validate_json(run.canonical()) == run
    assert json.loads(run.canonical())["modules"]["precision"].endswith(":Fp16GradScaler")


def test_smoke_scale_replaces_sizes_window_and_replicates() -> None:
    study = study_of({"a": {"batch": 128}}, replicates=5)
    scope = Scope("h200", "smoke")
    assert len(run_keys(study, scope)) == SMOKE_REPLICATES
    assert len(run_keys(study_of({"a": {}}, replicates=1), scope)) == 1
    run = resolve(study, scope, ("c", "a", 2))
    assert (run.batch, run.window, run.scale) == (SMOKE_BATCH, SMOKE_WINDOW, "smoke")
    assert resolve(study, H200, ("c", "a", 2)).batch == 128


def test_replicates_are_the_comparisons_own_or_the_studys() -> None:
    study = validate({"comparisons": {"c": {**MINIMAL["comparisons"]["c"], "replicates": 5}}})
    assert sorted({key[2] for key in run_keys(study, H200)}) == [1, 2, 3, 4, 5]
    assert sorted({key[2] for key in run_keys(validate(MINIMAL), H200)}) == [1, 2, 3]


def test_each_replicate_has_its_own_seed_for_all_variants_alike() -> None:
    study = validate({**MINIMAL, "seed": 40})
    seeds = {(key[1], key[2]): resolve(study, H200, key).seed for key in run_keys(study, H200)}
    assert seeds == {(variant, n): 40 + n for variant in "ab" for n in (1, 2, 3)}


# order


def big(seed: int = 0) -> Study:
    names = [f"v{n}" for n in range(8)]
    comparison = {"workload": "lm", "baseline": "v0", "variants": {name: {} for name in names}}
    return validate({"seed": seed, "replicates": 4, "comparisons": {"z": comparison, "a": comparison}})


def test_runs_go_by_comparison_then_replicate_and_each_variant_once() -> None:
    keys = run_keys(big(), H200)
    blocks = [(block, [key[1] for key in found]) for block, found in itertools.groupby(keys, lambda k: (k[0], k[2]))]
    assert [block for block, _ in blocks] == [(name, n) for name in ("z", "a") for n in (1, 2, 3, 4)]
    assert all(sorted(variants) == [f"v{n}" for n in range(8)] for _, variants in blocks)


def test_the_shuffle_is_seeded_and_differs_by_replicate_comparison_and_seed() -> None:
    def orders(study: Study) -> list[tuple[str, ...]]:
        keys = run_keys(study, H200)
        return [tuple(k[1] for k in group) for _, group in itertools.groupby(keys, lambda k: (k[0], k[2]))]

    assert orders(big()) == orders(big())
    assert len(set(orders(big()))) == 8  # of 40320 each: two alike would be a seed that is not used
    assert not set(orders(big())) & set(orders(big(seed=1)))


def test_the_order_of_the_file_and_a_new_comparison_shuffle_nothing_anew() -> None:
    forwards = study_of({f"v{n}": {} for n in range(6)})
    backwards = study_of({f"v{n}": {} for n in reversed(range(6))})
    assert run_keys(forwards, H200) == run_keys(backwards, H200)
    comparisons = {"new": MINIMAL["comparisons"]["c"], **forwards.model_dump()["comparisons"]}
    more = validate({"comparisons": comparisons})
    assert [key for key in run_keys(more, H200) if key[0] == "c"] == run_keys(forwards, H200)


# scope


@pytest.mark.parametrize("device", ["cpu", "h200", "rtx-4090", "h100-pcie", "h200-mig-1g.18gb"])
@pytest.mark.parametrize("scale", ["full", "smoke"])
@pytest.mark.parametrize("image", [False, True])
def test_a_scope_is_read_back_from_its_name(device: str, scale: str, image: bool) -> None:
    scope = Scope(device, scale, image)
    assert Scope.parse(scope.name) == scope


def test_scopes_are_named_for_people() -> None:
    assert Scope("h200", "full").name == "h200"
    assert Scope("cpu", "smoke").name == "cpu-smoke"
    assert Scope("h200", "smoke", True).name == "h200-smoke-image"


def test_a_smoke_run_leaves_out_what_says_so_and_the_claims_about_it() -> None:
    comparison = {"workload": "lm", "baseline": "a", "variants": {"a": {}, "b": {}}}
    versus = {"variant": "b", "over": "a"}
    claims = {
        name: {"claim": name, "source": "us", "same_batch": {"comparison": name, **versus}} for name in ("c", "big")
    }
    config = {"comparisons": {"c": comparison, "big": {**comparison, "smoke": False}}, "claims": claims}
    study = validate(config)
    smoke = at_scale(study, Scope("cpu", "smoke"))
    assert (list(smoke.comparisons), list(smoke.claims)) == (["c"], ["c"])
    assert validate(smoke.model_dump(mode="json")) == smoke
    assert at_scale(study, H200) == study
    with pytest.raises(StudyError, match="a smoke run has nothing to do"):
        at_scale(validate({"comparisons": {"big": {**comparison, "smoke": False}}}), Scope("cpu", "smoke"))
