"""The judgement of a curve by fp32's seeds: its false alarms by simulation, and what it makes of particular curves."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from statistics import fmean, stdev

import numpy
import pytest

from halfstep.report import bands
from halfstep.report.bands import ALPHA, NOT_CHECKED, OUTSIDE, WITHIN, Curve, band, factor, judge

STEPS, SEEDS = 300, 5


def curve(seed: int, *, change: Callable[[int, float], float] = lambda step, loss: loss) -> Curve:
    """A run whose loss falls from 4 to 1; each seed is a little better or worse all along, and noisy."""
    noise = random.Random(seed)
    offset = noise.gauss(0, 0.02)
    losses = [(1 + 3 * math.exp(-step / 60)) * (1 + offset + noise.gauss(0, 0.05)) for step in range(STEPS)]
    norms = [2 * math.exp(offset + noise.gauss(0, 0.1)) for _ in range(STEPS)]
    return Curve([change(step, loss) for step, loss in enumerate(losses)], norms)


REFERENCES = [curve(seed) for seed in range(SEEDS)]


@pytest.mark.parametrize("correlation", [0.0, 0.6, 0.95])
def test_false_alarms_are_no_more_than_nominal(correlation: float) -> None:
    """Sixth runs of the very same kind, their blocks independent, related or nearly one: how many lie outside?"""
    generator = numpy.random.default_rng(20261130)
    trials, tests = 20_000, bands.TESTS
    common = generator.standard_normal((trials, SEEDS + 1, 1))
    own = generator.standard_normal((trials, SEEDS + 1, tests))
    runs = math.sqrt(correlation) * common + math.sqrt(1 - correlation) * own
    seeds, one_more = runs[:, :SEEDS], runs[:, SEEDS]
    half = factor(SEEDS, tests) * seeds.std(axis=1, ddof=1)
    share = float((abs(one_more - seeds.mean(axis=1)) > half).any(axis=1).mean())
    error = 4 * math.sqrt(ALPHA * (1 - ALPHA) / trials)
    # by Bonferroni's inequality: near it where blocks are independent, below where they go together
    assert share < ALPHA + error
    if correlation == 0:
        assert share > 0.6 * ALPHA


def test_one_block_alone_has_its_exact_level() -> None:
    generator = numpy.random.default_rng(1)
    trials = 40_000
    runs = generator.standard_normal((trials, SEEDS + 1))
    half = factor(SEEDS, 1) * runs[:, :SEEDS].std(axis=1, ddof=1)
    share = float((abs(runs[:, SEEDS] - runs[:, :SEEDS].mean(axis=1)) > half).mean())
    assert share == pytest.approx(ALPHA, abs=4 * math.sqrt(ALPHA * (1 - ALPHA) / trials))


def test_the_interval_is_the_textbooks() -> None:
    """Five values, one future one, 95 %: t(0.975, 4) = 2.776."""
    seeds = [[1.0], [1.1], [0.9], [1.05], [0.95]]
    values = [value for (value,) in seeds]
    found = band(seeds, [0.0], tests=1)
    assert found.centre[0] == pytest.approx(fmean(values))
    assert found.half[0] == pytest.approx(2.776 * stdev(values) * math.sqrt(1 + 1 / 5), rel=1e-3)


def test_right_runs_are_within() -> None:
    """As often as they should be, each of them beside five seeds of its own."""
    trials, outside = 200, 0
    for trial in range(trials):
        *references, one_more = (curve(1000 + trial * (SEEDS + 1) + seed) for seed in range(SEEDS + 1))
        outside += judge(one_more, references, STEPS).verdict == OUTSIDE
    assert outside / trials < ALPHA + 3 * math.sqrt(ALPHA * (1 - ALPHA) / trials)
    found = judge(curve(7), REFERENCES, STEPS)
    assert (found.verdict, found.why) == (WITHIN, "")
    assert found.low <= found.final_loss <= found.high
    assert found.visible == pytest.approx(found.high / found.reference_loss - 1)


def test_the_same_seed_shows_its_own_difference() -> None:
    close = curve(0, change=lambda step, loss: loss * 1.001)
    found = judge(close, REFERENCES, STEPS)
    assert found.verdict == WITHIN
    assert found.own == pytest.approx(0.001)
    assert judge(REFERENCES[0], REFERENCES, STEPS).own == 0


@pytest.mark.parametrize(
    ("change", "where"),
    [
        (lambda step, loss: loss * (2 if step >= 270 else 1), "the final loss is"),
        (lambda step, loss: loss * (0.5 if 30 <= step < 60 else 1), "the loss in steps 30 to 59 is"),
        (
            lambda step, loss: math.nan if step == 17 else loss,
            "the loss is not finite in 1 of 300 steps, first in step 17",
        ),
        (lambda step, loss: math.inf if step > 290 else loss, "first in step 291"),
    ],
    ids=["end", "middle", "nan", "infinite"],
)
def test_what_lies_outside_is_named(change: Callable[[int, float], float], where: str) -> None:
    found = judge(curve(7, change=change), REFERENCES, STEPS)
    assert found.verdict == OUTSIDE
    assert where in found.why


def test_lower_is_outside_too() -> None:
    """A run that learns faster than fp32 does not compute the same."""
    found = judge(curve(7, change=lambda step, loss: loss * 0.6), REFERENCES, STEPS)
    assert found.verdict == OUTSIDE
    assert "below the mean of fp32's seeds" in found.why
    assert found.deviation < 0


def test_gradients_count_by_themselves() -> None:
    right = curve(7)
    scaled = Curve(right.losses, [norm * 8 for norm in right.norms])
    found = judge(scaled, REFERENCES, STEPS)
    assert found.verdict == OUTSIDE
    assert "the gradient norm in steps" in found.why and "10 of 20 blocks lie outside" in found.why
    lost = judge(Curve(right.losses, [0.0] * STEPS), REFERENCES, STEPS)
    assert lost.verdict == OUTSIDE and "zero or not finite" in lost.why


def test_seeds_that_agree_make_no_trap() -> None:
    """Where fp32's seeds are alike, a difference that does not matter is none."""
    alike = [curve(3, change=lambda step, loss, n=n: loss * (1 + n * 1e-7)) for n in range(SEEDS)]
    assert judge(curve(3, change=lambda step, loss: loss * 1.005), alike, STEPS).verdict == WITHIN
    found = judge(curve(3, change=lambda step, loss: loss * 1.02), alike, STEPS)
    assert found.verdict == OUTSIDE
    assert found.visible == pytest.approx(bands.NO_MATTER["loss"], rel=1e-3)


