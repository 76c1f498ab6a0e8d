"""The rule of 16 in real runs: a model or a batch that FP8 cannot take is a row that says so, before anything runs."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tree import NO_DOCTOR, REPORTING, Tree, runs

from halfstep.report.markdown import prose

# what a user adds: workloads whose model is only ever planned, since building it on a real device ends the run
WORKLOADS = '''
"""Language models that FP8 cannot take."""

from dataclasses import replace

import torch

from halfstep.workloads.lm import LM


def build_on_meta_only(norm, **size):
    if torch.get_default_device().type != "meta":
        raise RuntimeError("the model was built")
    return LM.build(norm, **size)


def of_size(**changed):
    return replace(LM, build=build_on_meta_only, sizes={"full": {**LM.sizes["smoke"], **changed}})


NARROW = of_size(width=24)
SHORT = of_size(context=4)
'''
NO_LAYER = "not one linear layer of the model can be converted to FP8: blocks.0."
NO_BATCH = "and FP8 products need a multiple of 16: the nearest batch that works is"
PRECISIONS = ("native_delayed", "torchao_tensorwise")
# comparison/variant: status, how the reason begins, how it ends
REFUSED: dict[str, tuple[str, str, str]] = {
    **{f"narrow/{precision}": ("invalid", NO_LAYER, "do not both divide by 16") for precision in PRECISIONS},
    **{f"short/{precision}": ("unsupported", "batch 7 makes 28 rows", f"{NO_BATCH} 8") for precision in PRECISIONS},
    "short/batch-1": ("unsupported", "batch 1 makes 4 rows", f"{NO_BATCH} 4"),
}


def variants(batch: int) -> dict[str, Any]:
    return {precision: {"precision": precision, "batch": batch} for precision in PRECISIONS}


CONFIG: dict[str, Any] = {
    "device": "cpu",
    "scale": "full",
    "replicates": 1,
    "comparisons": {
        "narrow": {"workload": "narrow", "baseline": PRECISIONS[0], "variants": variants(16)},
        "short": {
            "workload": "short",
            "baseline": PRECISIONS[0],
            "variants": {**variants(7), "batch-1": {"precision": PRECISIONS[0], "batch": 1}},
        },
    },
}


@pytest.fixture(scope="module")
def refused(tmp_path_factory: pytest.TempPathFactory) -> Tree:
    """A tree after its one call. Only to be looked at."""
    tree = Tree.make(tmp_path_factory.mktemp("fp8_plan") / "tree", CONFIG, stand_in=False)
    tree.write("src/halfstep/workloads/planted.py", WORKLOADS)
    tree.write("src/sitecustomize.py", NO_DOCTOR)
    lines = [f'    "{name}": "halfstep.workloads.planted:{name.upper()}",\n' for name in ("narrow", "short")]
    opening = "WORKLOADS: dict[str, str] = {\n"
    tree.edit("src/halfstep/registry.py", opening, opening + "".join(lines))
    assert set(tree.run(cores=2)) == runs(*REFUSED, replicates=1) | {"probe_system"} | REPORTING
    return tree


@pytest.mark.parametrize("name", REFUSED)
def test_what_fp8_cannot_take_is_said_before_anything_runs(name: str, refused: Tree) -> None:
    status, beginning, end = REFUSED[name]
    folder = f"results/cpu/runs/{name}/rep1"
    record = json.loads(refused.read(f"{folder}/record.json"))
    assert record["status"] == status
    assert record["reason"].startswith(beginning) and record["reason"].endswith(end)
    assert refused.rows(f"{folder}/steps.csv") == []
    (row,) = refused.rows(f"{folder}/summary.csv")
    assert (row["status"], row["reason"], row["step_ms_median"]) == (status, record["reason"], "")
    comparison, variant = name.split("/")
    assert f"| `{comparison}` | `{variant}` | 1 | {prose(record['reason'])} |" in refused.read("results/cpu/report.md")


def test_a_study_without_a_single_ok_run_has_its_report(refused: Tree) -> None:
    assert f"0 of {len(REFUSED)} runs are ok." in refused.read("results/cpu/report.md")
    assert refused.plan() == set()
