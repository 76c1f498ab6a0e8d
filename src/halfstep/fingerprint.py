"""Fingerprints of code: what a result depends on, so that an edit makes just that again.

A fingerprint covers the import closure of some modules of this package. Comments, docstrings and layout
do not count, and neither does the Python version.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import grimp

CHILD = "halfstep.measure.child"
SOURCE = Path(__file__).parent


@cache
def _graph() -> grimp.ImportGraph:
    return grimp.build_graph("halfstep", cache_dir=None)


def closure(modules: Iterable[str]) -> list[str]:
    """What importing `modules` imports of this package, sorted; imports inside functions count."""
    found: set[str] = set()
    for module in modules:
        found |= {module, *_graph().find_upstream_modules(module)}
    for module in tuple(found):
        parts = module.split(".")
        found |= {".".join(parts[:end]) for end in range(1, len(parts))}
    return sorted(found)


def run_modules(references: Iterable[str]) -> list[str]:
    """The modules that the measuring process of a run starts from: its entry, and what the run names by reference."""
    return sorted({CHILD, *(reference.partition(":")[0] for reference in references)})


def fingerprint(modules: Iterable[str]) -> str:
    """16 hex digits for the sources that importing `modules` reads."""
    digest = hashlib.sha256()
    for module in closure(modules):
        digest.update(f"{module} {_module_hash(module)}\n".encode())
    return digest.hexdigest()[:16]


def run_fingerprint(references: Iterable[str]) -> str:
    """The fingerprint of the code that measures a run, from its `module:attribute` references."""
    return _fingerprint_of(tuple(run_modules(references)))


_fingerprint_of = cache(fingerprint)


@cache
def _module_hash(module: str) -> str:
    parts = module.split(".")[1:]
    path = SOURCE.joinpath(*parts, "__init__.py")
    if not path.exists():
        path = SOURCE.joinpath(*parts).with_suffix(".py")
    return source_hash(path.read_text(encoding="utf-8"))


def source_hash(source: str) -> str:
    """Hash of what a source says. `ast.dump` would not do: its text differs between Python versions."""
    return hashlib.sha256(_text(ast.parse(source)).encode()).hexdigest()


def _text(node: Any) -> str:
    """Put together as text, and not as the tuples that it shows: each start of Snakemake reads all of the package."""
    if isinstance(node, list):
        return f"[{', '.join([_text(item) for item in node])}]"
    kind = type(node).__name__
    if not isinstance(node, ast.AST):
        return f"('{kind}', {repr(node)!r})"
    fields = []
    for name, value in ast.iter_fields(node):
        if name == "body" and isinstance(value, list):
            value = [item for item in value if not _is_bare_string(item)]
        if value is not None and value != []:
            fields.append(f"('{name}', {_text(value)})")
    return f"('{kind}', [{', '.join(fields)}])"


def _is_bare_string(node: ast.AST) -> bool:
    """A docstring, or a string after an attribute that documents it."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
