"""Decoding of texts: UTF-8, or UTF-16 and UTF-32 with a byte order mark. Any other encoding is refused."""

from typing import NamedTuple

from ratchet.data.reading.identify import HEAD, identify
from ratchet.data.sources.table_file import BYTE_ORDER_MARKS

__all__ = ["Decoded", "decode", "encoding_of"]

_TEXTS = frozenset({"text", "html", "xml", "json", "svg"})  # kinds of files that are text too


class Decoded(NamedTuple):
    """A text, or the rule that its bytes break and the value that breaks it."""

    text: str | None
    rule: str | None = None
    problem: str | None = None


def encoding_of(content: bytes) -> tuple[str, int]:
    """Return the encoding that the byte order mark names, and the length of the mark; without one it is UTF-8."""
    return next(((name, len(mark)) for mark, name in BYTE_ORDER_MARKS if content.startswith(mark)), ("utf-8", 0))


def decode(content: bytes, *, offset: int = 0, marked: bool = True) -> Decoded:
    """Decode the bytes of a text.

    Args:
        content: all bytes of a file, or of a line of a file in UTF-8.
        offset: position of the first byte in its file.
        marked: whether the bytes begin a file, so that a byte order mark and the kind of the file are looked for.
    """
    encoding, mark = encoding_of(content) if marked else ("utf-8", 0)
    kind = identify(content[:HEAD]) if marked and not mark else None
    if kind is not None and kind.name not in _TEXTS:
        return Decoded(None, "not-text", kind.description)
    try:
        return Decoded(content[mark:].decode(encoding))
    except UnicodeDecodeError as error:
        at = mark + error.start
        position = f"byte 0x{content[at]:02x} at position {offset + at:,}"
        return Decoded(
            None, "not-utf-8", f"{position} is not {encoding.upper().removesuffix('-LE').removesuffix('-BE')}"
        )
