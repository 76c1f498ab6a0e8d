"""All that is made of a scope's runs, in the order in which one thing follows from another."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from halfstep.parity.plan import ParityKey
from halfstep.records import write_text
from halfstep.report import html, latex, markdown
from halfstep.report.collect import collect
from halfstep.report.figures import plot
from halfstep.report.results import load
from halfstep.runs import RunKey, Scope
from halfstep.study import Study


def rebuild(folder: Path, study: Study, scope: Scope, codes: Mapping[RunKey | ParityKey, str] | None = None) -> None:
    """Make tables, figures and reports of a scope's folder again; the arguments are those of `collect`."""
    collect(folder, study, codes, scope)
    plot(folder)
    write_report(folder)


def write_report(folder: Path) -> None:
    """Write the reports and tables/*.tex, from study.json, tables, captions, records and the doctor's report."""
    results = load(folder)
    write_text(folder / "report.md", markdown.render(results))
    write_text(folder / "report.html", html.render(results))
    latex.write_tables(results)
