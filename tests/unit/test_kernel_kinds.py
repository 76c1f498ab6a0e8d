"""The kind of each kernel, against names that were seen on an H200 and names that other libraries use.

kernel_names.csv: names longer than 230 characters are cut there; `seen` is `no` for kernels that no run had yet.
"""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from halfstep.kernel_kinds import KINDS, OTHER, PATTERNS, kind_of

with Path(__file__).with_name("kernel_names.csv").open(encoding="utf-8", newline="") as stream:
    NAMES = list(csv.DictReader(stream))


@pytest.mark.parametrize("row", NAMES, ids=[row["kernel"][:60] for row in NAMES])
def test_kind_of_a_real_kernel(row: dict[str, str]) -> None:
    assert kind_of(row["kernel"]) == row["kind"]


def test_every_kind_has_an_example_and_a_pattern() -> None:
    assert {row["kind"] for row in NAMES} == set(KINDS)
    assert {kind for kind, _ in PATTERNS} == set(KINDS) - {OTHER}


def test_a_norm_fused_by_inductor_is_pointwise_and_a_norm_by_itself_is_not() -> None:
    assert kind_of("triton_red_fused_native_layer_norm_0") == "pointwise"
    assert kind_of("void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float>") == "norm"
