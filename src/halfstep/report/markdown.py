"""report.md: the answer first, then what it rests on. The same data give the same bytes."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from halfstep.report import (
    answers,
    claims_table,
    figures,
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
from halfstep.report.tables import Row
from halfstep.report.wording import CODE_SPAN, STRUCK, digits, one_line
from halfstep.runs import SMOKE_WINDOW

ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;", "|": "&#124;", "`": "&#96;"}


def prose(text: str) -> str:
    """Any text as one line of Markdown that shows it: markup, HTML and line breaks in it have no effect.

    Plain code spans stay, and numbers that are struck out, since our own sentences use them.
    """
    parts = CODE_SPAN.split(one_line(text))
    return "".join(part if index % 2 else _escape(part) for index, part in enumerate(parts))


def _escape(text: str) -> str:
    return "".join(f"~~{_plain(part)}~~" if n % 2 else _plain(part) for n, part in enumerate(STRUCK.split(text)))


def _plain(text: str) -> str:
    """Entities for what would be markup anywhere; `]` matters only where a link could follow."""
    without_html = re.sub("[&<>|`]", lambda match: ENTITIES[match[0]], text)
    return re.sub(r"[\\*_~$]|\](?=[\[(:])", r"\\\g<0>", without_html)


def claims(rows: Sequence[Row]) -> str:
    """The table of claims as Markdown."""
    lines = [claims_table.HEADINGS, ["---"] * len(claims_table.HEADINGS), *map(claims_table.cells, rows)]
    return "\n".join(f"| {' | '.join(map(prose, line))} |" for line in lines)


def render(results: Results) -> str:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
        keep_trailing_newline=True,
    )
    environment.filters |= {
        "prose": prose,
        "number": digits,
        "variant_cells": training.variant_cells,
        "proof_cells": proofs.cells,
    }
    smoke = results.scope.scale == "smoke"
    text = environment.get_template("report.md.j2").render(
        results=results,
        training=training,
        parity=parity_section,
        families=parity_section.families(results),
        proofs=proofs,
        first_line=answers.first_line(results),
        what_to_use=answers.what_to_use,
        clocked=answers.clocked(results),
        claims=claims(results.claims),
        compared=claims_table.compared(results.claims),
        replicates=answers.replicates(results),
        operators=operators,
        ok=sum(row["status"] == "ok" for row in results.one_per_run),
        problems=problems.problems(results.one_per_run, results.scope.image),
        capabilities=problems.missing_capabilities(results),
        figures=_figures(results),
        environments=provenance.environments(results),
        sittings=provenance.sittings(results),
        code_versions=provenance.code_versions(results),
        command=problems.SNAKEMAKE + problems.IN_IMAGE * results.scope.image,
        smoke=smoke,
        window=SMOKE_WINDOW if smoke else results.study.window,
    )
    return re.sub(r"\n{3,}", "\n\n", text)


def _figures(results: Results) -> dict[str, list[dict[str, Any]]]:
    """By comparison or family of parity runs, the figures of captions.json in the order of the report."""
    captions = json.loads((results.folder / "figures" / "captions.json").read_text(encoding="utf-8"))
    order = (*figures.KINDS, operator_figures.OPERATOR_KIND, parity_figure.PARITY_KIND)
    names = [*results.study.comparisons, *(family.name for family in parity_section.families(results))]
    return {name: [captions[name][kind] for kind in order if kind in captions[name]] for name in names}
