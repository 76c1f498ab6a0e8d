"""The study: what it refuses and how it says so, and which runs follow from it."""

from __future__ import annotations

import copy
import itertools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from halfstep import registry
from halfstep.study import (
    SMOKE_BATCH,
    SMOKE_REPLICATES,
    SMOKE_WINDOW,
    Run,
    Scope,
    Settings,
    Study,
    StudyError,
    at_scale,
    read_config,
    resolve,
    run_keys,
    validate,
)

CONFIG = Path(__file__).parents[2] / "config.yaml"
H200 = Scope("h200", "full")
MINIMAL: dict[str, Any] = {"comparisons": {"c": {"workload": "lm", "baseline": "a", "variants": {"a": {}, "b": {}}}}}


def changed(path: str, value: Any) -> dict[str, Any]:
    """MINIMAL with the key at a dotted path replaced; the value `...` removes it."""
    config = copy.deepcopy(MINIMAL)
    inner, (*parents, last) = config, path.split(".")
    for part in parents:
        inner = inner.setdefault(part, {})
    if value is ...:
        del inner[last]
    else:
        inner[last] = value
    return config


def study_of(variants: Mapping[str, Any], **keys: Any) -> Study:
    comparison = {"workload": "lm", "baseline": next(iter(variants)), "variants": variants}
    return validate({**keys, "comparisons": {"c": comparison}})


def run_of(settings: Mapping[str, Any], scope: Scope = H200, **keys: Any) -> Run:
    return resolve(study_of({"a": settings}, **keys), scope, ("c", "a", 1))


A = "comparisons.c.variants.a"
PRECISIONS = f"choose from {', '.join(registry.PRECISIONS)}"
MISTAKES = [
    (f"{A}.precision", "bf17", f"{A}.precision = 'bf17' is unknown: {PRECISIONS}; did you mean 'bf16'?"),
    (f"{A}.precision", "quantum", f"{A}.precision = 'quantum' is unknown: {PRECISIONS}."),
    (f"{A}.compile", "block", "did you mean 'blocks'?"),
    (f"{A}.optimizer", "adamw_fuse", "did you mean 'adamw_fused'"),
    (f"{A}.norm", "layer_norm", "did you mean 'layernorm'?"),
    (f"{A}.data", "dataloder", f"{A}.data = 'dataloder' is unknown: choose from resident, dataloader; did you mean"),
    (f"{A}.compile", False, f"{A}.compile = False should be text: put quotes round it."),
    (f"{A}.bach", 3, f"the key {A}.bach is unknown: choose from precision,"),
    (f"{A}.bach", 3, "did you mean 'batch'?"),
    (f"{A}.batch", -3, f"{A}.batch = -3 should be above 0."),
    (f"{A}.batch", 16.5, f"{A}.batch = 16.5 should be a whole number."),
    (f"{A}.batch", True, f"{A}.batch = True should be a number."),
    (f"{A}.memory_cap_gib", 0, f"{A}.memory_cap_gib = 0 should be above 0."),
    (f"{A}.memory_cap_gib", float("inf"), f"{A}.memory_cap_gib = inf should be a finite number."),
    (A, None, f"{A} is empty: it should hold keys with values."),
    (
        "comparisons.c.variants.a b",
        {},
        "the name 'a b' in comparisons.c.variants is not a valid name: use letters, digits,",
    ),
    ("comparisons.c.variants.a/b", {}, "the name 'a/b' in comparisons.c.variants is not a valid name"),
    ("comparisons.c.variants.-a", {}, "the name '-a' in comparisons.c.variants is not a valid name"),
    *(
        (
            f"comparisons.{name}",
            MINIMAL["comparisons"]["c"],
            f"the name {name!r} in comparisons is not a valid name: its end",
        )
        for name in (20 * "g", "a" + 20 * "bc")
    ),
    ("comparisons.c.variants", {}, "comparisons.c.variants is empty: it needs at least one entry."),
    ("comparisons.c.baseline", ..., "the key comparisons.c.baseline is missing."),
    ("comparisons.c.baseline", "aa", "comparisons.c names the baseline 'aa', which is not one of its variants: choose"),
    ("comparisons.c.baseline", "aa", "did you mean 'a'?"),
    ("comparisons.c.workload", "vit_hug", "comparisons.c.workload = 'vit_hug' is unknown: choose from vit_huge, lm, "),
    ("comparisons", {}, "comparisons is empty: it needs at least one entry."),
    ("comparisons", ..., "the key comparisons is missing."),
    ("comparisons", [1], "comparisons should hold keys with values."),
    ("compariosns", {}, "the key compariosns is unknown: choose from title, device,"),
    ("scale", "smok", "scale = 'smok' is unknown: choose from auto, full, smoke; did you mean 'smoke'?"),
    ("device", "h 200", "device = 'h 200' is not a valid name"),
    ("replicates", 0, "replicates = 0 should be above 0."),
    ("seed", -1, "seed = -1 should be at least 0."),
    ("window.min_steps", 1, "window.min_steps = 1 should be at least 2."),
    ("window.min_secs", 3, "the key window.min_secs is unknown: choose from warmup_steps, min_steps, min_seconds; did"),
    ("title", "", "title = '' is empty: it needs a word."),
    ("comparisons.c.title", " ", "comparisons.c.title = ' ' is blank: it needs a word."),
    ("defaults", 5, "defaults = 5 should hold keys with values."),
    ("defaults.precision", "bf61", f"precision = 'bf61' is unknown: {PRECISIONS}; did you mean 'bf16'?"),
]


