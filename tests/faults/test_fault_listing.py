from __future__ import annotations

from listing import BLOCK, PAGE, fill


def test_the_docs_list_every_fault() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert [block[2] for block in BLOCK.finditer(text)] == ["runs", "files", "calls"]
    assert fill(text) == text, "run: python tests/faults/listing.py"
