"""Pixels of a decoded image: upright, grey or RGB, scaled to the packed size; their digests and statistics.

Metadata (EXIF, GPS, comments, colour profiles) ends here. The orientation is applied, and only pixels are kept.
"""

import hashlib
import re
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from ratchet.kinds.image.depth import eight_bits

__all__ = [
    "GREY_MODES", "QUANTILES", "bits_needed", "channel_statistics", "digest_of_pixels", "full_digest",
    "has_grey_palette", "histogram", "is_deep", "jpeg_digest", "packed_pixels", "stacked_image", "to_colour", "to_grey",
    "to_pixels",
]  # fmt: skip

GREY_MODES = frozenset({"1", "L", "LA", "La", "I", "I;16", "I;16L", "I;16B", "I;16N"})
MIN_DEPTH, MAX_DEPTH = 8, 16  # bits
_DEEP_MODE = "I"  # beginning of Pillow's modes for values above 255
_LOSSLESS_MARKERS = (0xC3, 0xC7, 0xCB, 0xCF)  # JPEG frames that cannot be decoded at a fraction of their size
_DIGEST_BLOCK = 1 << 20  # pixels
_MARKER = re.compile(rb"\xff([\x01-\xcf\xd8-\xfe])")  # of a JPEG: in coded pixels 0 or a restart marker follows 255
_METADATA = (*range(0xE0, 0xF0), 0xFE)  # markers of EXIF, XMP, colour profiles, previews and comments
_WITHOUT_LENGTH, _END = (0x01, 0xD8), 0xD9
_UPRIGHT = 1  # EXIF's orientation
QUANTILES = (0.0, 0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99, 1.0)


def to_pixels(image: Image.Image, *, size: int, channels: int, depth: int = MAX_DEPTH) -> NDArray[np.uint8]:
    """Decode an image, turn it upright, convert it to grey or RGB, scale its shorter side and crop the centre.

    Transparent pixels become white. 16-bit values are scaled to 8 bits; the largest value of `depth` bits becomes 255.
    A JPEG much larger than `size` is decoded at 1/2, 1/4 or 1/8 of its size, but never below twice `size`. This is
    sharper than filtering and costs half as much. Serving uses the same function.

    Returns:
        uint8 (size, size, channels), channels 1 or 3.

    Raises:
        OSError, ValueError, and any other error of Pillow's decoders: the image is damaged or has no defined colours.
    """
    if not _is_lossless_jpeg(image):
        image.draft(None, (2 * size, 2 * size))  # only JPEG has this; other formats ignore it
    deep_transparency = _is_sixteen_bit_png(image)
    image.load()
    if deep_transparency and isinstance(clear := image.info.get("transparency"), tuple):
        image.info["transparency"] = tuple(value >> 8 for value in clear)  # Pillow also kept only 8 bits of the pixels
    image = to_colour(_upright(image), "L" if channels == 1 else "RGB", depth)
    if image.size != (size, size):
        side = min(image.size)
        left, top = (image.width - side) / 2, (image.height - side) / 2
        # Pillow widens its bilinear filter when it shrinks an image, so the result is antialiased.
        image = image.resize((size, size), Image.Resampling.BILINEAR, box=(left, top, left + side, top + side))
    return np.frombuffer(image.tobytes("raw", image.mode), np.uint8).reshape(size, size, channels)


