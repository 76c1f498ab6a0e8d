"""Whether what the registry names is there: a slip in a line of it would else end a run that comes hours later."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from halfstep.mistakes import StudyError, nearest
from halfstep.registry import LEARNABLE, OPERATORS, RECIPES, WORKLOADS

SOURCE = Path(__file__).parent


def check_references() -> None:
    """Look for the file and the name of each `module:attribute` of the registry, without importing it.

    Raises:
        StudyError: one sentence for the first that is not there.
    """
    for name, reference in _references():
        module, _, attribute = reference.partition(":")
        path = SOURCE.joinpath(*module.split(".")[1:]).with_suffix(".py")
        line = f"src/halfstep/registry.py: {name!r} names {reference!r}"
        if not path.is_file():
            there = [other.stem for other in path.parent.glob("*.py")]
            raise StudyError(f"{line}, and {path.name} is not in {path.parent}: {nearest(path.stem, there)}.")
        defined = re.findall(r"^(?:def |class )?(\w+)\s*[(:=]", path.read_text(encoding="utf-8"), re.MULTILINE)
        if attribute not in defined:
            raise StudyError(f"{line}, and {path.name} does not define that: {nearest(attribute, sorted(defined))}.")


def _references() -> Iterator[tuple[str, str]]:
    for table in (WORKLOADS, *RECIPES.values()):
        yield from table.items()
    for name, operator in OPERATORS.items():
        yield name, operator.reference
    for name, learnable in LEARNABLE.items():
        yield name, learnable.reference
