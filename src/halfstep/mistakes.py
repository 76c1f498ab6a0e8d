"""What a person got wrong in a study, in sentences."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from typing import Any


class StudyError(Exception):
    """The study is not valid; the message holds one sentence per mistake."""


def nearest(value: object, choices: Iterable[str]) -> str:
    """The end of a sentence: the valid choices, and the one that `value` was probably meant to be."""
    names = list(choices)
    close = difflib.get_close_matches(str(value), names, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    return f"choose from {', '.join(names)}{hint}"


_QUOTED = re.compile(r"'([^']+)'")
# what is wrong with a value, by pydantic's type of the mistake; its own words speak of Python
_MISTAKES = {
    "int_type": "should be a whole number",
    "int_parsing": "should be a whole number",
    "int_from_float": "should be a whole number",
    "int_parsing_size": "should be a smaller number",
    "float_type": "should be a number",
    "float_parsing": "should be a number",
    "finite_number": "should be a finite number",
    "greater_than": "should be above {gt}",
    "greater_than_equal": "should be at least {ge}",
    "string_type": "should be text: put quotes round it",
    "string_too_short": "is empty: it needs a word",
    "bool_type": "should be true or false",
    "bool_parsing": "should be true or false",
    "list_type": "should be a name or a list of names",
    "dict_type": "should hold keys with values",
    "model_type": "should hold keys with values",
    "model_attributes_type": "should hold keys with values",
    "too_short": "is empty: it needs at least one entry",
}


def sentence(source: str, problem: dict[str, Any]) -> str:
    """One mistake: the file, the key, the value, what would be right."""
    path = [str(part) for part in problem["loc"] if part != "[key]"]
    kind, context, value = problem["type"], problem.get("ctx") or {}, problem["input"]
    key = ".".join(path) or "it"
    if kind == "unknown_key":
        name = context["key"]
        hint = "a space is missing after the colon" if ":" in name else context["hint"]
        return _ended(f"{source}: the key {'.'.join([*path, name])} is unknown: {hint}")
    if kind == "missing":
        return f"{source}: the key {key} is missing."
    if kind in ("baseline", "meaning"):
        return _ended(f"{source}: {key} {problem['msg']}")
    if kind == "between":
        return "\n".join(_ended(f"{source}: {mistake}") for mistake in context["mistakes"].splitlines())
    if kind == "literal_error":
        message = f"is unknown: {nearest(value, _QUOTED.findall(context['expected']))}"
    else:
        message = _MISTAKES.get(kind, problem["msg"]).format(**context)
    if value is None:
        needed = {"literal_error": message.removeprefix("is unknown: "), "string_type": "it needs a word"}
        return _ended(f"{source}: {key} is empty: {needed.get(kind, f'it {message}')}")
    if isinstance(value, str | int | float):
        subject = f"the name {value!r} in {'.'.join(path[:-1])}" if "[key]" in problem["loc"] else f"{key} = {value!r}"
        return _ended(f"{source}: {subject} {message}")
    return _ended(f"{source}: {key} {message}")


def _ended(text: str) -> str:
    return text if text.endswith("?") else f"{text}."
