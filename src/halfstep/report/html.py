"""report.html: the report as a page of its own, in one file that asks for nothing from anywhere.

It says what report.md says, by the same functions. Its charts are HTML and SVG made here from the same numbers as the
figures, so that each dot and bar can tell what it rests on. What a name or a reason holds is text: jinja2 escapes it.
The same data give the same bytes.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from halfstep.report import captions, chart_data, claims_table, parity_figure, proofs, runs_table, training
from halfstep.report.content import content
from halfstep.report.figures import efficient
from halfstep.report.results import ComparisonResult, Results
from halfstep.report.style import KIND_STYLES, MARKERS
from halfstep.report.wording import CODE_SPAN, STRUCK, one_line

HERE = Path(__file__).parent
PAGE, STYLE, SCRIPT = "report.html.j2", "report.css", "report.js"
NUMBER = re.compile(r"[<>+−-]?\d.*|–|baseline")  # a cell of a column of numbers
MOST_LINES = 30  # of a table that is not folded
SHORT = 30  # characters of a cell that need no second line
# paths around (0, 0) for each of matplotlib's markers in style.MARKERS, and the cross of what must not be used
SHAPES = {
    "o": "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0z",
    "s": "M-4-4H4V4H-4z",
    "D": "M0-5.5L5.5 0 0 5.5-5.5 0z",
    "^": "M0-5L5 4H-5z",
    "v": "M0 5L5-4H-5z",
    "P": "M-1.8-5h3.6v3.2H5v3.6H1.8V5h-3.6V1.8H-5v-3.6h3.2z",
    "X": "M-2.5-5L0-2.5 2.5-5 5-2.5 2.5 0 5 2.5 2.5 5 0 2.5-2.5 5-5 2.5-2.5 0-5-2.5z",
    "<": "M-5 0L4-5V5z",
    ">": "M5 0L-4-5V5z",
    "p": "M0-5L4.8-1.5 2.9 4.1H-2.9L-4.8-1.5z",
    "*": "M0-6L1.6-2H6L2.5.8 3.8 5 0 2.5-3.8 5-2.5.8-6-2H-1.6z",
    "x": "M-4-4L4 4M4-4L-4 4",
}
# the hatches of style.KIND_STYLES in a square of 6
HATCHES = {
    "": "",
    "////": "M-1 7L7-1M-1 1L1-1M5 7L7 5",
    "...": "M1.5 1.5h.01M4.5 4.5h.01",
    "||": "M1.5 0V6M4.5 0V6",
    "\\\\\\\\": "M-1-1L7 7M5-1L7 1M-1 5L1 7",
    "xx": "M0 0L6 6M6 0L0 6",
    "--": "M0 1.5H6M0 4.5H6",
    "oo": "M1.5 3a1.5 1.5 0 1 0 3 0a1.5 1.5 0 1 0-3 0z",
    "++": "M3 0V6M0 3H6",
}
assert {*MARKERS} < SHAPES.keys() and {hatch for _, hatch in KIND_STYLES.values()} <= HATCHES.keys()


@lru_cache(maxsize=4096)  # names and statuses come again in thousands of cells
def prose(text: str) -> Markup:
    """Any text as one line of HTML that shows it: code spans in <code>, numbers that are struck out in <s>."""
    parts = CODE_SPAN.split(one_line(text))
    return Markup("").join(
        Markup("<code>{}</code>").format(part[1:-1]) if n % 2 else _struck(part) for n, part in enumerate(parts)
    )


def _struck(text: str) -> Markup:
    return Markup("").join(
        Markup("<s>{}</s>").format(part) if n % 2 else Markup.escape(part) for n, part in enumerate(STRUCK.split(text))
    )


def columns(lines: Sequence[Sequence[str]]) -> list[str]:
    """The class of each column of a table: `n` for numbers, which stand at the right, `short`, or `long`."""
    found = []
    for column in zip(*lines, strict=True):
        numbers = all(NUMBER.fullmatch(cell.replace("~~", "")) for cell in column)
        found.append("n" if numbers else "long" if max(map(len, column)) > SHORT else "short")
    return found


def policy(style: str, script: str) -> str:
    """What the page may do: show its own style and images, run its own script, and fetch nothing."""
    allowed = {
        "default-src": "'none'",
        "style-src": _hash(style),
        "script-src": _hash(script),
        "img-src": "data:",
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    return "; ".join(f"{name} {value}" for name, value in allowed.items())


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def render(results: Results) -> str:
    """The whole of report.html."""
    machine = results.machine
    style, script = ((HERE / name).read_text(encoding="utf-8") for name in (STYLE, SCRIPT))
    environment = Environment(
        autoescape=True,
        loader=FileSystemLoader(HERE),
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
        keep_trailing_newline=True,
    )
    environment.filters |= {
        "prose": prose,
        "one_line": one_line,
        "variant_cells": training.variant_cells,
        "proof_cells": proofs.cells,
    }
    environment.globals |= {
        "columns": columns,
        "most_lines": MOST_LINES,
        "shapes": SHAPES,
        "shape_number": list(SHAPES).index,
        "kinds": {kind: (colour, HATCHES[hatch]) for kind, (colour, hatch) in KIND_STYLES.items()},
    }
    return environment.get_template(PAGE).render(
        content(results),
        policy=policy(style, script),
        style=Markup(style),
        script=Markup(script),
        charts=chart_data,
        chart=chart,
        times_caption=lambda comparison: captions.times(comparison, machine),
        curves=lambda family: parity_figure.curves(results, family),
        image=lambda name: _image(results.folder / "figures" / f"{name}.svg"),
        claim_cells=[(row, claims_table.labelled(row)) for row in results.claims],
        sides=claims_table.sides,
        runs_headings=runs_table.HEADINGS,
        runs=runs_table.lines(results),
    )


def chart(comparison: ComparisonResult, kind: str) -> chart_data.Lines | chart_data.Plane:
    """The chart that stands for a figure of that kind."""
    made: dict[str, Callable[[], Any]] = {
        "speedup": lambda: chart_data.speedup(comparison),
        "spread": lambda: chart_data.times(comparison),
        "memory": lambda: chart_data.memory(comparison, efficient(comparison)),
        "kernels": lambda: chart_data.kernels(comparison),
    }
    return made[kind]()


def _image(path: Path) -> str:
    """A figure as an address that holds it."""
    return f"data:image/svg+xml;base64,{base64.b64encode(path.read_bytes()).decode()}"
