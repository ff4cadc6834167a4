"""One picture: what it is, and its pixels as they are packed. Each is read once.

Metadata (EXIF, GPS, comments, colour profiles) ends here: the orientation is applied, only pixels go on.
"""

import hashlib
import io
import logging
import os
import re
import warnings
from collections.abc import Container, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, BinaryIO, cast

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from ratchet.errors import DataError

__all__ = [
    "FORMATS",
    "Facts",
    "Look",
    "claimed",
    "in_grey",
    "one_below_the_other",
    "patient_pillow",
    "to_pixels",
]

FORMATS = {"JPEG": "jpeg", "MPO": "jpeg", "PNG": "png", "WEBP": "webp", "BMP": "bmp", "TIFF": "tiff", "PPM": "ppm"}
"""Pillow's name of a format -> the name in params.yaml. MPO is what many telephones write: a JPEG with a preview."""

ARRAY = "array"  # the format of a picture that comes as pixels, not as a file

_GREY = frozenset({"1", "L", "LA", "La", "I", "I;16", "I;16L", "I;16B", "I;16N"})
_SIXTEEN_BITS = 65535
_MEASURED_AT_ONCE = 1 << 14  # values, of eight bytes each: they stay in the processor's cache


@dataclass(slots=True)
class Facts:
    """What is known of a sample; None: not known.

    `content` is the SHA-256 (hex) of the source's bytes; `problem` tells in words why the sample cannot be used.
    `pixels`, `brightness` and `contrast` are of the decoded picture: SHA-256 (hex), mean and standard deviation of its
    values, the last two on the scale 0..255.
    """

    bytes: int | None = None
    permitted: bool | None = None
    readable: bool | None = None
    problem: str | None = None
    content: str | None = None
    format: str | None = None
    frames: int | None = None
    width: int | None = None
    height: int | None = None
    grey: bool | None = None
    label: int | None = None
    pixels: str | None = None
    brightness: float | None = None
    contrast: float | None = None


@contextmanager
def patient_pillow() -> Iterator[None]:
    """Let Pillow open a header of any size, in silence: the contract judges sizes before anything is decoded."""
    limit, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None
    log = logging.getLogger("PIL")
    level = log.level
    log.setLevel(logging.CRITICAL)  # the quarantine says what is wrong with a file
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module=r"PIL\.")
            yield
    finally:
        Image.MAX_IMAGE_PIXELS = limit
        log.setLevel(level)


