"""Bytes of a text file as UTF-8 with plain line ends, or the rule that they break."""

import codecs
from typing import NamedTuple

__all__ = ["Text", "read_text"]

_MARKS = (  # the longer first: UTF-32's little-endian mark begins with that of UTF-16
    (codecs.BOM_UTF32_LE, "UTF-32"),
    (codecs.BOM_UTF32_BE, "UTF-32"),
    (codecs.BOM_UTF16_LE, "UTF-16"),
    (codecs.BOM_UTF16_BE, "UTF-16"),
)
_BEGINNINGS = {
    b"PK\x03\x04": "a ZIP archive or an Office document",
    b"\x1f\x8b": "a gzip archive",
    b"%PDF": "a PDF document",
    b"\x89PNG": "a PNG image",
    b"\xff\xd8\xff": "a JPEG image",
    b"PAR1": "a Parquet table",
    b"version https://git-lfs": "a Git LFS pointer, whose content was not fetched",
}


class Text(NamedTuple):
    """A text as UTF-8, or the rule that it breaks with the value."""

    content: bytes = b""
    rule: str | None = None
    value: str = ""


def read_text(raw: bytes) -> Text:
    """Check the bytes of a text file. Its byte order mark is left out, and CRLF and CR become LF."""
    if not raw:
        return Text(rule="empty-file", value="0 bytes")
    kind = next((kind for beginning, kind in _BEGINNINGS.items() if raw.startswith(beginning)), None)
    if kind is not None:
        return Text(rule="binary-file", value=kind)
    encoding = next((name for mark, name in _MARKS if raw.startswith(mark)), None)
    if encoding is not None:
        return Text(rule="other-encoding", value=encoding)
    if (place := raw.find(b"\0")) >= 0:
        return Text(rule="binary-file", value=f"byte 0 at place {place:,}")
    content = raw.removeprefix(codecs.BOM_UTF8)
    try:
        content.decode()
    except UnicodeDecodeError as error:
        place = error.start + len(raw) - len(content)
        return Text(rule="not-utf8", value=f"byte 0x{raw[place]:02x} at place {place:,}")
    content = content.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    return Text(content) if content else Text(rule="empty-file", value="only a byte order mark")
