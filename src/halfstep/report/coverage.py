"""How often the statistics are right, by simulation: `python -m halfstep.report.coverage` prints its tables.

Replicates are drawn whose truth is known, and compared by the functions that make every table. An interval is right if
the true ratio lies in it; a winner among equal variants is a false one. What is drawn are logs of step medians; their
scale does not matter, since intervals on logs stretch with it.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from math import exp, log, sqrt
from typing import NamedTuple

from halfstep.docs_tables import markdown
from halfstep.report.statistics import Timing, compare, rank

DRAWS = 4000
SEED = 0
TRUTH = 1.2  # speed-up
NOISE = 0.005  # standard deviation of what is a replicate's own
Noise = Callable[[random.Random], float]
Sides = tuple[list[Timing], list[Timing]]
Draw = Callable[[random.Random], Sides]


def timed(logs: list[float], sitting: str = "s1") -> list[Timing]:
    return [Timing(n, "GPU-1", sitting, "e1", exp(value)) for n, value in enumerate(logs, 1)]


def normal(rng: random.Random) -> float:
    return rng.gauss(0, NOISE)


def noisy(rng: random.Random) -> float:
    return 3 * normal(rng)


def heavy(rng: random.Random) -> float:
    """Student's t with 3 degrees of freedom."""
    return normal(rng) / sqrt(rng.gammavariate(1.5, 2) / 3)


def sometimes_slow(rng: random.Random) -> float:
    return normal(rng) + (0.05 if rng.random() < 0.1 else 0)


def paired(pairs: int, variant: Noise = normal, baseline: Noise = normal, rounds: float = 0, drift: float = 0) -> Draw:
    """Pairs of one sitting.

    Args:
        pairs: how many.
        variant: a replicate's own noise.
        baseline: the same.
        rounds: standard deviation of what both replicates of a pair share.
        drift: how much slower the last run of the sitting is than the first; which one of a pair goes first is chance.
    """

    def draw(rng: random.Random) -> Sides:
        left, right = [], []
        for pair in range(pairs):
            shared = rng.gauss(0, rounds)
            places = rng.sample((2 * pair, 2 * pair + 1), 2)
            then = [shared + drift * place / (2 * pairs - 1) for place in places]
            left.append(log(TRUTH) + then[0] + baseline(rng))
            right.append(then[1] + variant(rng))
        return timed(left), timed(right)

    return draw


def unpaired(
    n_baseline: int, n_variant: int, variant: Noise = normal, baseline: Noise = normal, apart: float = 0
) -> Draw:
    """Each side in a sitting of its own; `apart` is the standard deviation of what all runs of a sitting share."""

    def draw(rng: random.Random) -> Sides:
        shifts = rng.gauss(0, apart), rng.gauss(0, apart)
        left = [log(TRUTH) + shifts[0] + baseline(rng) for _ in range(n_baseline)]
        return timed(left), timed([shifts[1] + variant(rng) for _ in range(n_variant)], "s2")

    return draw


class Scenario(NamedTuple):
    what: str
    method: str
    replicates: str
    draw: Draw


ROUNDS = 10 * NOISE
SCENARIOS = (
    Scenario("replicates differ by chance alone", "paired", "2", paired(2)),
    Scenario("the same", "paired", "3", paired(3)),
    Scenario("the same", "paired", "5", paired(5)),
    Scenario("rounds differ ten times as much as the two runs of a pair", "paired", "3", paired(3, rounds=ROUNDS)),
    Scenario("the variant is three times as noisy as the baseline", "paired", "3", paired(3, variant=noisy)),
    Scenario("the sitting slows down by 2 %", "paired", "3", paired(3, drift=0.02)),
    Scenario("the same", "paired", "5", paired(5, drift=0.02)),
    Scenario("heavy tails: Student's t with 3 degrees of freedom", "paired", "3", paired(3, heavy, heavy)),
    Scenario("the same", "paired", "5", paired(5, heavy, heavy)),
    Scenario("one run in ten is 5 % slower", "paired", "3", paired(3, sometimes_slow, sometimes_slow)),
    Scenario("one run in ten of the variant is 5 % slower", "paired", "3", paired(3, sometimes_slow)),
    Scenario("the same", "paired", "5", paired(5, sometimes_slow)),
    Scenario("replicates differ by chance alone", "unpaired", "2 and 2", unpaired(2, 2)),
    Scenario("the same", "unpaired", "3 and 3", unpaired(3, 3)),
    Scenario("the same", "unpaired", "3 and 5", unpaired(3, 5)),
    Scenario("the variant is three times as noisy as the baseline", "unpaired", "3 and 3", unpaired(3, 3, noisy)),
    Scenario("heavy tails", "unpaired", "3 and 3", unpaired(3, 3, heavy, heavy)),
    Scenario("the two sittings differ as much as replicates do", "unpaired", "3 and 3", unpaired(3, 3, apart=NOISE)),
    Scenario("they differ three times as much", "unpaired", "3 and 3", unpaired(3, 3, apart=3 * NOISE)),
)
EQUALS = (2, 3, 5)


def coverage(draw: Draw) -> float:
    """Share of DRAWS in which the interval holds the truth."""
    rng, held = random.Random(SEED), 0
    for _ in range(DRAWS):
        ratio = compare(*draw(rng))
        assert ratio.low is not None and ratio.high is not None
        held += ratio.low <= TRUTH <= ratio.high
    return held / DRAWS


def false_winners(variants: int, pairs: int = 3) -> float:
    """Share of DRAWS in which one of several equal variants is named the winner; their rounds differ."""
    rng, named = random.Random(SEED), 0
    for _ in range(DRAWS):
        rounds = [rng.gauss(0, ROUNDS) for _ in range(pairs)]
        ranking = rank({str(name): timed([shared + normal(rng) for shared in rounds]) for name in range(variants)})
        named += ranking is not None and ranking.winner
    return named / DRAWS


def report() -> str:
    """Both tables, as Markdown; the same on every machine."""
    covered = (
        [what, method, replicates, f"{coverage(draw):.1%}".replace("%", " %")]
        for what, method, replicates, draw in SCENARIOS
    )
    winners = ([str(n), f"{false_winners(n):.1%}".replace("%", " %")] for n in EQUALS)
    return (
        markdown(("what is drawn", "method", "replicates", "intervals with the truth in them"), covered)
        + "\n"
        + markdown(("equal variants", "a winner is named"), winners)
    )


if __name__ == "__main__":
    print(report(), end="")