@pytest.mark.parametrize(("path", "value", "sentence"), MISTAKES)
def test_a_mistake_ends_in_a_sentence_that_names_file_key_value_and_choices(
    path: str, value: Any, sentence: str
) -> None:
    with pytest.raises(StudyError) as caught:
        validate(changed(path, value), source="my.yaml")
    lines = str(caught.value).splitlines()
    assert all(line.startswith("my.yaml: ") and line.endswith((".", "?")) for line in lines)
    assert any(sentence in line for line in lines), str(caught.value)


@pytest.mark.parametrize(
    ("key", "value"), [("optimizr", "adam_fused"), ("precision", "bf61"), ("batch", -1)], ids=lambda value: str(value)
)
def test_a_mistake_in_the_defaults_is_placed_there(key: str, value: Any) -> None:
    with pytest.raises(StudyError, match=rf"defaults\.{key}\b"):
        validate(changed(f"defaults.{key}", value))


def test_every_mistake_is_told_at_once() -> None:
    config = changed(f"{A}.precision", "bf17")
    config["comparisons"]["c"]["variants"]["b"] = {"batch": 0, "bach": 1}
    config["scale"] = "tiny"
    with pytest.raises(StudyError) as caught:
        validate(config)
    told = str(caught.value)
    assert all(key in told for key in ("a.precision", "b.bach", "scale")), told


