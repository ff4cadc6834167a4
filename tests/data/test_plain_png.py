"""Small plain PNG files are decoded without Pillow's reader of chunks; that reader says what is right."""

import io
import random
import struct
import zlib
from collections.abc import Iterator

import numpy as np
import pytest
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from ratchet.data.reading import images
from ratchet.data.reading.images import ImageDecoder
from ratchet.data.reading.pixels import digest_of_pixels, full_digest
from ratchet.data.reading.plain_png import plain_png


def _saved(mode: str, *, side: int = 12, **named) -> bytes:
    drawn = np.random.default_rng(side).integers(0, 256, (side, side, 4), dtype=np.uint8)
    file = io.BytesIO()
    image = Image.fromarray(drawn)
    (image if mode == "RGBA" else image.convert("RGB").convert(mode)).save(file, "PNG", **named)
    return file.getvalue()


def _filtered(width: int, height: int, *, first: int, seed: int) -> bytes:
    """Return an RGB image of random bytes, whose first line has the filter `first`."""
    lines = np.random.default_rng(seed).integers(0, 256, (height, 1 + 3 * width), dtype=np.uint8)
    lines[:, 0] %= 5
    lines[0, 0] = first
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = [b"IHDR" + header, b"IDAT" + zlib.compress(lines.tobytes()), b"IEND"]
    parts = [struct.pack(">I", len(part) - 4) + part + struct.pack(">I", zlib.crc32(part)) for part in chunks]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def _damaged(content: bytes) -> Iterator[bytes]:
    drawn = random.Random(content[40])
    for _ in range(60):
        changed = bytearray(content)
        changed[drawn.randrange(len(changed))] = drawn.randrange(256)
        yield bytes(changed)
    yield from (content[: drawn.randrange(len(content))] for _ in range(10))
    yield content + b"more"


@pytest.mark.parametrize("mode", ["L", "RGB", "LA", "RGBA", "P", "1", "I;16"])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("side", [8, 12])
def test_short_reading_gives_what_pillow_gives(mode: str, channels: int, side: int, monkeypatch) -> None:
    """Facts, reasons and pixels are equal, for damaged files too."""
    content = _saved("L" if mode == "I;16" else mode)
    if mode == "I;16":
        file = io.BytesIO()
        Image.fromarray(np.arange(144, dtype=np.uint16).reshape(12, 12) * 300).save(file, "PNG")
        content = file.getvalue()
    files = [content, *_damaged(content)]
    decoder = ImageDecoder((side, channels), 1 << 20)
    facts, pixels = decoder.read_all(files.__getitem__, range(len(files)))
    monkeypatch.setattr(images, "plain_png", lambda content: None)
    expected, whole = decoder.read_all(files.__getitem__, range(len(files)))
    assert facts == expected
    assert facts[0].readable
    np.testing.assert_array_equal(pixels, whole)


@pytest.mark.parametrize("width", [7, 12])
@pytest.mark.parametrize("first", range(5))
def test_first_line_of_an_image_sees_none_above_it(width: int, first: int, monkeypatch) -> None:
    """Images of 12 x 12 are decoded together, those of 7 x 12 alone."""
    files = [_filtered(width, 12, first=first, seed=seed) for seed in range(3)]
    decoder = ImageDecoder((12, 3), 1 << 20)
    facts, pixels = decoder.read_all(files.__getitem__, range(len(files)))
    monkeypatch.setattr(images, "plain_png", lambda content: None)
    expected, whole = decoder.read_all(files.__getitem__, range(len(files)))
    assert facts == expected
    assert len({fact.pixels for fact in facts}) == 3
    np.testing.assert_array_equal(pixels, whole)


def test_only_small_files_of_pixels_alone_are_plain() -> None:
    text = PngInfo()
    text.add_text("author", "someone")
    assert plain_png(_saved("RGB")) is not None
    assert plain_png(_saved("RGB", pnginfo=text)) is None
    assert plain_png(_saved("RGB", transparency=(1, 2, 3))) is None
    assert plain_png(_saved("P")) is None
    assert plain_png(_saved("RGB", side=300)) is None
    assert plain_png(b"") is None


def test_packed_pixels_have_the_digest_of_the_whole_image() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (9, 9, 3), dtype=np.uint8)
    assert digest_of_pixels(pixels) == full_digest(Image.fromarray(pixels))
