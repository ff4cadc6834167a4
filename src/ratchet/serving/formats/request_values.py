"""Values of a request as arrays of a model. A wrong value has one message, which names the field."""

import base64
import binascii
import io
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ratchet.errors import DataError
from ratchet.kinds import ArraysInput, ImageInput, Input, TableInput, TextInput
from ratchet.serving.formats.raw_inputs import Arrays, to_arrays
from ratchet.serving.formats.refusals import BadRequest, TooManyRows
from ratchet.serving.formats.together import Unencoded, encode_tables, encode_texts

if TYPE_CHECKING:
    from PIL.Image import Image

    from ratchet.data.tables.encode import PlainRows

__all__ = [
    "BadRequest",
    "TooManyRows",
    "as_type",
    "check_rows",
    "given",
    "given_arrays",
    "go_on",
    "rows_of",
    "texts_in",
]

FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF")  # of image files in a request
_FIRST_FRAME = ("GIF", "MPO")  # formats of which ingest takes the first frame
_CELLS = frozenset({str, int, float, bool, type(None)})  # types of the cells of a table
_MOST_PIXELS = 40_000_000  # of an image file, before it is scaled
_MOST_PIXELS_IN_ALL = 100_000_000  # of the files of one request; decoding so many takes about a second


def go_on() -> None:
    """Do nothing: somebody waits for the result."""


def given_arrays(values: Any, described: Input, field: str, **arguments: Any) -> Arrays:
    """Return the arrays of `LoadedVersion.predict` for raw values. Arguments and errors are those of `given`."""
    result = given(values, described, field, **arguments)
    return result.encode([result])[0] if isinstance(result, Unencoded) else result


def given(
    values: Any,
    described: Input,
    field: str,
    *,
    most: int,
    own: Any = None,
    plain: "PlainRows | None" = None,
    check: Callable[[], None] = go_on,
) -> Arrays | Unencoded:
    """Return the arrays of `LoadedVersion.predict` for raw values, or texts and rows that may be encoded with others.

    Args:
        values: images as arrays, nested lists, or files: bytes or {"b64": text}; rows of a table as a list of objects
            or an object of columns; texts as a list; values of a user's own kind as a list, or its arrays by name.
        described: the model's input.
        field: of the request, for messages.
        most: rows that are allowed. They are counted before a file is decoded or a text is split into tokens.
        own, plain: the user's own kind; of a table, what encodes rows that need no reading.
        check: is called between two image files, and raises an exception when no client waits any more.

    Raises:
        BadRequest: a value has another type, shape or range, or a column is missing or unknown.
        TooManyRows: found more than `most`.
    """
    check_rows(values, most)
    match described:
        case ImageInput():
            return (_images(values, described, field, check),)
        case TableInput():
            columns = _columns(rows_of(values, field), described, field)
            rows = len(next(iter(columns.values()), ()))
            return Unencoded(columns, field, rows, partial(encode_tables, described, plain), described)
        case TextInput():
            texts = texts_in(values, field)
            return Unencoded(texts, field, len(texts), partial(encode_texts, described), described)
        case ArraysInput():
            return _own_arrays(values, described, field, own)
        case _:
            raise BadRequest(f"{field}: the model writes texts; send prompts")


def _own_arrays(values: Any, described: ArraysInput, field: str, own: Any) -> Arrays:
    if isinstance(values, Mapping) and len(values) == 1 and set(values) != set(described.names):
        (values,) = values.values()  # a frame with one column
    if not isinstance(values, list | Mapping):
        raise BadRequest(f"{field}: found {_kind(values)}; allowed: a list of {described.reader} values")
    try:
        return to_arrays(values, described, own=own)
    except (DataError, ValueError) as error:
        raise BadRequest(f"{field}: {error}") from None


def check_rows(values: Any, most: int) -> None:
    """Count the rows of a list, an array, or an object of columns.

    Raises:
        TooManyRows: found more than `most`.
    """
    columns = values.values() if isinstance(values, Mapping) else (values,)
    lists = (
        column for column in columns if isinstance(column, list) or (isinstance(column, np.ndarray) and column.ndim)
    )
    rows = max(map(len, lists), default=0)
    if rows > most:
        raise TooManyRows(f"found {rows:,} rows; allowed: {most:,} in one request (serving.rows)")


