"""The report's tables as LaTeX: booktabs fragments for a paper, from the same cells as report.md.

A fragment needs the packages booktabs and array. It is ASCII, so that any engine and encoding reads it.
"""

from __future__ import annotations

import re
import textwrap
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from halfstep.records import write_text
from halfstep.report import claims_table, operators, parity_section, problems, proofs, provenance, training
from halfstep.report.results import ComparisonResult, OperatorResult, Results
from halfstep.report.wording import CODE_SPAN, STRUCK, code, one_line

LINES = 40  # of one float: what fits on a page
CLAIMS = 10  # on a page: each has five to seven lines
HEADING = 12  # characters in a line of a number's heading
BRACKETS = "Brackets hold 95 % intervals."
NAMES = "l"
NUMBERS = "r"

# what LaTeX would read as something else, print as something else in one of its font encodings, or not know
SIGNS = {
    **{sign: f"\\{sign}" for sign in "#$%&_{}"},
    "\\": r"\textbackslash{}", "^": r"\textasciicircum{}", "~": r"\textasciitilde{}", '"': r"\char34{}",
    "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", "–": "--", "—": "---", "…": r"\ldots{}",
    "\u2018": "`", "\u2019": "'", "“": "``", "”": "''", "×": r"\(\times\)", "−": r"\(-\)", "±": r"\(\pm\)",
    "≤": r"\(\le\)", "≥": r"\(\ge\)", "µ": r"\(\mu\)", "²": r"\(^2\)", "³": r"\(^3\)", "·": r"\(\cdot\)",
    "°": r"\(^\circ\)", "§": r"\S{}", "ß": r"\ss{}", "æ": r"\ae{}", "Æ": r"\AE{}", "œ": r"\oe{}", "Œ": r"\OE{}",
    "ø": r"\o{}", "Ø": r"\O{}", "ł": r"\l{}", "Ł": r"\L{}", "\u0131": r"\i{}",
}  # fmt: skip
# by the combining character that Unicode takes a letter with it apart into
ACCENTS = dict(
    zip("\u0300\u0301\u0302\u0303\u0304\u0306\u0307\u0308\u030a\u030b\u030c\u0327", "`'^~=u.\"rHvc", strict=True)
)
LONG = re.compile(r"\S{16}(?=\S{4})")
LIGATURE = re.compile(r"([-'`,])(?=\1)|[?!](?=`)")


@dataclass(frozen=True)
class Table:
    """One table of the report. Columns: `l` names, `r` numbers, or the share of the text's width of wrapped text."""

    name: str
    caption: str
    headings: Sequence[str]
    columns: Sequence[str | float]
    lines: Sequence[Sequence[str]]
    page: int = LINES
    """lines of a float"""


def prose(text: str) -> str:
    """Any text as LaTeX that prints it in one line, its code spans in typewriter type.

    A character that LaTeX does not have is printed as its code point.
    """
    parts = CODE_SPAN.split(one_line(text))
    return "".join(rf"\texttt{{{_encode(part[1:-1])}}}" if n % 2 else _text(part) for n, part in enumerate(parts))


def _text(text: str) -> str:
    return "".join(_stroke(_encode(part)) if n % 2 else _encode(part) for n, part in enumerate(STRUCK.split(text)))


def _stroke(text: str) -> str:
    """A line through the middle, for which LaTeX has no command of its own."""
    return rf"\setbox0=\hbox{{{text}}}\rlap{{\raisebox{{0.5ex}}{{\rule{{\wd0}}{{0.4pt}}}}}}\box0{{}}"


def _encode(text: str) -> str:
    """`{}` keeps two signs apart that would become one, and a long word may be broken."""
    marked = LONG.sub("\\g<0>\1", LIGATURE.sub("\\g<0>\0", text))
    return "".join({"\0": "{}", "\1": r"\allowbreak{}"}.get(sign) or _sign(sign) for sign in marked)


def _sign(sign: str) -> str:
    if sign in SIGNS:
        return SIGNS[sign]
    if sign.isascii():
        return sign
    letter, *accents = list(unicodedata.normalize("NFD", sign))
    if len(accents) == 1 and accents[0] in ACCENTS and letter.isascii():
        return rf"\{ACCENTS[accents[0]]}{{{letter}}}"
    return rf"\texttt{{U+{ord(sign):04X}}}"


def write_tables(results: Results) -> None:
    """Write tables/<name>.tex for each table of the report; what no longer belongs there is removed."""
    folder = results.folder / "tables"
    made = {f"{table.name}.tex": fragment(table, results.scope.name) for table in tables(results)}
    for name, text in made.items():
        write_text(folder / name, text)
    for path in folder.glob("*.tex"):
        if path.name not in made:
            path.unlink()


