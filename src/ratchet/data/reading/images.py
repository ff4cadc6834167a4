"""Reading one image file: its facts and its packed pixels. Each file is read once."""

import ctypes
import hashlib
import io
import logging
import os
import re
import warnings
from collections.abc import Collection, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import cache, partial
from operator import attrgetter
from typing import Any, BinaryIO, cast

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError, _imaging, features

from ratchet.data.reading.identify import HEAD, identify
from ratchet.data.reading.pixels import (
    GREY_MODES,
    MAX_DEPTH,
    bits_needed,
    digest_of_pixels,
    full_digest,
    has_grey_palette,
    is_deep,
    jpeg_digest,
    to_colour,
    to_pixels,
)
from ratchet.data.reading.plain_png import PlainImage, PngLayout, opened, plain_png, stacked_images, unstacked
from ratchet.data.refusal_reasons import why_unopened
from ratchet.errors import DataError, SettingsError, check_lasting, is_momentary

__all__ = [
    "ARRAY",
    "FORMATS",
    "Facts",
    "ImageDecoder",
    "check_formats",
    "facts_columns",
    "format_of_extension",
    "pillow_settings",
]

FORMATS: Mapping[str, str] = {
    "JPEG": "jpeg", "MPO": "jpeg", "PNG": "png", "WEBP": "webp", "BMP": "bmp", "TIFF": "tiff", "PPM": "ppm",
    "GIF": "gif", "AVIF": "avif", "HEIF": "heif",
}  # fmt: skip
"""Pillow's name of a format -> its name in params.yaml. MPO is a JPEG with a preview, as many telephones write it."""

ARRAY = "array"  # the format of an image that a source gives as pixels, not as a file

_EXTENSIONS = {".heic": "heif", ".heif": "heif", ".hif": "heif", ".avif": "avif"}  # Pillow may not know them
Decoded = NDArray[np.uint8] | PlainImage | None
"""Pixels of a sample, or its plain image of the packed size, whose pixels are decoded later; None: not decoded."""

_STATISTICS_BLOCK = 1 << 14  # values of eight bytes: they fit into the processor's cache


