"""Claims in a study: what is refused and how it says so, and that a claim is no part of a run."""

from __future__ import annotations

import copy
from typing import Any

import jsonschema
import pytest

from halfstep.mistakes import StudyError
from halfstep.runs import Scope, resolve, run_keys
from halfstep.study import Study, validate

STUDY: dict[str, Any] = {
    "comparisons": {
        "vit": {
            "workload": "vit_huge",
            "baseline": "bf16",
            "variants": {
                "bf16": {"precision": "bf16", "batch": 32},
                "bf16-blocks": {"precision": "bf16", "compile": "blocks", "batch": 32},
                "bf16-b16": {"precision": "bf16", "batch": 16},
                "fp8": {"precision": "te_linears_delayed", "batch": 32},
                "fp8-blocks": {"precision": "torchao_tensorwise", "compile": "blocks", "batch": 32},
            },
        },
        "norm": {
            "workload": "norm",
            "baseline": "torch",
            "variants": {"torch": {"compile": "model"}, "rms": {"norm": "rmsnorm"}},
        },
    },
    "claims": {
        "a": {
            "claim": "FP8 linears raise the throughput by 47 %",
            "source": "an article",
            "ratio": 1.47,
            "article": {"comparison": "vit", "variant": "fp8-blocks", "over": "bf16-b16"},
            "same_batch": {"comparison": "vit", "variant": "fp8-blocks", "over": "bf16"},
            "both_compiled": {"comparison": "vit", "variant": "fp8-blocks", "over": "bf16-blocks"},
        },
    },
}
CLAIM = STUDY["claims"]["a"]
SENTENCE = {"claim": "x", "source": "y"}
SIDES = {"comparison": "vit", "variant": "fp8", "over": "bf16"}


def with_claim(claim: Any) -> dict[str, Any]:
    return {**copy.deepcopy(STUDY), "claims": {"a": claim}}


def test_what_a_claim_is() -> None:
    fits = {"comparison": "vit", "variants": "fp8", "over": ["bf16", "bf16-b16"]}
    kinds = {
        "ratio": CLAIM,
        "order": {**SENTENCE, "order": True, "same_batch": SIDES},
        "question": {**SENTENCE, "same_batch": SIDES},
        "fits": {**SENTENCE, "ratio": 2, "fits": fits},
        "graph_breaks": {**SENTENCE, "graph_breaks": {"comparison": "vit", "variant": "fp8-blocks"}},
    }
    study = validate({**STUDY, "claims": kinds})
    assert {name: claim.kind for name, claim in study.claims.items()} == {name: name for name in kinds}
    assert list(study.claims["ratio"].versus) == ["article", "same_batch", "both_compiled"]
    assert validate(study.model_dump(mode="json")) == study
    jsonschema.validate({**STUDY, "claims": kinds}, Study.model_json_schema(), jsonschema.Draft202012Validator)


def test_one_name_and_a_list_of_one_are_the_same() -> None:
    one, many = (
        validate(with_claim({**SENTENCE, "same_batch": {**SIDES, "over": over}})) for over in ("bf16", ["bf16"])
    )
    assert one == many


def test_a_claim_is_no_part_of_a_run() -> None:
    scope, without = Scope("h200", "full"), validate({**STUDY, "claims": {}})
    study = validate(STUDY)
    assert run_keys(study, scope) == run_keys(without, scope)
    for key in run_keys(study, scope):
        assert resolve(study, scope, key) == resolve(without, scope, key)


