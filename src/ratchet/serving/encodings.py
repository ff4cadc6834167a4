"""gzip as the content encoding of HTTP bodies: of requests (Content-Encoding) and answers (Accept-Encoding)."""

import gzip
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

__all__ = ["ENCODINGS", "BodyDecoder", "accepted_encoding", "encoded"]

ENCODINGS = ("gzip",)
_ALIASES = {"x-gzip": "gzip", "identity": ""}
_GZIP = 16 + zlib.MAX_WBITS
_PIECE = 256 << 10  # bytes that are decompressed at a time
_LEVEL = 1  # of zlib; a higher one takes several times as long for a few per cent


class BodyDecoder:
    """Decompresses a body in pieces, so that its reader can stop at a limit."""

    def __init__(self, headers: Mapping[str, str]) -> None:
        """Read the encoding from the headers of the request.

        Raises:
            LookupError: it is unknown, or there are several.
        """
        given = headers.get("content-encoding", "").strip().lower()
        self.encoding = _ALIASES.get(given, given)
        if self.encoding and self.encoding not in ENCODINGS:
            raise LookupError(given)
        self._stream: Any = None
        self._is_complete = not self.encoding

    def pieces(self, part: bytes) -> Iterator[bytes]:
        """Yield the bytes that a part of the body encodes.

        Raises:
            ValueError: the part is damaged.
        """
        if not self.encoding:
            yield part
            return
        is_full = False  # the stream may hold more bytes, though it has taken the whole part
        while part or is_full:
            if self._stream is None:
                self._stream = zlib.decompressobj(_GZIP)
            try:
                piece = self._stream.decompress(part, _PIECE)
            except zlib.error as error:
                raise ValueError(f"is not {self.encoding}: {error}") from None
            yield piece
            part, self._is_complete, is_full = self._stream.unconsumed_tail, self._stream.eof, len(piece) == _PIECE
            if self._is_complete:  # a gzip file may have several members
                part, is_full, self._stream = self._stream.unused_data, False, None

    def end(self) -> None:
        """End the body.

        Raises:
            ValueError: its end is missing.
        """
        if not self._is_complete:
            raise ValueError(f"is cut off: the end of the {self.encoding} data is missing")


def accepted_encoding(headers: Mapping[str, str]) -> str:
    """Return the encoding that a client accepts for an answer; empty: none that is known."""
    accepted = dict[str, float]()
    for item in headers.get("accept-encoding", "").lower().split(","):
        name, _, quality = item.partition(";")
        try:
            accepted[name.strip()] = float(quality.partition("=")[2] or 1.0)
        except ValueError:
            accepted[name.strip()] = 0.0
    rest = accepted.get("*", 0.0)
    return next((name for name in ENCODINGS if accepted.get(name, rest) > 0.0), "")


def encoded(content: bytes) -> bytes:
    """Return the bytes as gzip."""
    return gzip.compress(content, _LEVEL, mtime=0)