@dataclass(slots=True)
class Facts:
    """Facts about a sample; None: not known.

    Attributes:
        content: SHA-256 (hex) of the source's bytes.
        problem: the reason why the sample cannot be used.
        pixels: SHA-256 (hex) of the packed pixels.
        brightness: mean of the packed pixels, 0..255.
        contrast: standard deviation of the packed pixels, on the same scale.
        full_pixels: digest of the whole image, whatever its packed size: of its pixels (`full_digest`), or of a JPEG's
            coded pixels (`jpeg_digest`).
        depth: bits that the largest value of a 16-bit image needs, at least 8.
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


_FACTS = {field.name: attrgetter(field.name) for field in fields(Facts)}


def facts_columns(facts: Sequence[Facts]) -> dict[str, list[Any]]:
    """Convert one object per sample to one list per fact."""
    return {name: list(map(get, facts)) for name, get in _FACTS.items()}


@contextmanager
def pillow_settings() -> Iterator[None]:
    """Let Pillow open headers of any size and print nothing. Rules check sizes before images are decoded."""
    limit, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None
    log = logging.getLogger("PIL")
    level = log.level
    log.setLevel(logging.CRITICAL)  # the quarantine table reports damaged files
    try:
        with _quiet_libtiff(), warnings.catch_warnings():
            warnings.filterwarnings("ignore", module=r"PIL\.")
            yield
    finally:
        Image.MAX_IMAGE_PIXELS = limit
        log.setLevel(level)


@contextmanager
def _quiet_libtiff() -> Iterator[None]:
    """Keep libtiff from printing. Pillow raises the same messages as errors."""
    names = ("TIFFSetErrorHandler", "TIFFSetWarningHandler")
    try:
        library = ctypes.CDLL(_imaging.__file__)  # finds the libtiff that Pillow itself is linked with
        setters = [getattr(library, name) for name in names]
    except (OSError, AttributeError):  # Pillow without libtiff, or with hidden symbols
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
    """Refuse formats that cannot be read in this environment.

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
class ImageDecoder:
    """Settings by which samples are read and decoded.

    Attributes:
        shape: (side, channels) to decode to; None: read the header only.
        max_pixels: larger images are never decoded, because they might fill the memory.
        known: digests of contents that need no decoding, because their facts are in the cache.
        released: digests of contents that were released by hand. They are always decoded; of several frames the first.
        depth: bits of the largest value of 16-bit images, which becomes 255.
        heif: whether HEIC and HEIF are read.
    """

    shape: tuple[int, int] | None
    max_pixels: int
    known: Container[str] = frozenset()
    released: Container[str] = frozenset()
    depth: int = MAX_DEPTH
    heif: bool = False

    def read_all(self, read: Any, names: Sequence[str]) -> tuple[list[Facts], NDArray[np.uint8]]:
        """Read samples: facts, and pixels uint8 (n, side, side, channels), zeros where a sample was not decoded.

        Raises:
            DataError: the source is of another kind, or no longer answers.
            StorageUnavailable: the system cannot read or decode a sample now.
        """
        samples = [self._read_named(read, name) for name in names]
        facts = [facts for facts, _ in samples]
        side, channels = self.shape or (0, 0)
        pixels = np.zeros((len(samples), side, side, channels), np.uint8)
        plain: dict[PngLayout, list[tuple[int, bytes]]] = {}
        for place, (_, image) in enumerate(samples):
            if isinstance(image, PlainImage):
                plain.setdefault(image.layout, []).append((place, image.lines))
            elif image is not None:
                pixels[place] = image
        for layout, images in plain.items():
            _decode_plain(layout, images, facts, pixels)
        if pixels.size:
            _add_statistics(pixels, facts)
        return facts, pixels

    def _read_named(self, read: Any, name: str) -> tuple[Facts, Decoded]:
        """Read a sample by `_read_one`, and name it in an error that is not its own."""
        try:
            return self._read_one(read, name)
        except (MemoryError, OSError) as error:
            check_lasting(error, name)
            raise

    def _read_one(self, read: Any, name: str) -> tuple[Facts, Decoded]:
        """Read sample `name` by `read`: its facts without statistics, and its pixels, uint8 (side, side, channels).

        Faults of the sample become facts, not errors.

        Raises:
            DataError: the source is of another kind, or no longer answers.
            MemoryError, OSError: not the sample's (`is_momentary`).
        """
        try:
            content = read(name)
        except DataError:
            raise
        except PermissionError as error:
            return Facts(permitted=False, problem=error.strerror), None
        except Exception as error:  # readers of disks and data sets raise errors of any type; keep the reason
            return Facts(readable=False, problem=_decoder_message(error)), None
        if isinstance(content, tuple):
            return self._read_array(*content)
        if isinstance(content, bytes):
            facts = Facts(bytes=len(content), permitted=True)
            if content:
                facts.content = hashlib.sha256(content).hexdigest()
            return self._open(facts, io.BytesIO(content), content)
        with content as file:
            facts = Facts(permitted=True)
            try:
                facts.bytes = file.seek(0, os.SEEK_END)
                file.seek(0)
                facts.content = hashlib.file_digest(cast("Any", file), "sha256").hexdigest()
                file.seek(0)
            except OSError as error:
                return Facts(permitted=True, readable=False, problem=_decoder_message(error)), None
            return self._open(facts, file)

    def _read_array(self, image: Image.Image, label: int | None) -> tuple[Facts, Decoded]:
        described = f"{image.mode} {image.width} {image.height} ".encode()
        content = hashlib.sha256(described + image.tobytes()).hexdigest()
        return self._decode(Facts(content=content, format=ARRAY, frames=1, label=label), image)

    def _open(self, facts: Facts, file: BinaryIO, content: bytes = b"") -> tuple[Facts, Decoded]:
        """Decode a file; `content` has its bytes if they are in memory."""
        if not facts.bytes or facts.content in self.known:
            return facts, None
        if self.heif:
            _register_heif()  # needed once in each worker process
        plain = plain_png(content)
        if plain is not None and self._is_packed_whole(plain.layout):
            return facts, plain
        try:
            image = Image.open(file) if plain is None else opened(plain)
        except Exception as error:  # Pillow raises errors of nearly any type on damaged files; keep the reason
            return self._explain_unopened(facts, file, error), None
        with image:
            known = FORMATS.get(image.format or "")
            facts.format = known or str(image.format).lower()
            try:
                if image.format == "GIF":
                    facts.frames = 1  # who allows gif wants its first frame, so the others are not counted
                elif known and image.format != "MPO":
                    facts.frames = int(getattr(image, "n_frames", 1))
            except Exception as error:  # see above
                facts.readable, facts.problem = False, _decoder_message(error)
                return facts, None
            facts, pixels = self._decode(facts, image)
            if pixels is not None:
                try:
                    facts.full_pixels = _digest_of_image(image, file, pixels, size=(facts.width, facts.height))
                except Exception as error:  # see above
                    facts.readable, facts.problem, facts.pixels = False, _decoder_message(error), None
                    return facts, None
            return facts, pixels

    def _is_packed_whole(self, layout: PngLayout) -> bool:
        side = self.shape[0] if self.shape else 0
        return (layout.width, layout.height) == (side, side) and side * side <= self.max_pixels

    def _explain_unopened(self, facts: Facts, file: BinaryIO, error: Exception) -> Facts:
        """Add the reason why Pillow cannot open a file.

        The format is set only for a format that is not decoded here. A damaged file has no format: its first bytes
        alone do not prove that its extension or its format is wrong.
        """
        file.seek(0)
        kind = identify(file.read(HEAD))
        detail = None if isinstance(error, UnidentifiedImageError) else _decoder_message(error)
        decodable = kind is not None and (kind.decodable or (kind.name == "heif" and self.heif))
        is_decoder_missing = not decodable and not (kind and kind.name == "avif" and features.check("avif"))
        if kind and kind.image and is_decoder_missing:
            facts.format = kind.name
            if facts.content not in self.released:
                return facts  # a rule refuses the format
        facts.readable = False
        if kind and kind.name == "zeros":
            file.seek(0)
            all_zeros = not any(block.strip(b"\0") for block in iter(partial(file.read, 1 << 20), b""))
            where = f"({facts.bytes:,} of them)" if all_zeros else f"in the first {HEAD:,} of {facts.bytes:,}"
            facts.problem = f"{kind.description} {where}"
        else:
            facts.problem = why_unopened(kind, detail, decodable=decodable)
        return facts

    def _decode(self, facts: Facts, image: Image.Image) -> tuple[Facts, NDArray[np.uint8] | None]:
        facts.readable = True
        facts.width, facts.height = image.size
        facts.grey = image.mode in GREY_MODES
        decodable = facts.frames in (None, 1) and image.width * image.height <= self.max_pixels
        deep = is_deep(image)
        if not (decodable or facts.content in self.released):
            return facts, None
        try:
            if image.mode == "P":
                facts.grey = has_grey_palette(image)
            if deep:
                facts.depth = bits_needed(image)
            if self.shape is None:
                return facts, None
            pixels = to_pixels(image, size=self.shape[0], channels=self.shape[1], depth=self.depth)
        except Exception as error:  # see above
            facts.readable, facts.problem = False, _decoder_message(error)
            return facts, None
        facts.pixels = hashlib.sha256(pixels.data).hexdigest()
        return facts, pixels