@dataclass(frozen=True, slots=True)
class Look:
    """How samples are looked at.

    shape: (side, channels) to decode to; None: the header is enough.
    max_pixels: larger pictures are not decoded, whatever the contract says of them: they might fill the memory.
    known: digests of contents of which all is known but the size; they are not decoded again.
    released: digests of contents that a person wants decoded whatever they are; of several frames the first.
    """

    shape: tuple[int, int] | None
    max_pixels: int
    known: Container[str] = frozenset()
    released: Container[str] = frozenset()

    def over(self, read: Any, names: Sequence[str]) -> tuple[list[Facts], NDArray[np.uint8]]:
        """Facts of samples, and their pixels, uint8 (n, side, side, channels): zeros where none were decoded.

        Raises:
            DataError: as `at`.
        """
        seen = [self.at(read, name) for name in names]
        side, channels = self.shape or (0, 0)
        nothing = bytes(side * side * channels)
        joined = b"".join([nothing if picture is None else picture.data for _, picture in seen])
        pixels = np.frombuffer(joined, np.uint8).reshape(len(seen), side, side, channels)
        facts = [facts for facts, _ in seen]
        if pixels.size:
            _measure(pixels, facts)
        return facts, pixels

    def at(self, read: Any, name: str) -> tuple[Facts, NDArray[np.uint8] | None]:
        """Read sample `name` by `read`: facts but for the measures, and pixels uint8 (side, side, channels) if decoded.

        Whatever is wrong with it becomes a fact, not an error.

        Raises:
            DataError: the source turns out to be of another kind, or does not answer any more.
        """
        try:
            content = read(name)
        except DataError:
            raise
        except PermissionError as error:
            return Facts(permitted=False, problem=error.strerror), None
        except Exception as error:  # a disk's or a set's own reader fails in its own ways; the reason is kept
            return Facts(readable=False, problem=_problem(error)), None
        if isinstance(content, tuple):
            return self._picture(*content)
        if isinstance(content, bytes):
            facts = Facts(bytes=len(content), permitted=True)
            if content:
                facts.content = hashlib.sha256(content).hexdigest()
            return self._opened(facts, io.BytesIO(content))
        with content as file:
            facts = Facts(permitted=True)
            try:
                facts.bytes = file.seek(0, os.SEEK_END)
                file.seek(0)
                facts.content = hashlib.file_digest(cast("Any", file), "sha256").hexdigest()
                file.seek(0)
            except OSError as error:
                return Facts(permitted=True, readable=False, problem=_problem(error)), None
            return self._opened(facts, file)

    def _picture(self, image: Image.Image, label: int | None) -> tuple[Facts, NDArray[np.uint8] | None]:
        described = f"{image.mode} {image.width} {image.height} ".encode()
        content = hashlib.sha256(described + image.tobytes()).hexdigest()
        return self._decoded(Facts(content=content, format=ARRAY, frames=1, label=label), image)

    def _opened(self, facts: Facts, file: BinaryIO) -> tuple[Facts, NDArray[np.uint8] | None]:
        if not facts.bytes or facts.content in self.known:
            return facts, None
        try:
            with Image.open(file) as image:
                known = FORMATS.get(image.format or "")
                facts.format = known or str(image.format).lower()
                facts.frames = int(getattr(image, "n_frames", 1)) if known and image.format != "MPO" else None
                return self._decoded(facts, image)
        except Exception as error:  # Pillow's readers raise nearly everything on damaged files; the reason is kept
            facts.readable, facts.problem = False, _problem(error)
            return facts, None

    def _decoded(self, facts: Facts, image: Image.Image) -> tuple[Facts, NDArray[np.uint8] | None]:
        facts.readable = True
        facts.width, facts.height = image.size
        facts.grey = _is_grey(image)
        tame = facts.frames in (None, 1) and image.width * image.height <= self.max_pixels
        if self.shape is None or not (tame or facts.content in self.released):
            return facts, None
        try:
            pixels = to_pixels(image, size=self.shape[0], channels=self.shape[1])
        except Exception as error:  # as above
            facts.readable, facts.problem = False, _problem(error)
            return facts, None
        facts.pixels = hashlib.sha256(pixels.data).hexdigest()
        return facts, pixels


def claimed(name: str) -> str | None:
    """The format that a file's extension stands for; None where it stands for none, and so claims nothing."""
    known = Image.registered_extensions().get(os.path.splitext(name)[1].lower())
    return FORMATS.get(known, known.lower()) if known else None


