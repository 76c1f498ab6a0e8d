"""Speed-ups against numbers worked out by hand and by scipy's own tests."""

from __future__ import annotations

import random
from math import exp, log

import pytest
from scipy import stats

from halfstep.report.statistics import Timing, compare, rank


def runs(times, sitting="s1", environment="e1", gpu="GPU-1", first=1):
    return [Timing(n, gpu, sitting, environment, ms) for n, ms in enumerate(times, first)]


def test_paired_is_the_geometric_mean_with_students_t_on_the_logs():
    base, variant = [360.0, 364.0, 357.0], [288.0, 290.0, 287.5]
    ratio = compare(runs(base), runs(variant))
    logs = [log(a / b) for a, b in zip(base, variant, strict=True)]
    low, high = stats.ttest_1samp(logs, 0).confidence_interval(0.95)
    assert ratio.method == "paired"
    assert (ratio.pairs, ratio.n_baseline, ratio.n_variant, ratio.reason) == (3, 3, 3, "")
    assert ratio.value == pytest.approx((360 / 288 * 364 / 290 * 357 / 287.5) ** (1 / 3), rel=1e-12)
    assert (ratio.low, ratio.high) == pytest.approx((exp(low), exp(high)), rel=1e-9)


def test_two_pairs_by_hand():
    """Logs 0 and 0.02: mean 0.01, standard error 0.01, and t(0.975, 1) = 12.7062."""
    ratio = compare(runs([1.0, exp(0.02)]), runs([1.0, 1.0]))
    assert log(ratio.value) == pytest.approx(0.01)
    assert log(ratio.high) == pytest.approx(0.01 + 0.127062, abs=1e-6)


def test_paired_ignores_what_both_sides_of_a_pair_share():
    base = [300.0, 330.0, 310.0]
    ratio = compare(runs(base), runs([ms / 1.25 for ms in base]))
    assert (ratio.low, ratio.value, ratio.high) == pytest.approx((1.25, 1.25, 1.25))


@pytest.mark.parametrize("change", [{"sitting": "s2"}, {"gpu": "GPU-2"}, {"first": 4}, {"sitting": ""}])
def test_without_pairs_it_is_welch_on_the_logs(change):
    base, variant = [360.0, 364.0, 357.0], [288.0, 290.0, 287.5, 291.0]
    ratio = compare(runs(base), runs(variant, **change))
    logs = [log(ms) for ms in base], [log(ms) for ms in variant]
    low, high = stats.ttest_ind(*logs, equal_var=False).confidence_interval(0.95)
    assert (ratio.method, ratio.pairs) == ("unpaired", 0)
    assert (ratio.low, ratio.high) == pytest.approx((exp(low), exp(high)), rel=1e-9)
    assert "share GPU and sitting" in ratio.reason


def test_one_pair_gives_a_ratio_without_an_interval():
    ratio = compare(runs([360.0]), runs([288.0]))
    assert (ratio.method, ratio.value, ratio.low, ratio.high) == ("single", 1.25, None, None)


def test_one_pair_beside_runs_of_another_sitting_is_unpaired():
    variant = [*runs([288.0]), *runs([289.0, 290.0], sitting="s2", first=2)]
    assert compare(runs([360.0, 361.0, 362.0]), variant).method == "unpaired"


@pytest.mark.parametrize(
    ("base", "variant", "reason"),
    [
        (runs([1.0, 1.0]), runs([1.0, 1.0], environment="e2"), "another environment"),
        (
            [*runs([1.0]), *runs([1.0], environment="e2", first=2)],
            [*runs([1.0]), *runs([1.0], environment="e2", first=2)],
            "2 environments",
        ),
        ([], runs([1.0]), "the baseline has no run"),
        (runs([1.0]), [], "no run with status ok"),
        (runs([1.0]), runs([1.0], sitting="s2"), "share GPU and sitting"),
    ],
)
def test_no_ratio_has_a_reason(base, variant, reason):
    ratio = compare(base, variant)
    assert (ratio.value, ratio.method) == (None, "")
    assert reason in ratio.reason


def test_a_replicate_of_another_environment_does_not_enter():
    """One of the variant's replicates was measured again after an update; two pairs remain."""
    variant = [*runs([288.0, 289.0]), *runs([100.0], environment="e2", first=3)]
    ratio = compare(runs([360.0, 361.0, 362.0]), variant)
    assert (ratio.method, ratio.pairs, ratio.n_variant) == ("paired", 2, 2)
    assert ratio.value == pytest.approx(1.25, rel=0.01)


def test_a_winner_needs_an_interval_above_one_against_every_other():
    slow, fast = runs([360.0, 361.0, 362.0]), runs([288.0, 289.0, 290.0])
    near, alone = runs([289.0, 288.0, 290.5]), runs([300.0], sitting="s2")
    clear = rank({"slow": slow, "fast": fast})
    assert (clear.best, clear.beaten, clear.winner) == ("fast", ("slow",), True)
    tie = rank({"slow": slow, "fast": fast, "near": near})
    assert (tie.best, tie.beaten, tie.tied, tie.winner) == ("fast", ("slow",), ("near",), False)
    open_end = rank({"slow": slow, "fast": fast, "alone": alone})
    assert (open_end.undecided, open_end.winner) == (("alone",), False)
    assert not rank({"fast": fast, "failed": []}).winner
    assert rank({"failed": []}) is None


def test_a_replicate_that_one_side_lacks_does_not_make_it_the_fastest():
    """The slow third round is missing on one side only: its mean is lower, and yet each pair shows it slower."""
    steady, lucky = runs([100.0, 100.01, 110.0]), runs([101.0, 101.02])
    found = rank({"steady": steady, "lucky": lucky})
    assert (found.best, found.beaten, found.winner) == ("steady", ("lucky",), True)


def test_a_replicate_of_another_environment_does_not_make_its_variant_the_fastest():
    updated = [*runs([100.0, 100.02]), *runs([50.0], environment="e2", first=3)]
    other = runs([90.0, 90.01, 90.02])
    found = rank({"updated": updated, "other": other})
    assert (found.best, found.beaten) == ("other", ("updated",))
    assert compare(other, updated).reason == "1 of the ok runs left out: made in another environment"


@pytest.mark.parametrize("seed", range(50))
def test_the_fastest_is_one_that_no_other_is_known_to_beat(seed):
    noise = random.Random(seed)
    rounds = [[100 * noise.lognormvariate(0, 0.002) * (1, 1, 1.2)[n] for n in range(3)] for _ in "abc"]
    timings = {
        name: [run for run in runs(times) if noise.random() < 0.8] for name, times in zip("abc", rounds, strict=True)
    }
    measured = {name: found for name, found in timings.items() if found}
    unbeaten = [
        name for name in measured if not any(compare(measured[name], other).above_one for other in measured.values())
    ]
    assert not unbeaten or rank(timings).best in unbeaten
