"""In which order the runs of one call are measured."""

from __future__ import annotations

import json

from tree import CONFIG, Tree

from halfstep.runs import Scope, run_keys
from halfstep.study import validate


def test_by_comparison_then_replicate_then_shuffled(finished: Tree) -> None:
    begun = [tuple(job.split()[1].split("/")) for job in finished.begun if job.startswith("measure_variant ")]
    blocks = [(comparison, n) for comparison in CONFIG["comparisons"] for n in "12"]
    assert list(dict.fromkeys((comparison, n) for comparison, _, n in begun)) == blocks
    orders = {block: [variant for comparison, variant, n in begun if (comparison, n) == block] for block in blocks}
    for (comparison, _), order in orders.items():
        assert sorted(order) == sorted(CONFIG["comparisons"][comparison]["variants"])
    # comparisons and replicates are no mixture
    assert begun == [(block[0], variant, block[1]) for block in blocks for variant in orders[block]]
    keys = run_keys(validate(CONFIG), Scope("cpu", "full"))
    assert begun == [(comparison, variant, str(n)) for comparison, variant, n in keys]


def test_one_sitting(finished: Tree) -> None:
    records = [json.loads(path.read_text(encoding="utf-8")) for path in finished.root.rglob("record.json")]
    assert len(records) == 10
    (sitting,) = {record["sitting"] for record in records}
    assert sitting
    started = {(record["comparison"], record["variant"], record["replicate"]): record["started"] for record in records}
    in_order = [started[key] for key in run_keys(validate(CONFIG), Scope("cpu", "full"))]
    assert in_order == sorted(in_order)


def test_the_doctor_comes_after_the_measurements(finished: Tree) -> None:
    """It is no input of a run, and keeps nobody waiting for the first one."""
    assert finished.begun.index("probe_system") >= 10
