"""Decoding of small plain PNG files: a header, pixels and an end, as most sets of small images have them.

Pillow's decoder reads the pixels, as for any other PNG. Only the chunks are read here, because for 32 x 32 pixels
Pillow's reading of them takes as long as the decoding.
"""

import struct
import zlib

from PIL import Image

__all__ = ["plain_png"]

_START = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"
_END = b"\0\0\0\0IEND\xaeB`\x82"
_HEADER = struct.Struct(">IIBB3sI")  # width, height, bits, colour type, methods, checksum
_PIXELS = len(_START) + _HEADER.size  # place of the chunk after the header
_MODES = {0: "L", 2: "RGB", 4: "LA", 6: "RGBA"}  # by colour type, for 8 bits
_MAX_PIXELS = 1 << 16  # of larger images the decoding itself takes the time


def plain_png(content: bytes) -> Image.Image | None:
    """Return the decoded image; None if the file is not a small plain PNG, or is damaged."""
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
    if at != end:
        return None
    try:
        image = Image.frombytes(_MODES[colour], (width, height), b"".join(parts), "zip", _MODES[colour])
    except ValueError:
        return None  # Pillow's reader of whole files gives the reason
    image.format = "PNG"
    return image
