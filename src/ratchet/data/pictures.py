"""One picture: what its header says, and its pixels as they are packed.

Metadata (EXIF, GPS, comments, colour profiles) ends here: the orientation is applied, only pixels go on.
"""

import hashlib
import os
import re
import stat
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from ratchet.data.sources import Label, Sample
from ratchet.errors import DataError

__all__ = ["FORMATS", "Facts", "decode", "patient_pillow", "survey", "to_pixels"]

FORMATS = {"JPEG": "jpeg", "MPO": "jpeg", "PNG": "png", "WEBP": "webp", "BMP": "bmp", "TIFF": "tiff", "PPM": "ppm"}
"""Pillow's name of a format -> the name in params.yaml. MPO is what many telephones write: a JPEG with a preview."""

ARRAY = "array"  # the format of a picture that comes as pixels, not as a file

_GREY = frozenset({"1", "L", "LA", "La", "I", "I;16", "I;16L", "I;16B", "I;16N"})
_SIXTEEN_BITS = 65535


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of a sample before its pixels are decoded; None: not known.

    `content` is the SHA-256 (hex) of the source's bytes; `claimed` the format that the file's extension stands for;
    `problem` tells in words why the file cannot be used.
    """

    bytes: int | None = None
    permitted: bool | None = None
    readable: bool | None = None
    problem: str | None = None
    content: str | None = None
    format: str | None = None
    claimed: str | None = None
    frames: int | None = None
    width: int | None = None
    height: int | None = None
    grey: bool | None = None
    label: Label = None


@contextmanager
def patient_pillow() -> Iterator[None]:
    """Let Pillow open a header of any size, without warnings: the contract judges sizes before anything is decoded."""
    Image.init()  # not safe to leave to the first of many threads
    limit, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module=r"PIL\.")
            yield
    finally:
        Image.MAX_IMAGE_PIXELS = limit


def survey(sample: Sample) -> Facts:
    """Read the sample's header and digest its bytes; whatever is wrong becomes a fact, not an error.

    Raises:
        DataError: the source turns out to be of another kind.
    """
    if sample.fault:
        return Facts(readable=False, problem=sample.fault, label=sample.label)
    if isinstance(sample.payload, Path):
        return _survey_file(sample.payload, sample.label)
    try:
        image, label = sample.payload()
        content = hashlib.sha256(f"{image.mode} {image.width} {image.height} ".encode() + image.tobytes()).hexdigest()
    except DataError:
        raise
    except Exception as error:  # a set's own reader fails in its own ways; the reason is kept
        return Facts(readable=False, problem=_problem(error), label=sample.label)
    return Facts(
        readable=True, content=content, format=ARRAY, frames=1,
        width=image.width, height=image.height, grey=_is_grey(image), label=label,
    )  # fmt: skip


def _survey_file(path: Path, label: Label) -> Facts:
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size == 0:
                return Facts(bytes=0, permitted=True, label=label)
            content = hashlib.file_digest(file, "sha256").hexdigest()
            file.seek(0)
            try:
                with Image.open(file) as image:
                    known = FORMATS.get(image.format or "")
                    frames = None
                    if known and image.format != "MPO":
                        frames = int(getattr(image, "n_frames", 1))
                    return Facts(
                        bytes=size, permitted=True, readable=True, content=content,
                        format=known or str(image.format).lower(), claimed=_claimed(path), frames=frames,
                        width=image.width, height=image.height, grey=_is_grey(image), label=label,
                    )  # fmt: skip
            except Exception as error:  # Pillow's readers raise nearly everything on damaged files; the reason is kept
                return Facts(
                    bytes=size, permitted=True, readable=False, problem=_problem(error), content=content, label=label
                )
    except PermissionError as error:
        return Facts(permitted=False, problem=error.strerror, label=label)
    except OSError as error:
        return Facts(readable=False, problem=_problem(error), label=label)


def decode(sample: Sample, *, size: int, channels: int) -> NDArray[np.uint8] | str:
    """The sample's pixels, uint8 (size, size, channels); or, in words, why they cannot be had."""
    try:
        if isinstance(sample.payload, Path):
            with sample.payload.open("rb") as file:
                if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                    return "not a regular file"
                with Image.open(file) as image:
                    return to_pixels(image, size=size, channels=channels)
        return to_pixels(sample.payload()[0], size=size, channels=channels)
    except Exception as error:  # as above: the reason goes to the quarantine
        return _problem(error)


def to_pixels(image: Image.Image, *, size: int, channels: int) -> NDArray[np.uint8]:
    """Decode wholly, turn upright, make grey or RGB, scale the shorter side to `size` and cut out the centre.

    Transparent parts become white. 16-bit values are scaled to 8 bits. Serving uses the same function.

    Returns:
        uint8 (size, size, channels), channels 1 or 3.

    Raises:
        OSError, ValueError, and what else Pillow's decoders raise: the picture is damaged or has no defined colours.
    """
    image.load()
    image = _to_colour(_upright(image), "L" if channels == 1 else "RGB")
    if image.size != (size, size):
        side = min(image.size)
        left, top = (image.width - side) / 2, (image.height - side) / 2
        # Pillow's bilinear filter widens when it shrinks, which is what antialiasing means.
        image = image.resize((size, size), Image.Resampling.BILINEAR, box=(left, top, left + side, top + side))
    return np.asarray(image, dtype=np.uint8).reshape(size, size, channels)


def _upright(image: Image.Image) -> Image.Image:
    """EXIF's orientation applied. A damaged EXIF block says nothing about the pixels: they stay as they are."""
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


def _claimed(path: Path) -> str | None:
    """The format an extension stands for; None where it stands for none, and so claims nothing."""
    known = Image.registered_extensions().get(path.suffix.lower())
    return FORMATS.get(known, known.lower()) if known else None


def _problem(error: Exception) -> str:
    """An error in words that are the same on every machine: no absolute paths, no addresses in memory."""
    if isinstance(error, UnidentifiedImageError):
        return "not a picture in any known format, or its header is damaged"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return re.sub(r" at 0x[0-9a-fA-F]+", "", str(error)) or type(error).__name__
