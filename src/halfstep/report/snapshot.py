"""study.json: which study and which scope a folder of results is of, whatever the folder is called."""

from __future__ import annotations

import json
from pathlib import Path

from halfstep.mistakes import StudyError
from halfstep.records import write_text
from halfstep.runs import Scope
from halfstep.study import Study, validate

FILE = "study.json"


def scope_by_name(folder: Path) -> Scope:
    """The scope that the folder's own name says: a symbolic link or `.` has none of its own."""
    return Scope.parse(folder.resolve().name)


def write(folder: Path, scope: Scope, study: Study) -> None:
    # not sorted: the order of comparisons and variants is that of every table and figure
    # not `container`: it says where an image is got from, and the records say which one they were made in
    found = study.model_dump(mode="json", exclude={"container"})
    text = json.dumps({"scope": scope.name, "study": found}, indent=1)
    write_text(folder / FILE, text + "\n")


def read(folder: Path) -> tuple[Scope, Study]:
    """The scope and the study that the last `collect` left in the folder.

    Raises:
        StudyError: study.json is not there, not readable, not of this version, or its study is not valid.
    """
    path = folder / FILE
    if not path.is_file():
        raise StudyError(
            f"{path} is not there: name the folder of a scope, such as results/h200, after a study has run"
        )
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise StudyError(f"{path} cannot be read as JSON: {error}.") from error
    if isinstance(found, dict) and "scope" not in found:  # the study alone, as it was once written
        return scope_by_name(folder), validate(found, source=str(path))
    scope, study = (found.get("scope"), found.get("study")) if isinstance(found, dict) else (None, None)
    if not isinstance(scope, str) or not isinstance(study, dict):
        raise StudyError(f"{path} does not hold a scope and a study: collect with --study writes it again.")
    return Scope.parse(scope), validate(study, source=str(path))
