"""archive.json: what `halfstep verify` has to know, and what can explain a difference that it finds."""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path

from halfstep.archive.layout import ABOUT, FORMAT, RESULTS
from halfstep.archive.packing import Refused
from halfstep.archive.source import Source
from halfstep.fingerprint import fingerprint
from halfstep.keys import NAME
from halfstep.records import write_json
from halfstep.runs import Scope

LIBRARIES = ("matplotlib", "numpy", "pandas", "pillow", "scipy", "seaborn")


def write(folder: Path, scope: Scope, source: Source) -> None:
    found = {"commit": source.commit, "changed": bool(source.diff)}
    content = {"format": FORMAT, "scope": scope.name, "source": found, "drawn_by": drawn_by()}
    write_json(folder / ABOUT, content)


def drawn_by() -> dict[str, str]:
    """What the bytes of tables and figures hang on: versions of libraries, and the fingerprint of our own code."""
    return {"halfstep": fingerprint(["halfstep.report.write"]), **{name: version(name) for name in LIBRARIES}}


def read(folder: Path) -> tuple[Scope, dict[str, str]]:
    """The scope of an archive, and by what its figures were drawn.

    Raises:
        Refused: archive.json is not there, or is not of this format.
    """
    try:
        found = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
        form, name, by = found["format"], found["scope"], found["drawn_by"]
    except (OSError, ValueError, RecursionError, LookupError, TypeError) as error:
        raise Refused(f"has no {ABOUT} that says what it holds, so it is not one that halfstep made") from error
    if form != FORMAT:
        raise Refused(f"is of format {form!r}, and this halfstep reads format {FORMAT}")
    named = isinstance(name, str) and NAME.fullmatch(name) and isinstance(by, dict)
    if not named or not (folder / RESULTS / name).is_dir():
        raise Refused(f"has an {ABOUT} that names a scope {name!r} of which there are no results")
    return Scope.parse(name), {str(key): str(value) for key, value in by.items()}
