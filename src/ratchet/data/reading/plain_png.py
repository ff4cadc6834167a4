"""Decoding of small plain PNG files: a header, pixels and an end, as most sets of small images have them.

Pillow takes as long to open a file of 32 x 32 pixels, and to make objects for it, as to decode it. So the chunks are
read here, and Pillow decodes many images of one layout in one call.
"""

import struct
import zlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

__all__ = ["PlainImage", "PngLayout", "opened", "plain_png", "stacked_images", "unstacked"]

_START = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"
_END = b"\0\0\0\0IEND\xaeB`\x82"
_HEADER = struct.Struct(">IIBB3sI")  # width, height, bits, colour type, methods, checksum
_PIXELS = len(_START) + _HEADER.size  # place of the chunk after the header
_MODES = {0: "L", 2: "RGB", 4: "LA", 6: "RGBA"}  # by colour type, for 8 bits; a value has one byte
_MAX_PIXELS = 1 << 16  # of larger images the decoding itself takes the time
_LAST_FILTER = 4  # a line of pixels begins with the number of its filter


class PngLayout(NamedTuple):
    """Mode and size of an image in pixels."""

    mode: str
    width: int
    height: int

    @property
    def line(self) -> int:
        """Bytes of a filtered line."""
        return 1 + self.width * len(self.mode)


class PlainImage(NamedTuple):
    """An image that is inflated, but still filtered."""

    layout: PngLayout
    lines: bytes


def plain_png(content: bytes) -> PlainImage | None:
    """Inflate an image; None if the file is not a small plain PNG, or is damaged."""
    if not (content.startswith(_START) and content.endswith(_END)) or len(content) < _PIXELS:
        return None
    width, height, bits, colour, methods, checksum = _HEADER.unpack_from(content, len(_START))
    is_usual = bits == 8 and colour in _MODES and methods == b"\0\0\0" and 0 < width * height <= _MAX_PIXELS
    if not is_usual or zlib.crc32(content[len(_START) - 4 : _PIXELS - 4]) != checksum:
        return None
    at, end, parts = _PIXELS, len(content) - len(_END), []
    while at < end and content[at + 4 : at + 8] == b"IDAT":
        size = int.from_bytes(content[at : at + 4], "big")
        parts.append(content[at + 8 : at + 8 + size])
        at += size + 12
    layout, inflater = PngLayout(_MODES[colour], width, height), zlib.decompressobj()
    try:
        lines = inflater.decompress(b"".join(parts), height * layout.line + 1)
    except zlib.error:
        return None  # Pillow's reader of whole files gives the reason
    is_whole = at == end and inflater.eof and len(lines) == height * layout.line
    return PlainImage(layout, lines) if is_whole and max(lines[:: layout.line]) <= _LAST_FILTER else None


def stacked_images(layout: PngLayout, images: Sequence[bytes]) -> Image.Image:
    """Decode the lines of images of one layout, below each other, with a line of zeros after each."""
    zeros = bytes(layout.line)  # filters see no pixels above the first line of an image
    lines = zlib.compress(zeros.join(images) + zeros, 0)
    return Image.frombytes(layout.mode, (layout.width, len(images) * (layout.height + 1)), lines, "zip", layout.mode)


def unstacked(image: Image.Image, *, count: int) -> NDArray[np.uint8]:
    """Return the pixels of stacked images of mode L or RGB, uint8 (count, height, width, channels)."""
    pixels = np.frombuffer(image.tobytes(), np.uint8)
    return pixels.reshape(count, -1, image.width, len(image.mode))[:, :-1]


def opened(image: PlainImage) -> Image.Image:
    """Decode one image."""
    layout = image.layout
    decoded = stacked_images(layout, [image.lines]).crop((0, 0, layout.width, layout.height))
    decoded.format = "PNG"
    return decoded
