"""The pieces a Markdown page is made of (CommonMark, with GitHub's tables); any text in it is shown as it is."""

import re
from collections.abc import Iterable, Mapping, Sequence

__all__ = ["code", "escaped", "pairs", "points", "table"]

_SIGNS = re.compile(r"([\\`*_\[\]<>|#~&])")
# At the start of a line these begin a list or underline a title.
_OPENING = re.compile(r"^(?:[-+=]|(\d+)(?=[.)](?:\s|$)))")


def escaped(value: object) -> str:
    """Text that Markdown shows as it is: a class or a folder may be named with any character. None shows as a dash."""
    if value is None:
        return "&ndash;"
    shown = "".join(letter if letter.isprintable() else " " for letter in _said(value))
    return _OPENING.sub(_opened, _SIGNS.sub(r"\\\1", shown.strip()))


def _opened(found: re.Match[str]) -> str:
    return f"{found[0]}\\" if found[1] else f"\\{found[0]}"


def table(header: Sequence[object], rows: Iterable[Sequence[object]]) -> str:
    """A table; nothing without rows."""
    lines = [_row(row) for row in rows]
    return "\n".join([_row(header), "|" + "---|" * len(header), *lines]) if lines else ""


def pairs(content: Mapping[str, object]) -> str:
    """Names and values, as a table without a heading of its own."""
    return table(("", ""), content.items())


def points(lines: Iterable[object]) -> str:
    """A list."""
    return "\n".join(f"- {escaped(line)}" for line in lines)


def code(content: str) -> str:
    """Lines of Python to copy, whatever stands in them."""
    longest = max((len(run) for run in re.findall("`+", content)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}python\n{content}\n{fence}"


def _row(cells: Sequence[object]) -> str:
    return f"| {' | '.join(_cell(cell) for cell in cells)} |"


def _cell(value: object) -> str:
    return escaped(value) if value != "" else ""


def _said(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