def tables(results: Results) -> Iterator[Table]:
    """The report's tables in its order."""
    machine = results.machine
    if results.claims:
        yield Table(
            "claims",
            f"Claims, and what was measured: ratios of throughput. {BRACKETS} {machine}.",
            claims_table.HEADINGS,
            (0.2, 0.07, 0.1, 0.1, 0.1, 0.08, 0.2),
            [claims_table.cells(row) for row in results.claims],
            CLAIMS,
        )
    for comparison in results.comparisons:
        yield from _training(comparison, machine)
    for operator in results.operators:
        yield from _operator(operator, machine)
    for family in parity_section.families(results):
        headings, lines = parity_section.table(family)
        if lines:
            yield Table(
                f"{family.name}-parity",
                f"Loss parity with fp32: {family.title}. {parity_section.method()} {machine}.",
                headings,
                (0.2, *[NUMBERS] * (len(headings) - 2), NAMES),
                lines,
            )
    found = problems.problems(results.one_per_run, results.scope.image)
    if found:
        yield Table(
            "not-run",
            "Runs without a number, and why.",
            ("status", "comparison", "variant", "replicates", "reason"),
            (NAMES, 0.15, 0.2, NAMES, 0.4),
            [(problem.status, *line) for problem in found for line in problem.lines],
        )
    headings, lines = provenance.environments(results)
    yield Table(
        "environment",
        "What the runs were made with.",
        headings,
        (NAMES, *[0.75 / max(len(headings) - 1, 1)] * (len(headings) - 1)),
        lines,
    )


def _training(comparison: ComparisonResult, machine: str) -> Iterator[Table]:
    headings = training.variant_headings(comparison)
    clock = f" Step times are the {comparison.clock}." if comparison.clock else ""
    yield Table(
        f"{comparison.name}-variants",
        f"{comparison.title}. Speed-ups are ratios of throughput over {code([comparison.baseline])}. {BRACKETS}{clock} "
        f"{machine}.",
        headings,
        (NAMES, *[NUMBERS] * (len(headings) - 2), NAMES),
        [training.variant_cells(variant) for variant in comparison.variants],
    )
    if comparison.proofs:
        yield Table(
            f"{comparison.name}-proofs",
            f"{comparison.title}: what a profiled step of each variant shows. {machine}.",
            proofs.HEADINGS,
            (NAMES, 0.18, 0.2, 0.2, NUMBERS, NUMBERS),
            [proofs.cells(row) for row in comparison.proofs],
        )


def _operator(operator: OperatorResult, machine: str) -> Iterator[Table]:
    over = f" Speed-ups are over {code([operator.baseline])}. {BRACKETS}" * (len(operator.variants) > 1)
    for headings, lines in operators.tables(operator) if operator.cases else ():
        timed = headings[0] == "case"
        yield Table(
            f"{operator.name}-{headings[0].replace(' ', '-')}",
            f"{operator.title}.{over} {machine}.",
            headings,
            (0.25, NAMES, *[NUMBERS] * (len(headings) - 3), NAMES) if timed else (0.25, *[0.17] * (len(headings) - 1)),
            lines,
        )


def fragment(table: Table, scope: str) -> str:
    """The table as LaTeX: one float, or as many as it has pages."""
    pages = [table.lines[start : start + table.page] for start in range(0, len(table.lines), table.page)]
    floats = [_float(table, lines, page, len(pages)) for page, lines in enumerate(pages, 1)]
    return f"% made by halfstep from the runs of {scope}; needs the packages booktabs and array\n" + "\n".join(floats)


def _float(table: Table, lines: Sequence[Sequence[str]], page: int, pages: int) -> str:
    of = f" ({page} of {pages})" if pages > 1 else ""
    label = f"tab:halfstep-{table.name}" + (f"-{page}" if page > 1 else "")
    columns = "".join(
        kind if isinstance(kind, str) else rf">{{\raggedright\arraybackslash}}p{{{kind:.2f}\textwidth}}"
        for kind in table.columns
    )
    return "\n".join(
        [
            r"\begin{table*}",
            r"  \centering\scriptsize\setlength{\tabcolsep}{1.7pt}\setlength{\belowcaptionskip}{4pt}",
            rf"  \caption{{{prose(table.caption + of)}}}",
            rf"  \label{{{label}}}",
            rf"  \begin{{tabular}}{{{columns}}}",
            r"    \toprule",
            f"    {_line(map(_heading, table.headings, table.columns))}",
            r"    \midrule",
            *(f"    {_line(map(prose, line))}" for line in lines),
            r"    \bottomrule",
            r"  \end{tabular}",
            r"\end{table*}",
            "",
        ]
    )


def _heading(text: str, column: str | float) -> str:
    """A column of numbers is narrow, and its heading stands in several lines."""
    if column != NUMBERS:
        return prose(text)
    lines = textwrap.wrap(text, HEADING, break_long_words=False, break_on_hyphens=False)
    return r"\shortstack[r]{" + r" \\ ".join(map(prose, lines)) + "}" if len(lines) > 1 else prose(text)


def _line(cells: Iterable[str]) -> str:
    line = " & ".join(cells) + r" \\"
    # after the line before, these would be its arguments
    return "{}" * line.startswith(("[", "*")) + line
