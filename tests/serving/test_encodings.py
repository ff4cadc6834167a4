"""Compressed bodies. Expected bytes come from Python's own gzip and zlib."""

import gzip
import os
import zlib

import pytest

from ratchet.serving.encodings import BodyDecoder, accepted_encoding, encoded

BODY = os.urandom(300_000) + b"\0" * 3_000_000


@pytest.mark.parametrize("size", [1, 1000, 1 << 20])
@pytest.mark.parametrize(
    ("coding", "packed"), [("gzip", gzip.compress(BODY[299_000:], mtime=0)), ("deflate", zlib.compress(BODY[299_000:]))]
)
def test_parts_of_any_size_are_decompressed(coding: str, packed: bytes, size: int) -> None:
    decoder = BodyDecoder({"content-encoding": coding})
    pieces = [piece for at in range(0, len(packed), size) for piece in decoder.pieces(packed[at : at + size])]
    decoder.end()
    assert b"".join(pieces) == BODY[299_000:]
    assert max(map(len, pieces)) <= 256 << 10


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
def test_answer_is_read_by_pythons_own_decoder(coding: str) -> None:
    assert (gzip if coding == "gzip" else zlib).decompress(encoded(BODY, coding)) == BODY


@pytest.mark.parametrize(
    ("header", "coding"),
    [
        ("gzip, deflate, br", "gzip"),
        ("deflate", "deflate"),
        ("GZIP;q=0.1", "gzip"),
        ("gzip;q=0, deflate;q=0.5", "deflate"),
        ("*", "gzip"),
        ("identity, *;q=0", ""),
        ("gzip;q=often", ""),
        ("br", ""),
        ("", ""),
    ],
)
def test_encoding_of_an_answer_is_one_that_the_client_accepts(header: str, coding: str) -> None:
    assert accepted_encoding({"accept-encoding": header}) == coding
