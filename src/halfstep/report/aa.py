"""The A/A test, one variant against itself: `python -m halfstep.report.aa results/h200/runs/aa/bf16`.

Its replicates are split into two sides of three, which the study's own statistics then compare. There is no difference
to find: each interval without 1 in it is a false one, and of those there should be one in twenty.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations, product
from pathlib import Path
from statistics import median, stdev

from pydantic import ValidationError

from halfstep.docs_tables import markdown
from halfstep.records import RecordError, read_record
from halfstep.report.collect import collect_run
from halfstep.report.protocols import by_protocol
from halfstep.report.statistics import CONFIDENCE, Timing, compare
from halfstep.report.tables import Row, timings
from halfstep.report.wording import digits, percent
from halfstep.runs import Run

SIDE, SPLITS, SEED = 3, 20, 0
LEAST = 10  # replicates: fewer have no SPLITS ways to take SIDE pairs
EXAMPLE = "name the folder of a variant, such as results/h200/runs/aa/bf16"
HEADINGS = ("splits", "which", "false differences", "share", "nominal", "interval's half width (median)")
Split = tuple[Sequence[Timing], Sequence[Timing]]


def unpaired_splits(runs: Sequence[Timing]) -> list[Split]:
    """Every way to take two sides of SIDE runs each, whichever of the two is called the first."""
    return [
        (left, right)
        for left in combinations(runs, SIDE)
        for right in combinations([run for run in runs if run not in left], SIDE)
        if left[0].replicate < right[0].replicate
    ]


def paired_splits(runs: Sequence[Timing]) -> list[Split]:
    """Every way to take SIDE pairs of neighbours in time, and of each pair one run for either side.

    So do a baseline and its variant meet in a study. Both runs of a pair get one number, by which they are paired.
    """
    splits: list[Split] = []
    for pairs in combinations(zip(runs[::2], runs[1::2], strict=False), SIDE):
        for turned in product((0, 1), repeat=SIDE - 1):  # turning the first pair too would only swap the sides
            ordered = [(pair[turn], pair[1 - turn]) for pair, turn in zip(pairs, (0, *turned), strict=True)]
            sides = zip(*ordered, strict=True)
            left, right = ([replace(run, replicate=n) for n, run in enumerate(side)] for side in sides)
            splits.append((left, right))
    return splits


def lines(runs: Sequence[Timing]) -> list[list[str]]:
    """The table's lines: what SPLITS random splits say, and all there are, in pairs and not."""
    found = []
    for way, splits in (("pairs of neighbours", paired_splits(runs)), ("any, unpaired", unpaired_splits(runs))):
        some = random.Random(SEED).sample(splits, SPLITS)
        for which, chosen in ((f"{SPLITS} at random", some), ("all", splits)):
            ratios = [compare(*split) for split in chosen]
            false = sum(ratio.above_one or ratio.below_one for ratio in ratios)
            half = median((ratio.high - ratio.low) / 2 for ratio in ratios if ratio.high and ratio.low)
            share, nominal = percent(false / len(ratios)), percent(1 - CONFIDENCE)
            found.append([way, which, f"{false} of {len(ratios)}", share, nominal, f"{digits(100 * half)} %"])
    return found


def read_runs(folder: Path) -> list[Row]:
    """The rows of the replicates in a variant's folder, in their order, each by the protocol that it was measured by.

    Raises:
        RecordError: there is none, a record is not whole, or they are of an operator.
    """
    rows = []
    for path in sorted(folder.glob("rep*"), key=lambda path: (len(path.name), path.name)):
        try:
            run = Run.model_validate(read_record(path).get("run"))
        except ValidationError as error:
            raise RecordError(f"{path}/record.json is of another version of halfstep") from error
        if run.protocol is None:
            raise RecordError(f"{folder}: an operator's runs have a time per case; the A/A test takes training steps")
        collected = collect_run(path, (folder.parent.name, folder.name, run.replicate), run, None, run.protocol)
        rows += [by_protocol(row, run.protocol) for row in collected.rows]
    if not rows:
        raise RecordError(f"{folder} holds no replicate: {EXAMPLE}")
    return rows


def report(folder: Path) -> str:
    """What the A/A test says of a variant's replicates, as Markdown.

    Raises:
        RecordError: there are too few, or they are not of one GPU, one sitting and one environment.
    """
    rows = read_runs(folder)
    runs = timings(rows)
    if len(runs) < LEAST:
        other = next((f"; one is {row['status']}: {row['reason']}" for row in rows if row["status"] != "ok"), "")
        raise RecordError(f"{folder}: {len(runs)} of {len(rows)} replicates are ok, and the test needs {LEAST}{other}")
    if len({(run.gpu_uuid, run.sitting, run.environment) for run in runs}) > 1:
        raise RecordError(f"{folder}: its replicates are not of one GPU, one sitting and one environment")
    times = [run.ms_per_sample for run in runs]
    what = f"`{folder.parent.name}/{folder.name}`, standard deviation {100 * stdev(times) / median(times):.2g} %"
    return f"{len(runs)} of {len(rows)} replicates of {what}.\n\n{markdown(HEADINGS, lines(runs))}"


if __name__ == "__main__":
    try:
        if len(sys.argv) != 2:
            raise RecordError(f"python -m halfstep.report.aa FOLDER: {EXAMPLE}")
        print(report(Path(sys.argv[1])), end="")
    except RecordError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