def texts_in(values: Any, field: str) -> list[str]:
    """Return texts from a list of them, or from rows or columns with one column."""
    if isinstance(values, Mapping) and len(values) == 1:
        (values,) = values.values()
    if not isinstance(values, list | np.ndarray):
        raise BadRequest(f"{field}: found {_kind(values)}; allowed: a list of texts")
    texts = []
    for row, value in enumerate(values):
        if isinstance(value, Mapping) and len(value) == 1:
            (value,) = value.values()
        if isinstance(value, list | np.ndarray) and len(value) == 1:
            (value,) = value
        if isinstance(value, bytes):
            try:
                value = value.decode()
            except UnicodeDecodeError as error:
                raise BadRequest(f"{field}[{row}]: is not UTF-8 (byte {error.start})") from None
        if not isinstance(value, str):
            raise BadRequest(f"{field}[{row}]: found {_kind(value)}; allowed: a text")
        texts.append(value)
    return texts


def rows_of(values: Any, field: str) -> dict[str, list[Any]]:
    """Return the columns of rows: a list of objects that have the same keys, or an object of lists of one length."""
    if isinstance(values, Mapping):
        lengths = {len(column) if isinstance(column, list | np.ndarray) else -1 for column in values.values()}
        if len(lengths) > 1 or -1 in lengths:
            raise BadRequest(f"{field}: allowed: an object of lists that have one length")
        return {str(name): list(column) for name, column in values.items()}
    if not isinstance(values, list) or not all(isinstance(row, Mapping) for row in values):
        raise BadRequest(f"{field}: found {_kind(values)}; allowed: a list of objects, one for each row")
    names = dict.fromkeys(str(name) for row in values for name in row)
    if values and not names:
        raise BadRequest(f"{field}[0]: has no columns")
    for number, row in enumerate(values):
        if len(row) != len(names):
            absent = next(name for name in names if name not in row)
            raise BadRequest(f"{field}[{number}]: has no {absent!r}. Fix: add it; null is a missing value")
    return {name: [row[name] for row in values] for name in names}


def _columns(columns: dict[str, list[Any]], described: TableInput, field: str) -> dict[str, list[Any]]:
    """Return the columns of a table, whose names and types are allowed."""
    from ratchet.data.tables.encode import other_spellings

    spelled = other_spellings(columns, described)
    columns = {spelled.get(name, name): column for name, column in columns.items()}
    known = {column.name for column in described.columns}
    for name, column in columns.items():
        if name not in known:
            raise BadRequest(f"{field}: unknown column {name!r}; allowed: {', '.join(sorted(known))}")
        if set(map(type, column)) <= _CELLS:
            continue
        for row, value in enumerate(column):
            if type(value) not in _CELLS and not np.isscalar(value):
                raise BadRequest(f"{field}[{row}].{name}: found {_kind(value)}; allowed: a text, number or null")
    return columns if next(iter(columns.values()), []) else {name: [] for name in known}


def _images(values: Any, described: ImageInput, field: str, check: Callable[[], None]) -> NDArray[Any]:
    if isinstance(values, list) and values and all(_is_file(value) for value in values):
        return _files(values, described, field, check)
    if (images := _bytes(values, described)) is not None:
        return images
    # Of type object: with another one each value would take as much memory as the longest text.
    images = values if isinstance(values, np.ndarray) else np.asarray(values, dtype=object)
    if images.ndim == 3 and described.channels == 1:
        images = images[..., None]
    if images.shape[1:] != described.shape and not (images.size == 0 and images.ndim == 1):
        raise BadRequest(f"{field}: found shape {list(images.shape)}; allowed: {_allowed(described)}")
    if images.size == 0:
        return np.empty((0, *described.shape), described.raw_dtype)
    try:
        return as_type(images, np.dtype(described.raw_dtype))
    except (ValueError, TypeError, OverflowError):
        raise BadRequest(f"{field}: has other values; allowed: {_allowed(described)}") from None


def _bytes(values: Any, described: ImageInput) -> NDArray[np.uint8] | None:
    """Return images of whole numbers from 0 to 255 in nested lists, in a tenth of NumPy's time; None: they are not."""
    if described.raw_dtype != "uint8" or not isinstance(values, list) or not values:
        return None
    level: list[Any] = values
    try:
        is_flat = described.channels == 1 and not isinstance(values[0][0][0], list)
        for size in described.shape[: 2 if is_flat else 3]:
            if set(map(len, level)) != {size} or set(map(type, level)) != {list}:
                return None
            level = list(chain.from_iterable(level))
        images = np.frombuffer(bytes(level), np.uint8)
        if any(type(level[at]) is bool for at in np.flatnonzero(images <= 1).tolist()):
            return None
        return images.reshape(len(values), *described.shape)
    except (TypeError, ValueError, LookupError):  # a value that is no list, or no whole number from 0 to 255
        return None