MISTAKES: list[tuple[Any, str]] = [
    ({**CLAIM, "ratoi": 2}, "the key claims.a.ratoi is unknown: choose from claim, source, ratio,"),
    ({"claim": "x", "same_batch": SIDES}, "the key claims.a.source is missing."),
    ({**CLAIM, "ratio": 1}, "claims.a.ratio = 1 should be above 1."),
    ({**CLAIM, "ratio": True}, "claims.a.ratio = True should be a number."),
    ({**CLAIM, "order": True}, "claims.a has both a ratio and order: true; keep the ratio, which says more."),
    ({**CLAIM, "order": "yse"}, "claims.a.order = 'yse' should be true or false."),
    (SENTENCE, "claims.a needs exactly one of same_batch, fits and graph_breaks, and has none of them."),
    (
        {**CLAIM, "graph_breaks": {"comparison": "vit", "variant": "fp8"}},
        "claims.a needs exactly one of same_batch, fits and graph_breaks, and has same_batch and graph_breaks.",
    ),
    (
        {**SENTENCE, "article": SIDES, "graph_breaks": {"comparison": "vit", "variant": "fp8-blocks"}},
        "claims.a has article, without the same_batch that the verdict goes by.",
    ),
    (
        {**SENTENCE, "fits": {"comparison": "vit", "variants": "fp8", "over": "bf16"}},
        "claims.a has fits, and no ratio of the two batches to compare it with.",
    ),
    (
        {**SENTENCE, "ratio": 2, "graph_breaks": {"comparison": "vit", "variant": "fp8-blocks"}},
        "claims.a has a ratio or an order that nothing in it could confirm.",
    ),
    (
        {**SENTENCE, "same_batch": {**SIDES, "comparison": "vti"}},
        "claims.a.same_batch.comparison = 'vti' is unknown: choose from vit, norm; did you mean 'vit'?",
    ),
    (
        {**SENTENCE, "same_batch": {**SIDES, "variant": "fp8-block"}},
        "claims.a.same_batch.variant = 'fp8-block' is not one of vit's variants: choose from bf16, bf16-blocks, "
        "bf16-b16, fp8, fp8-blocks; did you mean 'fp8-blocks'?",
    ),
    ({**SENTENCE, "same_batch": {**SIDES, "over": ["bf16", "bf17"]}}, "claims.a.same_batch.over = 'bf17' is not one"),
    (
        {**SENTENCE, "same_batch": {**SIDES, "over": []}},
        "claims.a.same_batch.over is empty: it needs at least one entry.",
    ),
    (
        {**SENTENCE, "same_batch": {**SIDES, "over": 3}},
        "claims.a.same_batch.over = 3 should be a name or a list of names.",
    ),
    ({**SENTENCE, "same_batch": {**SIDES, "over": "fp8"}}, "claims.a.same_batch names 'fp8' twice."),
    (
        {**SENTENCE, "same_batch": {**SIDES, "over": "bf16-b16"}},
        "claims.a.same_batch compares different batches (fp8: 32, bf16-b16: 16): name variants of one batch.",
    ),
    (
        {**CLAIM, "both_compiled": SIDES},
        "claims.a.both_compiled names 'fp8', which is not compiled: name a variant that is.",
    ),
    (
        {**SENTENCE, "graph_breaks": {"comparison": "vit", "variant": "fp8"}},
        "claims.a.graph_breaks names 'fp8', which is not compiled",
    ),
    *(
        ({**CLAIM, key: value}, f"claims.a.{key} = {value!r} {said}")
        for key in ("claim", "source")
        for value, said in (("", "is empty: it needs a word."), (" \t", "is blank: it needs a word."))
    ),
    ({**SENTENCE, "same_batch": {**SIDES, "case": ""}}, "claims.a.same_batch.case = '' is empty: it needs a word."),
    *(
        (
            {**CLAIM, key: {**CLAIM[key], "case": "64x64x64"}},
            f"claims.a.{key}.case = '64x64x64' is of no use: only operators have shapes, and vit is training.",
        )
        for key in ("article", "same_batch", "both_compiled")
    ),
    (
        {**SENTENCE, "ratio": 2, "fits": {"comparison": "norm", "variants": "torch", "over": "rms"}},
        "claims.a.fits asks for batch of norm, whose workload norm is an operator: name training.",
    ),
    (
        {**SENTENCE, "graph_breaks": {"comparison": "norm", "variant": "torch"}},
        "claims.a.graph_breaks asks for graph breaks of norm, whose workload norm is an operator: name training.",
    ),
]


@pytest.mark.parametrize(("claim", "sentence"), MISTAKES, ids=[sentence[:60] for _, sentence in MISTAKES])
def test_a_mistake_ends_in_a_sentence(claim: Any, sentence: str) -> None:
    with pytest.raises(StudyError) as caught:
        validate(with_claim(claim), source="my.yaml")
    lines = str(caught.value).splitlines()
    assert all(line.startswith("my.yaml: ") and line.endswith((".", "?")) for line in lines)
    assert any(sentence in line for line in lines), str(caught.value)


def test_mistakes_of_several_claims_are_told_at_once() -> None:
    wrong = {name: {**SENTENCE, "same_batch": {**SIDES, "comparison": name}} for name in ("x", "y")}
    with pytest.raises(StudyError) as caught:
        validate({**STUDY, "claims": wrong}, source="my.yaml")
    assert [line.split(" = ")[0] for line in str(caught.value).splitlines()] == [
        f"my.yaml: claims.{name}.same_batch.comparison" for name in wrong
    ]
