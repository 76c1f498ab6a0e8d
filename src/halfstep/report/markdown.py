"""report.md: the answer first, then what it rests on. The same data give the same bytes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from halfstep.report import claims_table, proofs, training
from halfstep.report.content import content
from halfstep.report.results import Results
from halfstep.report.tables import Row
from halfstep.report.wording import CODE_SPAN, STRUCK, one_line

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
    """The whole of report.md."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
        keep_trailing_newline=True,
    )
    environment.filters |= {"prose": prose, "variant_cells": training.variant_cells, "proof_cells": proofs.cells}
    text = environment.get_template("report.md.j2").render(content(results), claims=claims(results.claims))
    return re.sub(r"\n{3,}", "\n\n", text)
