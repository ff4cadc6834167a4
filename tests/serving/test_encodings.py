"""Compressed bodies. Expected bytes come from Python's own gzip."""

import gzip
import os

import pytest

from ratchet.serving.encodings import BodyDecoder, accepted_encoding

BODY = os.urandom(300_000) + b"\0" * 3_000_000


@pytest.mark.parametrize("size", [1, 1000, 1 << 20])
def test_parts_of_any_size_are_decompressed(size: int) -> None:
    decoder, packed = BodyDecoder({"content-encoding": "gzip"}), gzip.compress(BODY[299_000:])
    pieces = [piece for at in range(0, len(packed), size) for piece in decoder.pieces(packed[at : at + size])]
    decoder.end()
    assert b"".join(pieces) == BODY[299_000:]
    assert max(map(len, pieces)) <= 256 << 10


@pytest.mark.parametrize(
    ("header", "coding"),
    [
        ("gzip, deflate, br", "gzip"),
        ("GZIP;q=0.1", "gzip"),
        ("gzip;q=0, deflate;q=0.5", ""),
        ("*", "gzip"),
        ("identity, *;q=0", ""),
        ("gzip;q=often", ""),
        ("br", ""),
        ("", ""),
    ],
)
def test_encoding_of_an_answer_is_one_that_the_client_accepts(header: str, coding: str) -> None:
    assert accepted_encoding({"accept-encoding": header}) == coding