def full_digest(image: Image.Image) -> str:
    """Return the SHA-256 (hex) of the size and the upright RGB pixels of a decoded image.

    For 16-bit images the values are digested instead. Files of the same image have the same digest: PNG, BMP, TIFF or
    lossless WebP, grey or grey stored in three channels, rotated by EXIF or in the pixels, with or without metadata.
    A JPEG has a digest of its own (`jpeg_digest`).
    """
    upright = _upright(image)
    width, height = upright.size
    digest = hashlib.sha256(f"{width} {height} ".encode())
    if is_deep(upright):
        digest.update(np.asarray(upright).astype("<i4").data)  # the scaling to 8 bits is a setting, not content
        return digest.hexdigest()
    colour = to_colour(upright, "RGB")
    step = max(1, _DIGEST_BLOCK // width)
    for top in range(0, height, step):  # a large image is not copied as a whole
        strip = colour if step >= height else colour.crop((0, top, width, min(height, top + step)))
        digest.update(strip.tobytes())
    return digest.hexdigest()


def jpeg_digest(image: Image.Image, content: bytes) -> str:
    """Return the SHA-256 (hex) of a JPEG's coded pixels and tables, and of its orientation.

    Metadata, and what follows the first image, are left out. Decoding a large photo at full size, for a digest of its
    pixels, would take seven times as long as decoding it at the packed size.
    """
    digest = hashlib.sha256(f"{_orientation(image)} ".encode())
    view, at = memoryview(content), 0
    while segment := _MARKER.search(content, at):
        digest.update(view[at : segment.start()])
        marker, at = segment[1][0], segment.end()
        if marker == _END:
            return digest.hexdigest()
        if marker not in _WITHOUT_LENGTH:
            at += max(2, int.from_bytes(view[at : at + 2], "big"))
        if marker not in _METADATA:
            digest.update(view[segment.end() - 1 : at])
    digest.update(view[at:])
    return digest.hexdigest()


def digest_of_pixels(pixels: NDArray[np.uint8]) -> str:
    """Return what `full_digest` returns for an image whose upright RGB pixels are these, (height, width, 3)."""
    digest = hashlib.sha256(f"{pixels.shape[1]} {pixels.shape[0]} ".encode())
    digest.update(pixels.data)
    return digest.hexdigest()


def stacked_image(pixels: NDArray[np.uint8]) -> Image.Image:
    """Return images, uint8 (n, side, side, channels), below each other as one image of n times the height."""
    count, side, _, channels = pixels.shape
    mode = "L" if channels == 1 else "RGB"
    return Image.frombuffer(mode, (side, count * side), np.ascontiguousarray(pixels), "raw", mode, 0, 1)


def to_grey(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Convert images, uint8 (n, side, side, channels), to grey: uint8 (n, side, side)."""
    grey = stacked_image(pixels).convert("L").tobytes()
    return np.frombuffer(grey, np.uint8).reshape(pixels.shape[:3])


def histogram(pixels: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Count each value in images, uint8 (n, side, side, channels): int64 (channels, 256)."""
    counted = stacked_image(pixels).histogram()  # NumPy is slower
    return np.array(counted, np.int64).reshape(-1, 256)


def channel_statistics(histogram: NDArray[np.int64]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and standard deviation per channel, from int64 (channels, 256).

    The deviation of a constant channel is 1. Both are computed from integers, so that they are equal on every machine.
    """
    means, deviations = [], []
    for counts in histogram.tolist():
        number = sum(counts)
        total = sum(value * count for value, count in enumerate(counts))
        squares = sum(value * value * count for value, count in enumerate(counts))
        variance = (number * squares - total * total) / (number * number)
        means.append(total / number)
        deviations.append(variance**0.5 if variance > 0 else 1.0)
    return tuple(means), tuple(deviations)


def packed_pixels(histogram: NDArray[np.int64]) -> dict[str, object]:
    """Return statistics of the training pixels from their histogram, int64 (channels, 256)."""
    mean, std = channel_statistics(histogram)
    quantiles = [_channel_quantiles(counts) for counts in histogram]
    return {"mean": mean, "std": std, "quantiles": quantiles, "histogram": histogram.tolist()}


def is_deep(image: Image.Image) -> bool:
    """Whether an image can have values above 255."""
    return image.mode.startswith(_DEEP_MODE)


def bits_needed(image: Image.Image) -> int:
    """Return the bits that the largest value of a 16-bit image needs, at least 8; transparent pixels do not count."""
    image.load()
    values, clear = _deep_values(image)
    opaque = values if clear is None else values[~clear]
    return max(MIN_DEPTH, int(opaque.max(initial=0)).bit_length())


def has_grey_palette(image: Image.Image) -> bool:
    """Whether all colours of a palette are grey. Pillow decodes the image for it, so a damaged image raises."""
    palette = np.asarray(image.getpalette("RGB") or [], dtype=np.uint8).reshape(-1, 3)
    return bool((palette == palette[:, :1]).all())


def _upright(image: Image.Image) -> Image.Image:
    return image if _orientation(image) == _UPRIGHT else ImageOps.exif_transpose(image)


def _orientation(image: Image.Image) -> int:
    """Return EXIF's orientation, 1 to 8; upright without one, with an undefined one, or with a damaged EXIF block."""
    if not image.info and not hasattr(image, "tag_v2"):
        return _UPRIGHT  # no metadata
    try:
        orientation: Any = image.getexif().get(0x0112)
    except Exception:
        return _UPRIGHT
    return int(orientation) if orientation in range(2, 9) else _UPRIGHT


def _is_sixteen_bit_png(image: Image.Image) -> bool:
    """Whether a PNG that is not loaded yet has 16 bits in each channel."""
    return image.format == "PNG" and any(str(tile[3]).endswith("16B") for tile in getattr(image, "tile", ()))


def _is_lossless_jpeg(image: Image.Image) -> bool:
    """Whether a JPEG that is not loaded yet stores differences of pixels, not frequencies."""
    file = getattr(image, "fp", None)
    if image.format not in ("JPEG", "MPO") or file is None:
        return False
    start = file.tell()
    try:
        file.seek(0)
        head: bytes = file.read(1 << 16)
    finally:
        file.seek(start)
    at = 2
    while at + 4 <= len(head) and head[at] == 0xFF:
        marker = head[at + 1]
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            return marker in _LOSSLESS_MARKERS
        at += 1 if marker == 0xFF else 2 + int.from_bytes(head[at + 2 : at + 4], "big")
    return False


def to_colour(image: Image.Image, mode: str, depth: int = MAX_DEPTH) -> Image.Image:
    """Convert a decoded image to mode L or RGB; see `to_pixels`."""
    if image.mode == mode and "transparency" not in image.info:
        return image
    if image.mode == "F":
        raise ValueError("pixels are floating-point numbers of unknown range: save the image with 8 or 16 bits")
    if is_deep(image):
        image = _to_eight_bits(image, depth)
    if image.mode in ("RGBa", "La"):
        image = image.convert("RGBA" if image.mode == "RGBa" else "LA")
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        image = image.convert("RGBA")
        white = Image.new("RGBA", image.size, (255, 255, 255, 255))
        image = Image.alpha_composite(white, image)
    # Pillow converts Lab and other colour spaces to grey only by way of RGB.
    return image.convert(mode) if image.mode in ("1", "L", "P", "RGB", "RGBA") else image.convert("RGB").convert(mode)


def _to_eight_bits(image: Image.Image, depth: int) -> Image.Image:
    values, clear = _deep_values(image)
    pixels = eight_bits(values, depth)
    if clear is not None:
        pixels[clear] = 255
    return Image.fromarray(pixels)


def _deep_values(image: Image.Image) -> tuple[NDArray[np.int64], NDArray[np.bool_] | None]:
    """Return the values of a 16-bit image and a mask of its transparent pixels, or None without transparency."""
    values = np.asarray(image).astype(np.int64)
    if values.min() < 0 or values.max() >= 1 << MAX_DEPTH:
        raise ValueError("pixels are 32-bit numbers of unknown range: save the image with 8 or 16 bits")
    transparency: Any = image.info.get("transparency")
    return values, values == transparency if isinstance(transparency, int) else None


def _channel_quantiles(counts: NDArray[np.int64]) -> dict[str, int]:
    reached = np.cumsum(counts)
    return {str(q): int(np.searchsorted(reached, max(1, int(np.ceil(q * reached[-1]))))) for q in QUANTILES}
