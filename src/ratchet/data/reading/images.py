"""One picture: what it is, and its pixels as they are packed. Each is read once.

Metadata (EXIF, GPS, comments, colour profiles) ends here: the orientation is applied, only pixels go on.
"""

import ctypes
import hashlib
import io
import logging
import os
import re
import warnings
from collections.abc import Collection, Container, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, BinaryIO, cast

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError, _imaging, features

from ratchet.data.depth import eight_bits
from ratchet.data.reading.identify import HEAD, identify
from ratchet.errors import DataError, SettingsError

__all__ = [
    "FORMATS",
    "Facts",
    "Look",
    "check_formats",
    "claimed",
    "full_digest",
    "in_grey",
    "one_below_the_other",
    "patient_pillow",
    "to_pixels",
]

FORMATS = {
    "JPEG": "jpeg", "MPO": "jpeg", "PNG": "png", "WEBP": "webp", "BMP": "bmp", "TIFF": "tiff", "PPM": "ppm",
    "GIF": "gif", "AVIF": "avif", "HEIF": "heif",
}  # fmt: skip
"""Pillow's name of a format -> the name in params.yaml. MPO is what many telephones write: a JPEG with a preview."""

ARRAY = "array"  # the format of a picture that comes as pixels, not as a file

_GREY = frozenset({"1", "L", "LA", "La", "I", "I;16", "I;16L", "I;16B", "I;16N"})
_DEEP = "I"  # what the modes of values above 255 begin with
_DEPTHS = (8, 16)  # fewest and most bits of them
_CLAIMS = {".heic": "heif", ".heif": "heif", ".hif": "heif", ".avif": "avif"}  # Pillow may not know them
_LOSSLESS = (0xC3, 0xC7, 0xCB, 0xCF)  # JPEG's markers of frames that cannot be decoded at a part of their size
_DIGESTED_AT_ONCE = 1 << 20  # pixels
_MEASURED_AT_ONCE = 1 << 14  # values, of eight bytes each: they stay in the processor's cache


