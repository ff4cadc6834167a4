"""Lines for a terminal: broken between words, because a terminal breaks long lines inside words."""

import os
import textwrap
from typing import TextIO

__all__ = ["columns_of", "fitted", "wrapped"]

NO_RESULT = "it breaks lines for a terminal"

_FALLBACK = 80  # columns of a terminal that does not know its own width
_NARROWEST = 20


def columns_of(stream: TextIO) -> int | None:
    """Return the columns of the terminal behind a stream; None: it is a file or a pipe."""
    if not stream.isatty():
        return None
    try:
        columns = os.get_terminal_size(stream.fileno()).columns
    except OSError:
        columns = 0
    return max(_NARROWEST, columns or _FALLBACK)


def wrapped(text: str, columns: int) -> str:
    """Break lines between words and indent the rest. A word that is too long, such as a path, stays whole."""
    lines: list[str] = []
    for line in text.split("\n"):
        if len(line) <= columns:
            lines.append(line)
            continue
        indent = " " * (len(line) - len(line.lstrip()) + 2)
        lines += textwrap.wrap(
            line, columns, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False, expand_tabs=False
        )
    return "\n".join(lines)


def fitted(text: str, stream: TextIO) -> str:
    """Return the text as it is for a file or a pipe, with wrapped lines for a terminal."""
    columns = columns_of(stream)
    return text if columns is None else wrapped(text, columns)
