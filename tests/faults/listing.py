"""The tables of docs/faults.md, from the tables of this suite: `python tests/faults/listing.py` writes them."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "faults.md"
BLOCK = re.compile(r"(<!-- faults: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
sys.path[:0] = [str(ROOT / "tests" / "workflow"), str(ROOT / "tests" / "unit" / "report")]  # as pyproject.toml has it

import test_fault_calls as calls  # noqa: E402
import test_fault_files as files  # noqa: E402
import test_fault_runs as runs  # noqa: E402
import test_fault_torch as with_torch  # noqa: E402


def plain(pattern: str) -> str:
    """A regular expression as a reader's text."""
    return re.sub(r"\\(.)", r"\1", re.sub(r"(?<!\\)\.\*", "…", pattern))


def lines(group: str) -> Iterator[tuple[str, str, str]]:
    """Fault, outcome, and what is said of it."""
    if group == "runs":
        for fault, (_, status, reason) in runs.FAULTS.items():
            yield fault, f"`{status}`", plain(reason)
        for fault, (*_, status, reason) in with_torch.FAULTS.items():
            yield fault, f"`{status}`", plain(reason)
    elif group == "files":
        for fault, (_, status, reason) in files.FAULTS.items():
            yield fault, f"`{status}`", reason
    else:
        for fault, (*_, code, parts) in calls.FAULTS.items():
            yield fault, f"exit code {code}", " … ".join(part.strip(":, ") for part in parts)


def table(group: str) -> str:
    rows = [("fault", "outcome", "what is said"), ("---", "---", "---"), *lines(group)]
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |\n" for row in rows)


def fill(text: str) -> str:
    return BLOCK.sub(lambda block: block[1] + table(block[2]) + block[3], text)


if __name__ == "__main__":
    PAGE.write_text(fill(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
