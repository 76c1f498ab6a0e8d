"""The A/A test's arithmetic, on simulated runs of one variant, and its command on records."""

from __future__ import annotations

import random
import subprocess
import sys
from dataclasses import replace
from math import comb, exp, sqrt
from pathlib import Path
from typing import Any

import pytest

from halfstep.report.aa import SIDE, SPLITS, lines, paired_splits, unpaired_splits
from halfstep.report.statistics import Timing, compare
from halfstep.runs import Scope, run_keys
from halfstep.study import validate

REPLICATES = 12


def runs(rng: random.Random, pair: float = 0.0) -> list[Timing]:
    """Twelve runs of one variant; `pair`: standard deviation of what two neighbours share."""
    shared = [rng.gauss(0, pair) for _ in range(REPLICATES // 2)]
    return [
        Timing(n, "GPU-1", "s1", "e1", exp(rng.gauss(0, 0.003) + shared[(n - 1) // 2]))
        for n in range(1, REPLICATES + 1)
    ]


def test_every_split_is_there_once_and_of_different_runs() -> None:
    twelve = runs(random.Random(1))
    unpaired, paired = unpaired_splits(twelve), paired_splits(twelve)
    assert len(unpaired) == comb(12, 3) * comb(9, 3) / 2
    assert len(paired) == comb(6, 3) * 2**2
    for splits in (unpaired, paired):
        sides = [frozenset(frozenset(run.ms_per_sample for run in side) for side in split) for split in splits]
        assert len(set(sides)) == len(splits)
        assert {len(frozenset.union(*both)) for both in sides} == {2 * SIDE}
    times = [run.ms_per_sample for run in twelve]
    for left, right in paired:
        ends = [[times.index(run.ms_per_sample) for run in side] for side in (left, right)]
        assert all(abs(one - other) == 1 and min(one, other) % 2 == 0 for one, other in zip(*ends, strict=True))
        assert [run.replicate for run in left] == [run.replicate for run in right] == [0, 1, 2]


def test_each_way_is_compared_by_its_own_method() -> None:
    twelve = runs(random.Random(1))
    assert {compare(*split).method for split in paired_splits(twelve)} == {"paired"}
    assert {compare(*split).method for split in unpaired_splits(twelve)[:50]} == {"unpaired"}


@pytest.mark.parametrize("pair", [0.0, 0.05])
def test_one_difference_in_twenty_is_false_where_only_chance_is_at_work(pair: float) -> None:
    """Splits of the same twelve runs hang together, so the error is that of as many simulated dozens."""
    rng, dozens = random.Random(20261129), 400
    shares = []
    for _ in range(dozens):
        ratios = [compare(*split) for split in paired_splits(runs(rng, pair))]
        shares.append(sum(ratio.above_one or ratio.below_one for ratio in ratios) / len(ratios))
    mean = sum(shares) / dozens
    error = sqrt(sum((share - mean) ** 2 for share in shares) / (dozens - 1) / dozens)
    assert error < 0.01
    assert mean == pytest.approx(0.05, abs=3 * error)


def test_neighbours_that_differ_are_found() -> None:
    """Were every second run of a sitting slower, pairs would show it."""
    twelve = runs(random.Random(3))
    uneven = [replace(run, ms_per_sample=run.ms_per_sample * (1 + 0.1 * (n % 2))) for n, run in enumerate(twelve)]
    some, all_of_them = (line for line in lines(uneven) if line[0] == "pairs of neighbours")
    assert (some[1], all_of_them[1]) == (f"{SPLITS} at random", "all")
    turned_alike = 20  # of 80 splits: those whose pairs all have the slower run on one side
    assert all_of_them[2] == f"{turned_alike} of 80"


CONFIG: dict[str, Any] = {
    "replicates": REPLICATES,
    "comparisons": {"aa": {"workload": "vit_huge", "baseline": "bf16", "variants": {"bf16": {"precision": "bf16"}}}},
}


def command(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "halfstep.report.aa", *map(str, arguments)], capture_output=True, text=True, check=False
    )


@pytest.fixture
def variant(tmp_path: Path, scopes: Any) -> Path:
    """The folder of a variant with twelve replicates, one of them disturbed."""
    study = validate(CONFIG)
    for key in run_keys(study, Scope.parse("h200")):
        behaviour = {**scopes.behaviour["eager"], **({"status": "disturbed"} if key[2] == 12 else {})}
        scopes.write_run(tmp_path / "h200", study, key, behaviour)
    return tmp_path / "h200" / "runs" / "aa" / "bf16"


def test_the_command_takes_the_records_of_a_variant(variant: Path) -> None:
    done = command(variant)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("11 of 12 replicates of `aa/bf16`, standard deviation 0.")
    assert "| pairs of neighbours | 20 at random | " in done.stdout
    assert "| any, unpaired | all | " in done.stdout
    assert done.stdout == command(variant).stdout


def test_what_is_no_aa_test_is_refused(variant: Path, scopes: Any) -> None:
    study = validate(CONFIG)

    def refusal(*arguments: object) -> str:
        done = command(*arguments)
        assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1)
        return done.stderr

    assert "name the folder of a variant" in refusal()
    assert "holds no replicate" in refusal(variant.parent)
    scopes.write_run(variant.parents[2], study, ("aa", "bf16", 3), scopes.behaviour["eager"], sitting="s2")
    assert "not of one GPU, one sitting and one environment" in refusal(variant)
    for replicate in (1, 2):
        (variant / f"rep{replicate}" / "summary.csv").unlink()
    assert "9 of 12 replicates are ok, and the test needs 10; one is stale: summary.csv cannot be read" in refusal(
        variant
    )
    (variant / "rep5" / "record.json").unlink()
    assert "record.json cannot be read" in refusal(variant)
