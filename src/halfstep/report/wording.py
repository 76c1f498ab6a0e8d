"""How numbers and names are written in captions and in the report: one place, so that both say the same."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from math import floor, log10

from halfstep.report.statistics import Ratio

EMPTY = "–"
FEW_PAIRS = 3  # below, an interval is so wide that few variants can be told apart from each other
# a code span that can do no harm: nothing in it that ends it, a table's cell, or the text
CODE_SPAN = re.compile(r"(?<![`\\])(`[^`\\|<>&\n]+`)(?!`)")
# numbers alone, which is all that our own sentences strike out
STRUCK = re.compile(r"~~([\d.,\[\] <>]+)~~")


def one_line(text: str) -> str:
    """Any text in one line, without what cannot be printed; a dash for none."""
    return " ".join("".join(c if c.isprintable() else " " for c in str(text)).split()) or EMPTY


def digits(value: float | None, significant: int = 3) -> str:
    """`value` with this many significant digits, thousands separated; a dash for None."""
    if value is None:
        return EMPTY
    rounded = float(f"{value:.{significant}g}")
    decimals = significant - 1 - floor(log10(abs(rounded))) if rounded else 0
    return f"{rounded:,.{max(decimals, 0)}f}"


def percent(share: float | None) -> str:
    return EMPTY if share is None else f"{digits(share * 100, 2)} %"


def ratio(value: Ratio) -> str:
    """`1.25 [1.24, 1.26]`: three digits, but more where the interval or an end's side of 1 would not show."""
    if value.value is None:
        return EMPTY
    if value.low is None or value.high is None:
        return digits(value.value)
    shown = {digits(number) for number in (value.value, value.low, value.high)}
    significant = 3 if len(shown) == 3 else 4
    return f"{digits(value.value, significant)} [{_end(value.low, significant)}, {_end(value.high, significant)}]"


def tied(names: Iterable[str], ratios: Mapping[str, Ratio]) -> str:
    """Names of what a ratio cannot tell apart from something else, those of few pairs with how wide its interval is.

    A wide interval shows that replicates are lacking, and not that the two are equally fast.
    """
    few = {name: found for name in ratios if (found := ratios[name]).method == "paired" and found.pairs < FEW_PAIRS}
    return join(
        f"`{name}`" + (f" (only {few[name].pairs} pairs: {ratio(few[name])})" if name in few else "") for name in names
    )


def strike(text: str) -> str:
    """A number that must not be used, as Markdown has it: readable, and struck out."""
    return f"~~{text}~~"


def _end(number: float, significant: int) -> str:
    """Two replicates that disagree give intervals over many orders of magnitude; their digits would say nothing."""
    if not 1e-3 <= number <= 1e3:
        return "<0.001" if number < 1 else ">1,000"
    enough = (more for more in range(significant, 6) if float(f"{number:.{more}g}") != 1 or number == 1)
    return digits(number, next(enough, 6))


def status(word: str) -> str:
    return word.replace("_", " ")


def join(parts: Iterable[str], last: str = "and") -> str:
    """`a`, `a and b`, `a, b and c`."""
    items = list(parts)
    return f" {last} ".join([", ".join(items[:-1]), items[-1]]) if len(items) > 1 else "".join(items)


def code(names: Iterable[str]) -> str:
    return join(f"`{name}`" for name in names)


def count(n: int, noun: str) -> str:
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def ranges(numbers: Sequence[int]) -> str:
    """`1–3, 5` of 1, 2, 3, 5."""
    spans: list[list[int]] = []
    for n in sorted(numbers):
        if spans and n == spans[-1][-1] + 1:
            spans[-1].append(n)
        else:
            spans.append([n])
    return ", ".join(str(span[0]) if len(span) == 1 else f"{span[0]}–{span[-1]}" for span in spans)


def singular(unit: str) -> str:
    """`image` of `images`."""
    return unit.removesuffix("s")
