"""A YAML file as the mapping that it holds, or a sentence that says why it holds none."""

from __future__ import annotations

from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from halfstep.mistakes import StudyError


class _UniqueKeyLoader(yaml.SafeLoader):
    """YAML's safe loader that refuses a key written twice, where YAML would silently keep the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen = set()
        for key_node, _ in node.value:
            key = key_node.value
            if not isinstance(key, str) or key == "<<":  # a list or mapping as a key, which YAML's own loader refuses
                continue
            if key in seen:
                raise StudyError(f"the key {key!r} is there twice (line {key_node.start_mark.line + 1})")
            seen.add(key)
        return super().construct_mapping(node, deep)


def read_config(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file.

    Raises:
        StudyError: no such file, not YAML, a key written twice, or not a mapping.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise StudyError(f"{path}: cannot be read: {reason}.") from error
    try:
        loaded = yaml.load(text, _UniqueKeyLoader)
    except StudyError as error:
        raise StudyError(f"{path}: {error}.") from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        hint = " (YAML is indented with spaces, not tabs)" if "\\t" in str(error.problem) else ""
        raise StudyError(f"{path}: is not YAML: {place}{error.problem}{hint}.") from error
    except (yaml.YAMLError, ValueError) as error:  # ValueError: a date that is none
        raise StudyError(f"{path}: is not YAML: {' '.join(str(error).split())}.") from error
    if loaded is None:
        raise StudyError(f"{path}: is empty: it should hold keys such as 'comparisons:'.")
    if not isinstance(loaded, dict):
        raise StudyError(f"{path}: should hold keys such as 'comparisons:', and is a {type(loaded).__name__}.")
    return loaded
