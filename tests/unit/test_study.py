"""The study: what it refuses, and how it says so."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from halfstep import registry
from halfstep.config_file import read_config
from halfstep.mistakes import StudyError
from halfstep.runs import Scope, resolve, run_keys
from halfstep.study import Settings, Study, validate

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


A = "comparisons.c.variants.a"
PUBLISHED = f"docker://a/b@sha256:{64 * '0'}"
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
    ("container", "docker", "container = 'docker' should hold keys with values."),
    (
        "container.builder",
        "dockr",
        "container.builder = 'dockr' is unknown: choose from auto, docker, podman, buildah; ",
    ),
    (
        "container.image",
        "docker://a/b:latest",
        "'docker://a/b:latest' does not name an image by its digest, as docker://",
    ),
    ("container.image", f"a/b@sha256:{64 * '0'}", "does not name an image by its digest"),
    (
        "container",
        {"image": PUBLISHED, "builder": "podman"},
        "container sets image, which is fetched, and builder, which",
    ),
    ("container.build_args.APEX", "x", "the key container.build_args.APEX is unknown: choose from BASE_IMAGE, APEX_"),
    (
        "container.build_args.CUDA_ARCHS",
        9.0,
        "container.build_args.CUDA_ARCHS = 9.0 should be text: put quotes round it.",
    ),
    ("container.build_args.BUILD_JOBS", 0, "container.build_args.BUILD_JOBS = 0 should be above 0."),
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


@pytest.mark.parametrize("container", [{}, {"image": PUBLISHED}, {"build_args": {"BUILD_JOBS": 2}}], ids=str)
def test_a_container_is_read_back_as_it_was(container: dict[str, Any]) -> None:
    study = validate(changed("container", container))
    assert validate(study.model_dump(mode="json")) == study
    jsonschema.validate(changed("container", container), Study.model_json_schema(), jsonschema.Draft202012Validator)


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
        ("container.builder", "dockr"),
        ("container.image", "docker://a/b:latest"),
        ("container.build_args.APEX", "x"),
    ],
)
def test_the_schema_refuses_what_the_study_refuses(path: str, value: Any) -> None:
    with pytest.raises(StudyError):
        validate(changed(path, value))
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(changed(path, value), Study.model_json_schema(), jsonschema.Draft202012Validator)
