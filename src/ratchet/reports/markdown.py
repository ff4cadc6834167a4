"""Escaping of text for Markdown (CommonMark, with GitHub's tables)."""

import re

from ratchet.reports.numbers import shown

__all__ = ["escaped"]

_MARKS = re.compile(r"([\\`*_\[\]<>|#~&])")
# At the start of a line these begin a list or underline a title
_LINE_START = re.compile(r"^(?:[-+=]|(\d+)(?=[.)](?:\s|$)))")


def escaped(value: object) -> str:
    """Return a value as Markdown that shows it unchanged, on one line, whatever characters it holds.

    Line breaks and other characters that cannot be printed become spaces.
    """
    text = "".join(letter if letter.isprintable() else " " for letter in shown(value))
    return _LINE_START.sub(_escaped_start, _MARKS.sub(r"\\\1", text.strip()))


def _escaped_start(match: re.Match[str]) -> str:
    return f"{match[0]}\\" if match[1] else f"\\{match[0]}"
