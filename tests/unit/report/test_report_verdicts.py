"""The rules of the verdicts at their edges, and the sentence of why."""

from __future__ import annotations

import pytest

from halfstep.report.statistics import Ratio
from halfstep.report.verdicts import Batches, answer, batch_ratio, judge, judge_batches, judge_breaks, kernel_changes


def ratio(low: float, high: float) -> Ratio:
    return Ratio((low * high) ** 0.5, low, high, 5, 5, 5, "paired")


MISSING = Ratio(reason="no run with status ok")
SINGLE = Ratio(1.6, None, None, 1, 1, 1, "single")


@pytest.mark.parametrize(
    ("found", "expected", "verdict"),
    [
        ([ratio(1.40, 1.50)], 1.47, "holds here"),
        ([ratio(1.50, 1.60)], 1.47, "holds here"),
        ([ratio(1.30, 1.47)], 1.47, "holds here"),
        ([ratio(1.30, 1.4699)], 1.47, "weaker here"),
        ([ratio(1.0001, 1.01)], 1.47, "weaker here"),
        ([ratio(1.0, 1.01)], 1.47, "not decided"),
        ([ratio(0.9, 1.6)], 1.47, "not decided"),
        ([ratio(0.9, 1.0)], 1.47, "not decided"),
        ([ratio(0.9, 0.9999)], 1.47, "does not hold here"),
        ([SINGLE], 1.47, "not decided"),
        ([MISSING], 1.47, "not measurable here"),
        ([ratio(1.1, 1.2)], None, "holds here"),
        ([ratio(1.1, 1.2), ratio(2, 3)], None, "holds here"),
        ([ratio(1.1, 1.2), ratio(0.99, 1.01)], None, "not decided"),
        ([ratio(1.1, 1.2), SINGLE], None, "not decided"),
        ([ratio(1.1, 1.2), MISSING], None, "not measurable here"),
        ([ratio(0.8, 0.9), MISSING], None, "does not hold here"),
        ([ratio(1.4, 1.5), ratio(1.2, 1.3)], 1.47, "weaker here"),
    ],
)
def test_verdicts(found, expected, verdict):
    assert judge(found, expected) == verdict


@pytest.mark.parametrize(
    ("found", "word"),
    [
        ([ratio(1.1, 1.2)], "faster"),
        ([ratio(0.8, 0.9)], "slower"),
        ([ratio(0.9, 1.1)], "not decided"),
        ([SINGLE], "not decided"),
        ([MISSING], "not measurable here"),
        ([ratio(1.1, 1.2), ratio(0.8, 0.9)], "depends"),
        ([ratio(1.1, 1.2), ratio(0.9, 1.1)], "not decided"),
        ([ratio(1.1, 1.2), MISSING], "not measurable here"),
    ],
)
def test_a_question_has_an_answer(found, word):
    assert answer(found) == word


def batches(*fitted: bool | None) -> Batches:
    return Batches(dict(zip((16, 32, 48, 64), fitted, strict=True)))


BF16 = batches(True, False, False, False)
UP_TO_32 = batches(True, True, False, False)


@pytest.mark.parametrize(
    ("ours", "theirs", "verdict"),
    [
        ([UP_TO_32], [BF16], "holds here"),
        ([BF16, UP_TO_32], [BF16], "holds here"),
        ([batches(True, True, True, False)], [UP_TO_32], "weaker here"),
        ([UP_TO_32], [UP_TO_32], "does not hold here"),
        ([BF16], [UP_TO_32], "does not hold here"),
        ([batches(False, False, False, False)], [UP_TO_32], "does not hold here"),
        ([batches(True, True, True, True)], [UP_TO_32], "holds here"),
        ([batches(True, True, True, True)], [batches(True, True, True, False)], "not decided"),
        ([batches(True, True, True, True)], [batches(True, True, True, True)], "not decided"),
        ([batches(None, None, None, None)], [UP_TO_32], "not measurable here"),
        ([batches(True, True, True, None)], [UP_TO_32], "not measurable here"),
        ([batches(True, True, None, None), UP_TO_32], [BF16], "holds here"),
        ([UP_TO_32], [batches(True, None, None, None)], "not measurable here"),
        ([UP_TO_32], [batches(False, False, False, False)], "not measurable here"),
    ],
)
def test_the_largest_batch_that_fits(ours, theirs, verdict):
    assert judge_batches(ours, theirs, 2) == verdict


@pytest.mark.parametrize(
    ("ours", "theirs", "ratio"),
    [
        ([batches(True, True, True, False), UP_TO_32], [UP_TO_32, BF16], (48, 32, False)),
        ([BF16], [UP_TO_32], (16, 32, False)),
        ([batches(True, True, True, True), BF16], [UP_TO_32], (64, 32, True)),
        ([batches(True, True, None, None)], [BF16], (32, 16, True)),
        ([batches(False, False, False, False)], [UP_TO_32], None),
        ([UP_TO_32], [batches(False, False, False, False)], None),
        ([UP_TO_32], [batches(True, True, True, True)], None),
        ([UP_TO_32], [BF16, batches(True, None, None, None)], None),
    ],
)
def test_the_ratio_of_the_largest_batches(ours, theirs, ratio):
    """None where the rivals' largest is not known, since then the ratio could be smaller too."""
    assert batch_ratio(ours, theirs) == ratio
    assert ratio is None or batch_ratio(ours, theirs).value == ratio[0] / ratio[1]


def test_batches_in_words():
    assert UP_TO_32.words == "fits batch 32 of 16, 32, 48 and 64"
    assert (
        batches(True, None, False, False).words == "fits batch 16 of 16, 32, 48 and 64, with larger ones not measurable"
    )
    assert batches(False, False, False, False).words == "fits none of the batches 16, 32, 48 and 64"
    assert batches(None, None, None, None).words == "cannot be measured at 16, 32, 48 and 64"


def test_a_graph_break_confirms_that_there_are_some():
    assert (judge_breaks(1), judge_breaks(0)) == ("holds here", "does not hold here")


BEFORE = {"GEMM": 172.0, "pointwise": 77.0, "attention": 20.0, "optimizer": 5.0, "idle": 14.0}


def test_the_largest_changes_come_first_and_matrix_products_are_one_kind():
    after = {"GEMM": 10.0, "FP8 GEMM": 76.0, "pointwise": 78.0, "cast/scale": 90.0, "attention": 19.0, "idle": 60.0}
    assert kernel_changes(BEFORE, after, fused=False) == (
        "cast/scale from 0 to 90.0 ms, GEMM from 172 to 86.0 and idle time from 14.0 to 60.0"
    )


def test_what_inductor_fuses_is_taken_together_where_only_one_side_is_compiled():
    before = {**BEFORE, "pointwise": 100.0, "norm": 30.0, "copy": 8.0}
    after = {**BEFORE, "pointwise": 78.0}
    both = kernel_changes(before, after, fused=True)
    assert both == "norm, pointwise, cast and copy kernels from 138 to 78.0 ms"
    assert kernel_changes(before, after, fused=False).startswith("norms from 30.0 to 0 ms, pointwise from 100 to 78.0")


def test_no_change_and_idle_time_below_zero():
    assert kernel_changes(BEFORE, BEFORE, fused=False) == "no kind of kernel changes by 2 % of it"
    assert kernel_changes(BEFORE, {**BEFORE, "idle": -1.0}, fused=False) == "idle time from 14.0 to 0 ms"
