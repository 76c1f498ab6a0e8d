"""What report.md and report.html both say. They differ in how it looks, and in their order."""

from __future__ import annotations

import json
from typing import Any

from halfstep.report import (
    answers,
    claims_table,
    figures,
    method,
    operator_figures,
    operators,
    parity_figure,
    parity_section,
    problems,
    proofs,
    provenance,
    training,
)
from halfstep.report.results import Results

Figure = dict[str, Any]
"""of captions.json: `title`, `caption`, `file`; with its `kind`"""


def content(results: Results) -> dict[str, Any]:
    """The names that both templates use."""
    found = problems.problems(results.one_per_run, results.scope.image)
    ok, others = problems.tally(results.one_per_run, found)
    smoke = results.scope.scale == "smoke"
    return {
        "results": results,
        "smoke": smoke,
        "answers": answers,
        "method": method,
        "operators": operators,
        "parity": parity_section,
        "problems": problems,
        "proofs": proofs,
        "training": training,
        "tally": ok,
        "others": others,
        "found": found,
        "families": parity_section.families(results),
        "figures": _figures(results),
        "claims_legend": claims_table.legend(results.claims, smoke=smoke),
        "compared": claims_table.compared(results.claims),
        "capabilities": problems.missing_capabilities(results),
        "environments": provenance.environments(results),
    }


def _figures(results: Results) -> dict[str, list[Figure]]:
    """By comparison or family of parity runs, the figures of captions.json in the order of the report."""
    captions = json.loads((results.folder / "figures" / "captions.json").read_text(encoding="utf-8"))
    order = (*figures.KINDS, operator_figures.OPERATOR_KIND, parity_figure.PARITY_KIND)
    names = [*results.study.comparisons, *(family.name for family in parity_section.families(results))]
    return {
        name: [{**captions[name][kind], "kind": kind} for kind in order if kind in captions[name]] for name in names
    }