@pytest.mark.parametrize("device", ["h200-smoke", "h200-image", "latest", "reference", "image"])
def test_a_device_whose_folder_would_be_taken_for_something_else_is_refused(device: str) -> None:
    with pytest.raises(StudyError, match="device"):
        validate({**MINIMAL, "device": device})


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("title: a\ntitle: b\n", "the key 'title' is there twice (line 2)."),
        ("comparisons:\n  c:\n    baseline: a\n    baseline: b\n", "the key 'baseline' is there twice (line 4)."),
        ("title: [\n", "is not YAML: line 2, column 1: expected the node content"),
        ("title: !!python/object:os.system {}\n", "is not YAML: line 1, column 8: could not determine a constructor"),
        ("- 1\n", "should hold keys such as 'comparisons:', and is a list."),
        ("", "is empty: it should hold keys such as 'comparisons:'."),
        ("? [1]\n: 2\n", "is not YAML"),
        ("title: 2026-13-45\n", "is not YAML"),
        ("title: \xff\n".encode("latin-1"), "cannot be read: it is not UTF-8 text."),
        (None, "cannot be read: No such file or directory."),
    ],
)
def test_a_file_that_holds_no_study_is_named_in_a_sentence(
    tmp_path: Path, text: str | bytes | None, sentence: str
) -> None:
    path = tmp_path / "study.yaml"
    if text is not None:
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(StudyError) as caught:
        read_config(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert sentence in str(caught.value)


def test_yaml_merge_keys_may_be_overridden(tmp_path: Path) -> None:
    path = tmp_path / "study.yaml"
    path.write_text("a: &a {batch: 16, precision: bf16}\nb: {<<: *a, batch: 32}\n")
    assert read_config(path)["b"] == {"batch": 32, "precision": "bf16"}


def test_the_shipped_study_is_valid() -> None:
    study = validate(read_config(CONFIG))
    assert {key[0] for key in run_keys(study, H200)} == set(study.comparisons)


def test_a_study_cannot_be_changed() -> None:
    study = validate(MINIMAL)
    with pytest.raises(ValueError, match="frozen"):
        study.seed = 1  # type: ignore[misc]


# operators


def operator_study(workload: str, settings: Mapping[str, Any], **keys: Any) -> Study:
    return validate(
        {**keys, "comparisons": {"c": {"workload": workload, "baseline": "a", "variants": {"a": settings}}}}
    )


@pytest.mark.parametrize(
    ("workload", "settings", "sentence"),
    [
        ("gemm", {"batch": 16}, "c sets variants.a.batch, which the workload gemm does not know: choose from gemm."),
        ("gemm", {"batch": 16, "norm": "rmsnorm"}, "sets variants.a.norm, variants.a.batch, which"),
        ("dtypes", {"gemm": "bf16"}, "a.gemm, which the workload dtypes does not know: it has no settings."),
        ("norm", {"optimizer": "adam_fused"}, "does not know: choose from norm, compile."),
        ("norm", {"compile": "blocks"}, "a.compile = 'blocks', which the workload norm does not know: choose"),
        ("lm", {"gemm": "te"}, "sets variants.a.gemm, which the workload lm does not know: choose from precision,"),
        ("gemm", {"gemm": "fp8_rowwize"}, "did you mean 'fp8_rowwise'?"),
    ],
)  # fmt: skip
def test_a_key_that_means_nothing_to_the_workload_is_a_mistake(
    workload: str, settings: Mapping[str, Any], sentence: str
) -> None:
    with pytest.raises(StudyError) as caught:
        operator_study(workload, settings)
    assert sentence in str(caught.value)


def test_only_training_is_timed_as_the_article_did() -> None:
    comparison = {"workload": "gemm", "protocol": "article", "baseline": "a", "variants": {"a": {}}}
    with pytest.raises(StudyError, match="protocol"):
        validate({"comparisons": {"c": comparison}})


@pytest.mark.parametrize("workload", registry.OPERATORS)
def test_a_run_of_an_operator_has_only_what_means_something_to_it(workload: str) -> None:
    run = resolve(operator_study(workload, {}), H200, ("c", "a", 1))
    keys = set(registry.OPERATORS[workload].keys)
    assert {key for key in Settings.model_fields if getattr(run, key) is not None} == keys
    assert set(run.modules) == keys | {"measure", "workload"}
    assert run.window is None and not run.compiles


def test_defaults_that_mean_nothing_to_an_operator_change_none_of_its_runs() -> None:
    def runs(**keys: Any) -> str:
        return resolve(operator_study("norm", {}, **keys), H200, ("c", "a", 1)).hash()

    elsewhere = {"batch": 32, "optimizer": "adamw_fused", "precision": "bf16"}
    assert runs(defaults=elsewhere, window={"min_steps": 50}) == runs()
    assert runs(defaults={**elsewhere, "norm": "rmsnorm"}) != runs()
    assert runs(defaults={"compile": "blocks"}) == runs(defaults={"compile": "graphs"}) == runs()
    assert runs(defaults={"compile": "model"}) != runs()


def test_a_name_may_repeat_itself_as_often_as_snakemake_lets_it() -> None:
    assert 19 * "g" in validate(changed(f"comparisons.{19 * 'g'}", MINIMAL["comparisons"]["c"])).comparisons


@pytest.mark.parametrize("titles", [("Same", "Same"), ("Same", " Same\n"), (None, "c"), ("d", None)])
def test_headings_by_which_two_comparisons_could_not_be_told_apart(titles: tuple[str | None, str | None]) -> None:
    comparisons = {
        name: {**MINIMAL["comparisons"]["c"], "title": title} for name, title in zip("cd", titles, strict=True)
    }
    with pytest.raises(StudyError) as caught:
        validate({"comparisons": comparisons})
    heading = " ".join((titles[0] or titles[1] or "").split())
    assert str(caught.value) == (
        f"config.yaml: comparisons.d and comparisons.c have the same heading {heading!r} in the report: "
        "give one another title."
    )


def test_a_study_with_operators_is_read_again_as_it_was_written() -> None:
    study = validate(read_config(CONFIG))
    assert validate(study.model_dump(mode="json")) == study
    keys = [key for key in run_keys(study, H200) if key[0] in ("gemm", "layernorm", "dtypes")]
    again = validate(json.loads(study.model_dump_json()))
    assert all(resolve(again, H200, key) == resolve(study, H200, key) for key in keys)


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
    study = validate(changed("comparisons.c.replicates", 5))
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


# JSON Schema


def test_the_schema_is_valid_and_accepts_the_shipped_study() -> None:
    schema = Study.model_json_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(yaml.safe_load(CONFIG.read_text()), schema, jsonschema.Draft202012Validator)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (f"{A}.precision", "bf17"),
        (f"{A}.bach", 3),
        (f"{A}.batch", -3),
        ("scale", "tiny"),
        ("device", "h 200"),
        ("comparisons", {}),
        ("comparisons.c.baseline", ...),
        ("comparisons.c.variants", {}),
        ("comparisons.c.variants.a b", {}),
        ("comparisons.a b", MINIMAL["comparisons"]["c"]),
        ("defaults.optimizr", "adam_fused"),
        ("window.min_steps", 0),
        ("title", ""),
        ("comparisons.c.title", ""),
    ],
)
def test_the_schema_refuses_what_the_study_refuses(path: str, value: Any) -> None:
    with pytest.raises(StudyError):
        validate(changed(path, value))
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(changed(path, value), Study.model_json_schema(), jsonschema.Draft202012Validator)


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
