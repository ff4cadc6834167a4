"""Image files in a request: base64 or bytes, decoded as ingest decodes them."""

import base64
import binascii
import io
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ratchet.kinds.inputs import ImageInput
from ratchet.kinds.protocol import InputError, TooManyRows

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["allowed", "is_file", "pixels_of"]

_FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF")  # of image files in a request
_FIRST_FRAME = ("GIF", "MPO")  # formats of which ingest takes the first frame
_MOST_PIXELS = 40_000_000  # of an image file, before it is scaled
_MOST_PIXELS_IN_ALL = 100_000_000  # of the files of one request; decoding so many takes about a second


def allowed(spec: ImageInput) -> str:
    """Return which values are allowed, for messages."""
    values = "numbers" if spec.dtype != "uint8" else f"whole numbers from 0 to {np.iinfo(spec.raw_dtype).max}"
    height, width, channels = spec.shape
    return f'shape [n, {height}, {width}, {channels}] of {values}, or image files as {{"b64": TEXT}}'


def is_file(value: Any) -> bool:
    """Return whether a value is an image file: its bytes, or base64."""
    return isinstance(value, bytes) or (isinstance(value, Mapping) and set(value) == {"b64"})


def pixels_of(values: list[Any], spec: ImageInput, field: str, check: Callable[[], None]) -> NDArray[Any]:
    """Return the pixels of image files. They are counted before the first one is decoded."""
    contents = [_content(value, f"{field}[{row}]") for row, value in enumerate(values)]
    pixels = 0
    for row, content in enumerate(contents):
        check()
        with _opened(content, f"{field}[{row}]") as image:
            _check_limits(image, spec, f"{field}[{row}]")
            pixels += image.width * image.height
        if pixels > _MOST_PIXELS_IN_ALL:
            raise TooManyRows(
                f"{field}: found more than {_MOST_PIXELS_IN_ALL:,} pixels in {row + 1} of {len(values)} image files; "
                f"allowed: {_MOST_PIXELS_IN_ALL:,} in one request. Fix: send fewer or smaller files"
            )
    images = []
    for row, content in enumerate(contents):
        check()
        images.append(_decoded(content, spec, f"{field}[{row}]"))
    return np.stack(images)


def _check_limits(image: "Image", spec: ImageInput, field: str) -> None:
    """Refuse an image file that ingest refuses."""
    width, height = image.size
    size = f"{field}: found {width} x {height} pixels; allowed, as in the training data: "
    if min(width, height) < spec.min_side:
        raise InputError(f"{size}sides of {spec.min_side} or more. Fix: send the image in a larger size")
    if max(width, height) > spec.max_aspect * min(width, height):
        raise InputError(f"{size}a long side of {spec.max_aspect:g} short sides at most. Fix: crop the image")
    if width * height > spec.max_pixels:
        raise InputError(f"{size}{spec.max_pixels:,} pixels. Fix: scale the image down")
    if image.format not in _FIRST_FRAME and _has_frames(image):
        raise InputError(f"{field}: has several frames; allowed, as in the training data: one. Fix: keep one")


def _has_frames(image: "Image") -> bool:
    """Return whether there is a second frame. To count them all would read a TIFF file to its end."""
    try:
        image.seek(1)
    except EOFError:
        return False
    return True


def _content(value: Any, field: str) -> bytes:
    if isinstance(value, bytes):
        return value
    try:
        return base64.b64decode(value["b64"], validate=True)
    except (binascii.Error, TypeError, ValueError):
        raise InputError(f"{field}.b64: is not base64") from None


@contextmanager
def _opened(content: bytes, field: str) -> "Iterator[Image]":
    """Open an image file, with at most the allowed pixels; any fault of it is named."""
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(io.BytesIO(content), formats=_FORMATS) as image:
            if image.width * image.height > _MOST_PIXELS:
                raise InputError(f"{field}: found {image.width} x {image.height} pixels; allowed: {_MOST_PIXELS:,}")
            yield image
    except InputError:
        raise
    except Exception as error:  # Pillow's decoders raise many types for damaged files
        why = "" if isinstance(error, UnidentifiedImageError) else f" ({error})"  # that one shows an object's address
        raise InputError(f"{field}: is not an image that can be read{why}; allowed: {', '.join(_FORMATS)}") from None


def _decoded(content: bytes, spec: ImageInput, field: str) -> NDArray[Any]:
    """Return the pixels of an image file as ingest would pack them."""
    from ratchet.data.reading.pixels import to_pixels

    with _opened(content, field) as image:
        return to_pixels(image, size=spec.height, channels=spec.channels)