def format_of_extension(name: str) -> str | None:
    """Return the format that a file's extension stands for; None for an extension of no image format."""
    extension = os.path.splitext(name)[1].lower()
    if extension in _EXTENSIONS:
        return _EXTENSIONS[extension]
    Image.preinit()  # the usual formats; a look at all of them imports every decoder
    known = Image.EXTENSION.get(extension) or Image.registered_extensions().get(extension)
    return FORMATS.get(known, known.lower()) if known else None


def _decode_plain(
    layout: PngLayout, images: Sequence[tuple[int, bytes]], facts: Sequence[Facts], pixels: NDArray[np.uint8]
) -> None:
    """Decode plain images of the packed size, (place, lines), into `pixels`, and complete their facts."""
    stacked = stacked_images(layout, [lines for _, lines in images])
    places = [place for place, _ in images]
    grey, colour = layout.mode in GREY_MODES, to_colour(stacked, "RGB")
    whole = unstacked(colour, count=len(images))
    pixels[places] = (
        whole if pixels.shape[-1] == whole.shape[-1] else unstacked(to_colour(stacked, "L"), count=len(images))
    )
    for place, image in zip(places, whole, strict=True):
        fact = facts[place]
        fact.format, fact.frames, fact.readable, fact.grey = FORMATS["PNG"], 1, True, grey
        fact.width, fact.height = layout.width, layout.height
        fact.pixels = hashlib.sha256(pixels[place].data).hexdigest()
        fact.full_pixels = digest_of_pixels(image)


def _add_statistics(pixels: NDArray[np.uint8], facts: Sequence[Facts]) -> None:
    """Add brightness and contrast of each decoded image to its facts.

    Sums are of whole numbers, which doubles hold exactly. So they are the same on every machine and for any batch.
    """
    number = pixels[0].size
    step = max(1, _STATISTICS_BLOCK // number)
    for start in range(0, len(facts), step):
        values = pixels[start : start + step].reshape(-1, number).astype(np.float64)
        totals, squares = values.sum(axis=1), np.einsum("ij,ij->i", values, values)
        for fact, total, square in zip(facts[start : start + step], totals.tolist(), squares.tolist(), strict=True):
            if fact.pixels is not None:
                fact.brightness = total / number
                fact.contrast = ((number * int(square) - int(total) ** 2) / (number * number)) ** 0.5


def _digest_of_image(
    image: Image.Image, file: BinaryIO, pixels: NDArray[np.uint8], *, size: tuple[int | None, int | None]
) -> str:
    """Digest an image of this size that was decoded from `file` and packed as `pixels`."""
    if image.format in ("JPEG", "MPO"):
        file.seek(0)
        return jpeg_digest(image, file.read())
    is_packed_whole = pixels.shape == (size[1], size[0], 3) and not is_deep(image)
    return digest_of_pixels(pixels) if is_packed_whole else full_digest(image)


def _decoder_message(error: Exception) -> str:
    """Return an error's message without absolute paths and memory addresses, so that it is the same everywhere.

    Raises:
        MemoryError, OSError: this error, if it is not the sample's.
    """
    if is_momentary(error):
        raise error
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return re.sub(r" at 0x[0-9a-fA-F]+", "", str(error)) or type(error).__name__