def as_type(values: NDArray[Any], dtype: "np.dtype[Any]") -> NDArray[Any]:
    """Return finite numbers as another type. Whole numbers stay the same; floats may be rounded.

    Raises:
        ValueError, TypeError, OverflowError: a value is none, or not in the range of the type.
    """
    if values.dtype == dtype and dtype.kind in "biu":
        return values
    kinds = (
        set(map(type, values.ravel().tolist())) if values.dtype == object else {bool if values.dtype == bool else int}
    )
    if not kinds <= ({int, float} if dtype.kind != "b" else {int, float, bool}):
        raise ValueError("values that are no numbers")
    with np.errstate(all="ignore"):
        result = values.astype(dtype)
    if not (np.isfinite(result).all() if dtype.kind == "f" else (result == values).all()):
        raise ValueError("values out of range")
    return result


def _allowed(described: ImageInput) -> str:
    values = "numbers" if described.dtype != "uint8" else f"whole numbers from 0 to {np.iinfo(described.raw_dtype).max}"
    height, width, channels = described.shape
    return f'shape [n, {height}, {width}, {channels}] of {values}, or image files as {{"b64": TEXT}}'


def _is_file(value: Any) -> bool:
    return isinstance(value, bytes) or (isinstance(value, Mapping) and set(value) == {"b64"})


def _files(values: list[Any], described: ImageInput, field: str, check: Callable[[], None]) -> NDArray[Any]:
    """Return the pixels of image files. They are counted before the first one is decoded."""
    if described.dtype != "uint8" or described.depth is not None or described.height != described.width:
        raise BadRequest(f"{field}[0]: image files are not possible with this model; send {_allowed(described)}")
    contents = [_content(value, f"{field}[{row}]") for row, value in enumerate(values)]
    pixels = 0
    for row, content in enumerate(contents):
        check()
        with _opened(content, f"{field}[{row}]") as image:
            _check_limits(image, described, f"{field}[{row}]")
            pixels += image.width * image.height
        if pixels > _MOST_PIXELS_IN_ALL:
            raise TooManyRows(
                f"{field}: found more than {_MOST_PIXELS_IN_ALL:,} pixels in {row + 1} of {len(values)} image files; "
                f"allowed: {_MOST_PIXELS_IN_ALL:,} in one request. Fix: send fewer or smaller files"
            )
    images = []
    for row, content in enumerate(contents):
        check()
        images.append(_decoded(content, described, f"{field}[{row}]"))
    return np.stack(images)


def _check_limits(image: "Image", described: ImageInput, field: str) -> None:
    """Refuse an image file that ingest refuses."""
    width, height = image.size
    size = f"{field}: found {width} x {height} pixels; allowed, as in the training data: "
    if min(width, height) < described.min_side:
        raise BadRequest(f"{size}sides of {described.min_side} or more. Fix: send the image in a larger size")
    if max(width, height) > described.max_aspect * min(width, height):
        raise BadRequest(f"{size}a long side of {described.max_aspect:g} short sides at most. Fix: crop the image")
    if width * height > described.max_pixels:
        raise BadRequest(f"{size}{described.max_pixels:,} pixels. Fix: scale the image down")
    if image.format not in _FIRST_FRAME and _has_frames(image):
        raise BadRequest(f"{field}: has several frames; allowed, as in the training data: one. Fix: keep one")


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
        raise BadRequest(f"{field}.b64: is not base64") from None


@contextmanager
def _opened(content: bytes, field: str) -> "Iterator[Image]":
    """Open an image file, with at most the allowed pixels; any fault of it is named."""
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(io.BytesIO(content), formats=FORMATS) as image:
            if image.width * image.height > _MOST_PIXELS:
                raise BadRequest(f"{field}: found {image.width} x {image.height} pixels; allowed: {_MOST_PIXELS:,}")
            yield image
    except BadRequest:
        raise
    except Exception as error:  # Pillow's decoders raise many types for damaged files
        why = "" if isinstance(error, UnidentifiedImageError) else f" ({error})"  # that one shows an object's address
        raise BadRequest(f"{field}: is not an image that can be read{why}; allowed: {', '.join(FORMATS)}") from None


def _decoded(content: bytes, described: ImageInput, field: str) -> NDArray[Any]:
    """Return the pixels of an image file as ingest would pack them."""
    from ratchet.data.reading.pixels import to_pixels

    with _opened(content, field) as image:
        return to_pixels(image, size=described.height, channels=described.channels)


def _kind(value: Any) -> str:
    """Return the JSON type of a value, for messages."""
    if value is None:
        return "null"
    names = {bool: "a boolean", int: "a number", float: "a number", str: "a text", list: "a list", dict: "an object"}
    return names.get(type(value), type(value).__name__)