def _measure(pixels: NDArray[np.uint8], facts: Sequence[Facts]) -> None:
    """Fill in mean and standard deviation of each decoded picture's values.

    Sums of whole numbers, which doubles hold exactly: the same on every machine, in whatever company.
    """
    number = pixels[0].size
    step = max(1, _MEASURED_AT_ONCE // number)
    for start in range(0, len(facts), step):
        values = pixels[start : start + step].reshape(-1, number).astype(np.float64)
        totals, squares = values.sum(axis=1), np.einsum("ij,ij->i", values, values)
        for fact, total, square in zip(facts[start : start + step], totals.tolist(), squares.tolist(), strict=True):
            if fact.pixels is not None:
                fact.brightness = total / number
                fact.contrast = ((number * int(square) - int(total) ** 2) / (number * number)) ** 0.5


def to_pixels(image: Image.Image, *, size: int, channels: int) -> NDArray[np.uint8]:
    """Decode wholly, turn upright, make grey or RGB, scale the shorter side to `size` and cut out the centre.

    Transparent parts become white. 16-bit values are scaled to 8 bits. A JPEG much larger than asked for is decoded at
    a half, a quarter or an eighth, never below twice `size`: its blocks hold their smaller selves, sharper than
    filtering makes them and at half the cost. Serving uses the same function.

    Returns:
        uint8 (size, size, channels), channels 1 or 3.

    Raises:
        OSError, ValueError, and what else Pillow's decoders raise: the picture is damaged or has no defined colours.
    """
    image.draft(None, (2 * size, 2 * size))  # of JPEG alone; others ignore it
    image.load()
    image = _to_colour(_upright(image), "L" if channels == 1 else "RGB")
    if image.size != (size, size):
        side = min(image.size)
        left, top = (image.width - side) / 2, (image.height - side) / 2
        # Pillow's bilinear filter widens when it shrinks, which is what antialiasing means.
        image = image.resize((size, size), Image.Resampling.BILINEAR, box=(left, top, left + side, top + side))
    return np.frombuffer(image.tobytes("raw", image.mode), np.uint8).reshape(size, size, channels)


def one_below_the_other(pixels: NDArray[np.uint8]) -> Image.Image:
    """Pictures, uint8 (n, side, side, channels), as one of n times the height."""
    count, side, _, channels = pixels.shape
    mode = "L" if channels == 1 else "RGB"
    return Image.frombuffer(mode, (side, count * side), np.ascontiguousarray(pixels), "raw", mode, 0, 1)


def in_grey(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Pictures, uint8 (n, side, side, channels), without colours: uint8 (n, side, side)."""
    grey = one_below_the_other(pixels).convert("L").tobytes()
    return np.frombuffer(grey, np.uint8).reshape(pixels.shape[:3])


def _upright(image: Image.Image) -> Image.Image:
    """EXIF's orientation applied. A damaged EXIF block says nothing about the pixels: they stay as they are."""
    if not image.info and not hasattr(image, "tag_v2"):
        return image  # nothing is said of it
    try:
        turned = image.getexif().get(0x0112, 1) not in (0, 1)
    except Exception:
        return image
    return ImageOps.exif_transpose(image) if turned else image


def _to_colour(image: Image.Image, mode: str) -> Image.Image:
    if image.mode == mode and "transparency" not in image.info:
        return image
    if image.mode == "F":
        raise ValueError("pixels are floating-point numbers of unknown range: save the picture with 8 or 16 bits")
    if image.mode == "I" or image.mode.startswith("I;16"):
        image = _to_eight_bits(image)
    if image.mode in ("RGBa", "La"):
        image = image.convert("RGBA" if image.mode == "RGBa" else "LA")
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        image = image.convert("RGBA")
        white = Image.new("RGBA", image.size, (255, 255, 255, 255))
        image = Image.alpha_composite(white, image)
    # Lab and other spaces reach grey by way of RGB only.
    return image.convert(mode) if image.mode in ("1", "L", "P", "RGB", "RGBA") else image.convert("RGB").convert(mode)


def _to_eight_bits(image: Image.Image) -> Image.Image:
    values = np.asarray(image).astype(np.int64)
    if values.min() < 0 or values.max() > _SIXTEEN_BITS:
        raise ValueError("pixels are 32-bit numbers of unknown range: save the picture with 8 or 16 bits")
    return Image.fromarray(((values * 255 + _SIXTEEN_BITS // 2) // _SIXTEEN_BITS).astype(np.uint8))


def _is_grey(image: Image.Image) -> bool:
    if image.mode != "P":
        return image.mode in _GREY
    palette = np.asarray(image.getpalette("RGB") or [], dtype=np.uint8).reshape(-1, 3)
    return bool((palette == palette[:, :1]).all())


def _problem(error: Exception) -> str:
    """An error in words that are the same on every machine: no absolute paths, no addresses in memory."""
    if isinstance(error, UnidentifiedImageError):
        return "not a picture in any known format, or its header is damaged"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return re.sub(r" at 0x[0-9a-fA-F]+", "", str(error)) or type(error).__name__
