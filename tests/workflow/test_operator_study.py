"""Comparisons of operators through the real Snakemake: what reruns, and a study that is measured for real."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from tree import REPORTING, Tree, runs

Config = dict[str, Any]
CONFIG: Config = {
    "scale": "full",
    "parity": "never",
    "replicates": 2,
    "comparisons": {
        "gemm": {"workload": "gemm", "baseline": "a", "variants": {"a": {}, "b": {"gemm": "fp8_tensorwise"}}},
        "lm": {"workload": "lm", "baseline": "fp32", "variants": {"fp32": {}}},
    },
}


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Tree:
    """A tree after one call, measured by the stand-in. Only to be copied."""
    tree = Tree.make(tmp_path_factory.mktemp("operators") / "tree", CONFIG, stand_in=True)
    assert set(tree.run()) == runs("gemm/a", "gemm/b", "lm/fp32") | {"probe_system"} | REPORTING
    return tree


def code(path: str) -> Callable[[Tree], None]:
    """One more statement in a file of the package."""
    name = f"src/halfstep/{path}"
    return lambda tree: tree.write(name, f"{tree.read(name)}\nEDITED = True\n")


def study(change: Callable[[Config], Any]) -> Callable[[Tree], None]:
    def edit(tree: Tree) -> None:
        config = deepcopy(CONFIG)
        change(config)
        tree.configure(config)

    return edit


PRODUCTS = runs("gemm/a", "gemm/b")
TRAINED = runs("lm/fp32")
EDITS: dict[str, tuple[Callable[[Tree], None], set[str]]] = {
    "a product": (code("recipes/gemms.py"), PRODUCTS),
    "the operator": (code("workloads/gemm.py"), PRODUCTS),
    "the benchmark helper": (code("measure/benchmark.py"), PRODUCTS),
    "the loop over cases": (code("measure/operators.py"), PRODUCTS),
    "the loop over steps": (code("measure/training.py"), TRAINED),
    "a default that means nothing to a product": (study(lambda c: c.update(defaults={"batch": 32})), TRAINED),
    "the window of training": (study(lambda c: c.update(window={"min_steps": 30})), TRAINED),
    "one product's setting": (study(lambda c: c["comparisons"]["gemm"]["variants"].update(b={"gemm": "te"})),
                              runs("gemm/b")),
}  # fmt: skip


@pytest.mark.parametrize("edit", EDITS)
def test_an_edit_measures_again_what_hangs_on_it(edit: str, measured: Tree, tmp_path: Path) -> None:
    tree = measured.copy(tmp_path / "tree")
    change, again = EDITS[edit]
    change(tree)
    assert tree.plan() == again | REPORTING


def test_a_case_has_its_speedup_and_its_line(measured: Tree) -> None:
    speedups = measured.rows("results/cpu/tables/speedups.csv")
    assert [(row["variant"], row["case"]) for row in speedups] == [("b", "64x64x64"), ("b", "128x128x128")]
    assert all(row["pairs"] == "2" and row["speedup"] for row in speedups)
    report = measured.read("results/cpu/report.md")
    assert "6 of 6 runs are ok." in report
    assert "| 64x64x64 | `b` |" in report
    assert (measured.root / "results/cpu/figures/gemm-cases.svg").exists()


def test_operators_that_are_measured_for_real(tmp_path: Path) -> None:
    """On the CPU at smoke scale, from config.yaml to the report."""
    variants = {"bf16": {}, "tensorwise": {"gemm": "fp8_tensorwise"}, "rowwise": {"gemm": "fp8_rowwise"}}
    config = {
        "scale": "smoke",
        "comparisons": {
            "types": {"workload": "dtypes", "baseline": "torch", "variants": {"torch": {}}},
            "products": {"workload": "gemm", "baseline": "bf16", "variants": variants},
        },
    }
    tree = Tree.make(tmp_path / "tree", config, stand_in=False)
    measured = runs("types/torch", *(f"products/{name}" for name in variants))
    assert set(tree.run()) == measured | {"probe_system"} | REPORTING
    rows = tree.rows("results/cpu-smoke/tables/runs.csv")
    values = {row["case"]: row["value"] for row in rows if row["comparison"] == "types"}
    assert (values["cast float8_e4m3fn 1"], values["finfo float8_e5m2 max"]) == ("-0.8125", "57344")
    statuses = {(row["variant"], row["case"]): row["status"] for row in rows if row["comparison"] == "products"}
    assert statuses["rowwise", ""] == "unsupported"
    assert statuses["tensorwise", "64x64x64, cast included"] == "ok"
    assert statuses["bf16", "example 16x16x16, bias, e4m3 output"] == "unsupported"
    report = tree.read("results/cpu-smoke/report.md")
    assert "6 of 8 runs are ok." in report
    assert "| 1 | -0.7825133 | -0.78125 | -0.8125 | -0.75 |" in report
    assert (tree.root / "results/cpu-smoke/figures/types-cases.png").exists()
    assert tree.plan() == set()