@dataclass(slots=True)
class Facts:
    """What is known of a sample; None: not known.

    `content` is the SHA-256 (hex) of the source's bytes; `problem` tells in words why the sample cannot be used.
    `pixels`, `brightness` and `contrast` are of the decoded picture: SHA-256 (hex), mean and standard deviation of its
    values, the last two on the scale 0..255. `full_pixels` is the digest of a file's image at full size (full_digest),
    which does not depend on the file's format or on the size that images are packed at. `depth`: bits that the largest
    value of a 16-bit image needs, at least 8.
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
    depth: int | None = None
    label: int | None = None
    pixels: str | None = None
    brightness: float | None = None
    contrast: float | None = None
    full_pixels: str | None = None


@contextmanager
def patient_pillow() -> Iterator[None]:
    """Let Pillow open a header of any size, in silence: the contract judges sizes before anything is decoded."""
    limit, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None
    log = logging.getLogger("PIL")
    level = log.level
    log.setLevel(logging.CRITICAL)  # the quarantine says what is wrong with a file
    try:
        with _quiet_libtiff(), warnings.catch_warnings():
            warnings.filterwarnings("ignore", module=r"PIL\.")
            yield
    finally:
        Image.MAX_IMAGE_PIXELS = limit
        log.setLevel(level)


@contextmanager
def _quiet_libtiff() -> Iterator[None]:
    """Keep libtiff from printing: Pillow raises what it says."""
    names = ("TIFFSetErrorHandler", "TIFFSetWarningHandler")
    try:
        library = ctypes.CDLL(_imaging.__file__)  # finds what Pillow itself is linked with
        setters = [getattr(library, name) for name in names]
    except (OSError, AttributeError):  # Pillow without libtiff, or one that does not show it
        setters = []
    before = []
    for setter in setters:
        setter.restype, setter.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
        before.append(setter(None))
    try:
        yield
    finally:
        for setter, handler in zip(setters, before, strict=True):
            setter(handler)


def check_formats(formats: Collection[str]) -> None:
    """Refuse formats that nothing here can read.

    Raises:
        SettingsError: heif without pillow-heif, or avif with a Pillow that was built without it.
    """
    if "heif" in formats:
        _register_heif()
    if "avif" in formats and not features.check("avif"):
        raise SettingsError(
            "params.yaml: data.formats: found avif, which this Pillow was built without; allowed: the other formats. "
            "Fix: install Pillow from its own wheels, or convert the images"
        )


@cache
def _register_heif() -> None:
    try:
        import pillow_heif
    except ImportError as error:
        raise SettingsError(
            f"params.yaml: data.formats: found heif, which needs pillow-heif ({error}). Fix: "
            "`uv pip install pillow-heif`"
        ) from None
    pillow_heif.register_heif_opener()


@dataclass(frozen=True, slots=True)
class Look:
    """How samples are looked at.

    shape: (side, channels) to decode to; None: the header is enough.
    max_pixels: larger pictures are not decoded, whatever the contract says of them: they might fill the memory.
    known: digests of contents of which all is known but the size; they are not decoded again.
    released: digests of contents that a person wants decoded whatever they are; of several frames the first.
    depth: bits of the largest value of 16-bit images, which becomes 255.
    heif: whether HEIC and HEIF are read.
    whole: whether files' images are also digested at full size.
    """

    shape: tuple[int, int] | None
    max_pixels: int
    known: Container[str] = frozenset()
    released: Container[str] = frozenset()
    depth: int = _DEPTHS[1]
    heif: bool = False
    whole: bool = True

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
        if self.heif:
            _register_heif()  # in each process that reads
        try:
            image = Image.open(file)
        except Exception as error:  # Pillow's readers raise nearly everything on damaged files; the reason is kept
            return self._not_opened(facts, file, error), None
        with image:
            known = FORMATS.get(image.format or "")
            facts.format = known or str(image.format).lower()
            try:
                if image.format == "GIF":
                    facts.frames = 1  # the others are not asked for: whoever allows gif wants its first frame
                elif known and image.format != "MPO":
                    facts.frames = int(getattr(image, "n_frames", 1))
            except Exception as error:  # as above
                facts.readable, facts.problem = False, _problem(error)
                return facts, None
            facts, pixels = self._decoded(facts, image)
            if pixels is not None and self.whole:
                try:
                    facts.full_pixels = _digest_at_full_size(image, file, size=(facts.width, facts.height))
                except Exception as error:  # as above: only the whole image shows some damage
                    facts.readable, facts.problem, facts.pixels = False, _problem(error), None
                    return facts, None
            return facts, pixels

    def _not_opened(self, facts: Facts, file: BinaryIO, error: Exception) -> Facts:
        """Say what a file is that Pillow does not open."""
        file.seek(0)
        kind = identify(file.read(HEAD))
        said = None if isinstance(error, UnidentifiedImageError) else _problem(error)
        if kind is None:
            facts.readable, facts.problem = False, said or "no image in any known format, or its header is damaged"
        elif kind.name == "zeros":
            file.seek(0)
            whole = not any(block.strip(b"\0") for block in iter(partial(file.read, 1 << 20), b""))
            where = f"({facts.bytes:,} of them)" if whole else f"in the first {HEAD:,} of {facts.bytes:,}"
            facts.readable, facts.problem = False, f"{kind.called} {where}"
        elif kind.damaged or (kind.name == "heif" and self.heif):
            facts.format = kind.name
            facts.readable = False
            facts.problem = f"{kind.called}, but its header is damaged or cut off" + (f" ({said})" if said else "")
        elif kind.image:
            facts.format = kind.name
            if facts.content in self.released or (kind.name == "avif" and features.check("avif")):
                facts.readable, facts.problem = False, f"{kind.called} that cannot be decoded here"
        else:
            facts.readable, facts.problem = False, f"{kind.called}, not an image"
        return facts

    def _decoded(self, facts: Facts, image: Image.Image) -> tuple[Facts, NDArray[np.uint8] | None]:
        facts.readable = True
        facts.width, facts.height = image.size
        facts.grey = image.mode in _GREY
        tame = facts.frames in (None, 1) and image.width * image.height <= self.max_pixels
        deep = image.mode.startswith(_DEEP)
        if not (tame or facts.content in self.released):
            return facts, None
        try:
            if image.mode == "P":
                facts.grey = _is_grey_palette(image)
            if deep:
                facts.depth = _depth(image)
            if self.shape is None:
                return facts, None
            pixels = to_pixels(image, size=self.shape[0], channels=self.shape[1], depth=self.depth)
        except Exception as error:  # as above
            facts.readable, facts.problem = False, _problem(error)
            return facts, None
        facts.pixels = hashlib.sha256(pixels.data).hexdigest()
        return facts, pixels


def claimed(name: str) -> str | None:
    """The format that a file's extension stands for; None where it stands for none, and so claims nothing."""
    ending = os.path.splitext(name)[1].lower()
    if ending in _CLAIMS:
        return _CLAIMS[ending]
    known = Image.registered_extensions().get(ending)
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


def to_pixels(image: Image.Image, *, size: int, channels: int, depth: int = _DEPTHS[1]) -> NDArray[np.uint8]:
    """Decode wholly, turn upright, make grey or RGB, scale the shorter side to `size` and cut out the centre.

    Transparent parts become white. 16-bit values are scaled to 8 bits, the largest of `depth` bits to 255. A JPEG much
    larger than asked for is decoded at a half, a quarter or an eighth, never below twice `size`: its blocks hold their
    smaller selves, sharper than filtering makes them and at half the cost. Serving uses the same function.

    Returns:
        uint8 (size, size, channels), channels 1 or 3.

    Raises:
        OSError, ValueError, and what else Pillow's decoders raise: the picture is damaged or has no defined colours.
    """
    if not _is_lossless_jpeg(image):
        image.draft(None, (2 * size, 2 * size))  # of JPEG alone; others ignore it
    deep_transparency = _is_sixteen_bit_png(image)
    image.load()
    if deep_transparency and isinstance(clear := image.info.get("transparency"), tuple):
        image.info["transparency"] = tuple(value >> 8 for value in clear)  # as Pillow has cut the pixels themselves
    image = _to_colour(_upright(image), "L" if channels == 1 else "RGB", depth)
    if image.size != (size, size):
        side = min(image.size)
        left, top = (image.width - side) / 2, (image.height - side) / 2
        # Pillow's bilinear filter widens when it shrinks, which is what antialiasing means.
        image = image.resize((size, size), Image.Resampling.BILINEAR, box=(left, top, left + side, top + side))
    return np.frombuffer(image.tobytes("raw", image.mode), np.uint8).reshape(size, size, channels)


