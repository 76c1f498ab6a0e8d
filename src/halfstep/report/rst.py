"""Captions as reStructuredText, for `snakemake --report`, which reads them as Jinja templates first."""

from __future__ import annotations

import re

from halfstep.report.wording import CODE_SPAN, one_line


def caption(title: str, text: str) -> str:
    """A figure's caption: what its names and reasons hold is shown, and is neither markup nor a template."""
    parts = CODE_SPAN.split(one_line(text))
    found = "".join(_code(part[1:-1]) if n % 2 else _escape(part) for n, part in enumerate(parts))
    return _inert(f"**{_escape(one_line(title))}.** {found}\n")


def _escape(text: str) -> str:
    return re.sub(r"([^\w\s])", r"\\\1", text)


def _code(text: str) -> str:
    """An inline literal, which ends and begins with no space; what stands before and after it may be a letter."""
    return rf"\ ``{text}``\ " if text == text.strip() else _escape(f"`{text}`")


def _inert(text: str) -> str:
    """For Jinja each brace is a string."""
    return re.sub("[{}]", lambda brace: f"{{{{ '{brace[0]}' }}}}", text)
