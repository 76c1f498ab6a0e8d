"""The statistics keep what they promise, by simulation, and docs/methodology.md says what the simulation says."""

from __future__ import annotations

import re
from math import sqrt
from pathlib import Path

import pytest

from halfstep.report.coverage import DRAWS, EQUALS, SCENARIOS, report

DOCS = Path(__file__).parents[3] / "docs" / "methodology.md"
CHANCE = 3 * sqrt(0.95 * 0.05 / DRAWS)  # three standard errors of a share of 95 %
LIMITS = ("the two sittings differ as much as replicates do", "they differ three times as much")


@pytest.fixture(scope="module")
def tables() -> str:
    return report()


def shares(tables: str) -> list[float]:
    """The last column, in the order of the lines."""
    return [float(share) / 100 for share in re.findall(r"\| ([\d.]+) % \|$", tables, re.MULTILINE)]


def test_no_interval_covers_less_than_it_says_but_across_sittings(tables: str) -> None:
    for scenario, share in zip(SCENARIOS, shares(tables), strict=False):
        assert (share > 0.95 - CHANCE) == (scenario.what not in LIMITS), (scenario.what, share)


def test_pairs_whose_logs_are_normal_are_covered_exactly(tables: str) -> None:
    assert {scenario.method for scenario in SCENARIOS[:4]} == {"paired"}
    assert shares(tables)[:4] == pytest.approx([0.95] * 4, abs=CHANCE)


def test_a_winner_among_equals_is_no_more_likely_than_a_false_interval(tables: str) -> None:
    found = shares(tables)[len(SCENARIOS) :]
    assert len(found) == len(EQUALS)
    assert max(found) < 0.05 + CHANCE
    assert found == sorted(found, reverse=True)


def test_the_docs_have_these_figures(tables: str) -> None:
    block = re.search(r"<!-- coverage -->\n(.*?)<!-- end -->", DOCS.read_text(encoding="utf-8"), re.DOTALL)
    assert block and block[1] == tables, "paste what `python -m halfstep.report.coverage` prints"
