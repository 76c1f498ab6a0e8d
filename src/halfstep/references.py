"""Whether what the registry names is there: a slip in a line of it would else end a run that comes hours later."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from symtable import symtable

from halfstep.mistakes import StudyError, nearest
from halfstep.registry import LEARNABLE, OPERATORS, RECIPES, WORKLOADS

SOURCE = Path(__file__).parent


def check_references() -> None:
    """Look for the file and the name of each `module:attribute` of the registry, without importing it.

    Raises:
        StudyError: one sentence for the first that is not there, or whose file is no Python.
    """
    for name, reference in _references():
        module, _, attribute = reference.partition(":")
        path = SOURCE.joinpath(*module.split(".")[1:]).with_suffix(".py")
        line = f"src/halfstep/registry.py: {name!r} names {reference!r}"
        if not path.is_file():
            there = [other.stem for other in path.parent.glob("*.py")]
            raise StudyError(f"{line}, and {path.name} is not in {path.parent}: {nearest(path.stem, there)}.")
        try:
            symbols = symtable(path.read_text(encoding="utf-8"), str(path), "exec").get_symbols()
        except SyntaxError as error:
            raise StudyError(f"{path}, line {error.lineno}: {error.msg}.") from error
        defined = sorted(symbol.get_name() for symbol in symbols if symbol.is_assigned())
        if attribute not in defined:
            raise StudyError(f"{line}, and {path.name} does not define that: {nearest(attribute, defined)}.")


def _references() -> Iterator[tuple[str, str]]:
    for table in (WORKLOADS, *RECIPES.values()):
        yield from table.items()
    for name, operator in OPERATORS.items():
        yield name, operator.reference
    for name, learnable in LEARNABLE.items():
        yield name, learnable.reference
