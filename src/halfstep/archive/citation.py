"""CITATION.cff: whose work an archive is, and under which licence."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import yaml

from halfstep.mistakes import StudyError


@dataclass(frozen=True)
class Citation:
    """What an archive says of itself by it."""

    version: str
    license: str | None  # its SPDX identifier
    authors: list[tuple[str, str]]  # Person or Organization, and the name


def read_citation(path: Path) -> Citation:
    """The citation in a CITATION.cff.

    Raises:
        StudyError: it cannot be read, or names no version or no author.
    """
    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
        authors = [
            ("Organization", str(author["name"]))
            if "name" in author
            else ("Person", " ".join(str(author[key]) for key in ("given-names", "family-names") if key in author))
            for author in found["authors"]
        ]
        return Citation(str(found["version"]), found.get("license"), authors)
    except (OSError, ValueError, yaml.YAMLError, LookupError, TypeError, AttributeError) as error:
        said = error.strerror if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
        raise StudyError(
            f"{path} is what an archive is cited by, and should name version and authors: {said}."
        ) from error
