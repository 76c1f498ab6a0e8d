"""The claims as a table of text, for the report, the README and the command line."""

from __future__ import annotations

from collections.abc import Sequence

from halfstep.report import wording
from halfstep.report.statistics import Ratio
from halfstep.report.tables import Row, number
from halfstep.report.wording import EMPTY

HEADINGS = [
    "claim", "expected", "by the article's protocol", "same batch", "same batch, both compiled", "verdict", "why",
]  # fmt: skip
LEGEND = (
    "The verdict goes by the ratio at the same batch. `holds here`: its interval lies above 1 and reaches the expected "
    "ratio, if there is one; `weaker here`: above 1, below the expected ratio; `does not hold here`: below 1; `not "
    "decided`: 1 lies in the interval of a ratio that it rests on, or one has none. A question has its answer instead. "
    "Where several are compared, the least ratio stands for them."
)
BATCHES_LEGEND = "A claim about batches goes by the ratio of the largest that fit: a count, so it has no interval."
SMOKE_LEGEND = "A smoke run judges no claim: its ratios only show that the table works."
SAME_BATCH, LARGEST = "same batch", "largest batch that fits"
COLUMNS = {"article": "by the article's protocol", "same_batch": SAME_BATCH, "both_compiled": "both compiled"}


def cells(row: Row) -> list[str]:
    """One line: the sentence, what was expected, a ratio for each protocol, the verdict and why."""
    return [
        f"`{row['claim']}` {row['sentence']} ({row['source']})",
        _expected(row["expected"]),
        *(
            _batches(row) if protocol == "same_batch" and row["batches"] else _ratio(row, protocol)
            for protocol in COLUMNS
        ),
        row["verdict"],
        row["why"],
    ]


def labelled(row: Row) -> dict[str, str]:
    """The same by heading, for the page, where a ratio of batches has a heading of its own."""
    headings = [LARGEST if row["batches"] and heading == SAME_BATCH else heading for heading in HEADINGS]
    return dict(zip(headings, cells(row), strict=True))


def legend(rows: Sequence[Row], *, smoke: bool) -> str:
    """How to read the table."""
    if smoke:
        return SMOKE_LEGEND
    return f"{LEGEND} {BATCHES_LEGEND}" if any(row["batches"] for row in rows) else LEGEND


def _expected(text: str) -> str:
    value = None if not text or text[0].isalpha() else number(text)
    return (text or "a question") if value is None else wording.digits(value)


def _ratio(row: Row, protocol: str) -> str:
    value = number(row[protocol])
    if value is None:
        return EMPTY
    method = row[f"{protocol}_method"]
    n = "unpaired" if method == "unpaired" else wording.count(int(row[f"{protocol}_pairs"]), "pair")
    ratio = wording.ratio(Ratio(value, number(row[f"{protocol}_low"]), number(row[f"{protocol}_high"])))
    if row[f"{protocol}_struck"]:
        return f"{wording.strike(ratio)}, out of bounds"
    return f"{ratio}, {n}"


def _batches(row: Row) -> str:
    least = "at least " * (row["batches_at_least"] == "1")
    return f"{least}{wording.digits(number(row['batches']))} times the batch, a count"


def sides(row: Row) -> str:
    """The two sides of each of a claim's ratios; empty where it has none."""
    found = [
        f"{words}: {said}" + (f"; struck out, since {void}" if (void := row[f"{name}_struck"]) else "")
        for name, words in COLUMNS.items()
        if (said := row[f"{name}_sides"])
    ]
    if row["batches_sides"]:
        found.append(f"{LARGEST}: {row['batches_sides']}")
    return f"{'; '.join(found)}." if found else ""


def compared(rows: Sequence[Row]) -> list[str]:
    """A sentence per claim that names the two sides of each of its ratios."""
    return [f"`{row['claim']}`: {said}" for row in rows if (said := sides(row))]
