from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from made_up import BEHAVIOUR, CONFIG, H200, VIT, make_scope, write_fixture_run

from halfstep.records import write_text


@pytest.fixture(scope="session")
def scopes() -> SimpleNamespace:
    """The generator's functions and data."""
    return SimpleNamespace(
        make=make_scope, write_run=write_fixture_run, config=CONFIG, behaviour=BEHAVIOUR, environment=H200, vit=VIT
    )


@pytest.fixture
def unsaved(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures are drawn and not written, where a test is about words: writing takes most of the time."""

    def save(figure: object, stem: Path) -> None:
        write_text(stem.with_name(f"{stem.name}.svg"), "<svg/>")  # those of operators are in the page

    monkeypatch.setattr("halfstep.report.style.save", save)


@pytest.fixture
def h200(tmp_path: Path) -> Path:
    """A collected scope on an H200: two comparisons, one variant out of memory, one unsupported."""
    make_scope(tmp_path / "h200")
    return tmp_path / "h200"