def full_digest(image: Image.Image) -> str:
    """SHA-256 (hex) of size and pixels of a decoded image, upright and as RGB; of 16-bit images, of their values.

    Files of the same image have the same digest: as PNG, BMP, TIFF or lossless WebP, grey or the same grey in three
    channels, turned by EXIF or in fact, with or without metadata.
    """
    upright = _upright(image)
    width, height = upright.size
    digest = hashlib.sha256(f"{width} {height} ".encode())
    if upright.mode.startswith(_DEEP):
        digest.update(np.asarray(upright).astype("<i4").data)  # how they become 8 bits is a setting, not their content
        return digest.hexdigest()
    colour = _to_colour(upright, "RGB", _DEPTHS[1])
    step = max(1, _DIGESTED_AT_ONCE // width)
    for top in range(0, height, step):  # a large image is not copied whole
        strip = colour if step >= height else colour.crop((0, top, width, min(height, top + step)))
        digest.update(strip.tobytes())
    return digest.hexdigest()


def _digest_at_full_size(image: Image.Image, file: BinaryIO, *, size: tuple[int | None, int | None]) -> str:
    """The digest of an image that was decoded from `file`; again, where it was decoded at a smaller size."""
    if image.size == size:
        return full_digest(image)
    file.seek(0)
    with Image.open(file) as whole:
        return full_digest(whole)


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


def _is_sixteen_bit_png(image: Image.Image) -> bool:
    """Whether a PNG that is not loaded yet has 16 bits in each channel."""
    return image.format == "PNG" and any(str(tile[3]).endswith("16B") for tile in getattr(image, "tile", ()))


def _is_lossless_jpeg(image: Image.Image) -> bool:
    """Whether a JPEG that is not loaded yet holds differences of pixels, not frequencies."""
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
            return marker in _LOSSLESS
        at += 1 if marker == 0xFF else 2 + int.from_bytes(head[at + 2 : at + 4], "big")
    return False


def _to_colour(image: Image.Image, mode: str, depth: int) -> Image.Image:
    if image.mode == mode and "transparency" not in image.info:
        return image
    if image.mode == "F":
        raise ValueError("pixels are floating-point numbers of unknown range: save the picture with 8 or 16 bits")
    if image.mode.startswith(_DEEP):
        image = _to_eight_bits(image, depth)
    if image.mode in ("RGBa", "La"):
        image = image.convert("RGBA" if image.mode == "RGBa" else "LA")
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        image = image.convert("RGBA")
        white = Image.new("RGBA", image.size, (255, 255, 255, 255))
        image = Image.alpha_composite(white, image)
    # Lab and other spaces reach grey by way of RGB only.
    return image.convert(mode) if image.mode in ("1", "L", "P", "RGB", "RGBA") else image.convert("RGB").convert(mode)


def _to_eight_bits(image: Image.Image, depth: int) -> Image.Image:
    values, clear = _deep_values(image)
    pixels = eight_bits(values, depth)
    if clear is not None:
        pixels[clear] = 255
    return Image.fromarray(pixels)


def _deep_values(image: Image.Image) -> tuple[NDArray[np.int64], NDArray[np.bool_] | None]:
    """The values of a 16-bit image, and which pixels are transparent; None: it does not say."""
    values = np.asarray(image).astype(np.int64)
    if values.min() < 0 or values.max() >= 1 << _DEPTHS[1]:
        raise ValueError("pixels are 32-bit numbers of unknown range: save the picture with 8 or 16 bits")
    transparency = image.info.get("transparency")
    return values, values == transparency if isinstance(transparency, int) else None


def _depth(image: Image.Image) -> int:
    """The bits that the largest value of a 16-bit image needs, those of transparent pixels aside."""
    image.load()
    values, clear = _deep_values(image)
    shown = values if clear is None else values[~clear]
    return max(_DEPTHS[0], int(shown.max(initial=0)).bit_length())


def _is_grey_palette(image: Image.Image) -> bool:
    """Whether all colours of a palette are grey. Pillow decodes the image for it, so a damaged one raises."""
    palette = np.asarray(image.getpalette("RGB") or [], dtype=np.uint8).reshape(-1, 3)
    return bool((palette == palette[:, :1]).all())


def _problem(error: Exception) -> str:
    """An error in words that are the same on every machine: no absolute paths, no addresses in memory."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return re.sub(r" at 0x[0-9a-fA-F]+", "", str(error)) or type(error).__name__