def test_seeds_that_learn_nothing_check_nothing() -> None:
    """With them a run that learned nothing would pass."""
    flat = [
        Curve([4 + random.Random(seed).gauss(0, 0.05) for _ in range(STEPS)], [1.0] * STEPS) for seed in range(SEEDS)
    ]
    found = judge(Curve([4.0] * STEPS, [1.0] * STEPS), flat, STEPS)
    assert found.verdict == NOT_CHECKED
    assert "too blunt" in found.why
    # and yet what is plainly wrong is outside
    assert judge(Curve([9.0] * STEPS, [1.0] * STEPS), flat, STEPS).verdict == OUTSIDE


def test_seeds_that_differ_wildly_check_nothing() -> None:
    wild = [curve(seed, change=lambda _, loss, n=n: loss * n) for seed, n in enumerate((0.4, 0.7, 1, 1.4, 1.8))]
    found = judge(curve(7), wild, STEPS)
    assert found.verdict == NOT_CHECKED
    assert found.visible > 1


def test_a_short_run_is_judged_by_as_many_steps_of_the_reference() -> None:
    whole = curve(7)
    short = Curve(whole.losses[:50], whole.norms[:50])
    found = judge(short, REFERENCES, 50)
    assert found.verdict == WITHIN
    assert found.reference_loss == pytest.approx(fmean(fmean(one.losses[45:50]) for one in REFERENCES))
