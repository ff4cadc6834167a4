"""Print lines and tables: the one way by which commands and stages write to a person.

A terminal breaks long lines inside words. So lines for a terminal are broken here, between words; files and pipes get
whole lines. A word that is longer than the terminal, such as a path, stays whole and begins a line.
"""

import os
import re
import sys
import unicodedata
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from types import MappingProxyType
from typing import TextIO

__all__ = ["WIDEST", "columns_of", "echo", "echo_table", "fitted", "table_lines", "wrapped"]

NO_RESULT = "it breaks lines for a terminal"

WIDEST = 100  # columns of sentences: longer lines are hard to read
_FALLBACK = 80  # columns of a terminal that does not know its own width
_NARROWEST = 20
_GAP = 2  # columns between those of a table
_DEEP = 4  # indent of broken lines where the caption would take more than half of the terminal
_TREE = " │├└─"
_STYLES: Mapping[str, int] = MappingProxyType({"bold": 1, "dim": 2, "red": 31, "green": 32, "yellow": 33})


def columns_of(stream: TextIO) -> int | None:
    """Return the columns of the terminal behind a stream; None: it is a file or a pipe."""
    if not stream.isatty():
        return None
    try:
        columns = os.get_terminal_size(stream.fileno()).columns
    except OSError:
        columns = 0
    return max(_NARROWEST, columns or _FALLBACK)


def wrapped(text: str, columns: int, indent: int | None = None) -> str:
    """Break lines between words. The rest of a line gets `indent` columns; None: two more than its start."""
    return "\n".join(part for line in text.split("\n") for part in _parts(line, columns, indent))


def _parts(line: str, columns: int, indent: int | None) -> list[str]:
    if _width(line) <= columns:
        return [line]
    depth = len(line) - len(line.lstrip(_TREE)) + 2 if indent is None else indent
    parts: list[str] = []
    for space, word in re.findall("([ \t]*)([^ \t]+)", line):
        if parts and _width(parts[-1] + space + word) <= columns:
            parts[-1] += space + word
        else:  # a long word moves to the left
            start = depth if parts else len(space)
            start = start if start <= columns // 2 else _DEEP
            parts.append(" " * max(0, min(start, columns - _width(word))) + word)
    return parts or [""]


def _width(text: str) -> int:
    """Return the columns that a text takes: letters of East Asia take two, combining marks none."""
    if text.isascii():
        return len(text)
    wide = sum(unicodedata.east_asian_width(letter) in "WF" for letter in text)
    return len(text) + wide - sum(unicodedata.combining(letter) > 0 for letter in text)


def fitted(text: str, stream: TextIO, *, indent: int | None = None) -> str:
    """Return the text as it is for a file or a pipe, with wrapped lines for a terminal."""
    columns = columns_of(stream)
    return text if columns is None else wrapped(text, min(columns, WIDEST), indent)


def echo(text: str, *, caption: str = "", style: str = "", err: bool = False) -> None:
    """Print a text. Broken lines continue below the end of the caption.

    Args:
        style: of the caption, which is bold by default; without a caption of the whole text. Only for a terminal.
    """
    stream = sys.stderr if err else sys.stdout
    printed = fitted(caption + text, stream, indent=len(caption) or None)
    style = style or ("bold" if caption else "")
    if style and stream.isatty() and not os.environ.get("NO_COLOR"):
        end = len(caption.rstrip()) or len(printed)
        printed = f"\x1b[{_STYLES[style]}m{printed[:end]}\x1b[0m{printed[end:]}"
    stream.write(f"{printed}\n")
    stream.flush()


def echo_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table on stdout."""
    sys.stdout.write("".join(f"{line}\n" for line in table_lines(header, rows, columns_of(sys.stdout))))
    sys.stdout.flush()


def table_lines(header: Sequence[str], rows: Sequence[Sequence[str]], columns: int | None) -> list[str]:
    """Return the lines of a table. Cells are broken between words to fit `columns`; None: no line is broken.

    If the longest words do not fit side by side, each cell gets a line that begins with its title.
    """
    table = [list(header), *map(list, rows)]
    widths = [max(map(_width, cells)) for cells in zip(*table, strict=True)]
    needed = [max(map(_width, " ".join(cells).split(" "))) for cells in zip(*table, strict=True)]
    room = (columns or sum(widths) + _GAP * len(widths)) - _GAP * (len(widths) - 1)
    if sum(needed) > room:
        size = max(map(_width, header)) + _GAP
        cells = [[f"{title:<{size}}{cell}" for title, cell in zip(header, row, strict=True) if cell] for row in rows]
        return "\n\n".join(wrapped("\n".join(lines), columns or WIDEST, size) for lines in cells).split("\n")
    while sum(widths) > room:
        widest = max(range(len(widths)), key=lambda index: widths[index] - needed[index])
        widths[widest] -= 1
    lines = []
    for row in table:
        broken = [wrapped(cell, width, 0).split("\n") for cell, width in zip(row, widths, strict=True)]
        for parts in zip_longest(*broken, fillvalue=""):
            padded = (part + " " * (width - _width(part)) for part, width in zip(parts, widths, strict=True))
            lines.append((" " * _GAP).join(padded).rstrip())
    return lines
