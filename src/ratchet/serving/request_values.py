"""Values of a request to arrays of a model. Whatever is wrong with them has one message, which names the field."""

import base64
import binascii
import io
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ratchet.errors import DataError
from ratchet.kinds import ArraysInput, ImageInput, Input, TableInput, TextInput
from ratchet.serving.raw_inputs import to_arrays

__all__ = ["BadRequest", "given_arrays", "rows_of", "texts_in"]

Arrays = tuple[NDArray[Any], ...]

FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF")  # of image files in a request
_MOST_PIXELS = 40_000_000  # of an image file, before it is scaled


class BadRequest(ValueError):
    """The request cannot be answered; the message names the field, the value, what is allowed and the fix."""


def given_arrays(values: Any, described: Input, field: str, *, own: Any = None) -> Arrays:
    """Return the arrays of `LoadedVersion.predict` for raw values.

    Args:
        values: images as an array or as nested lists, or image files as bytes or as {"b64": text}; rows of a table as
            a list of objects or an object of columns; texts as a list; raw values of a user's own kind as a list, or
            its arrays by name.
        described: the model's input.
        field: of the request, for messages.
        own: the user's own kind.

    Raises:
        BadRequest: a value has another type, shape or range, or a column is missing or unknown.
    """
    match described:
        case ImageInput():
            return (_images(values, described, field),)
        case TableInput():
            return _table(rows_of(values, field), described, field)
        case TextInput():
            return to_arrays(texts_in(values, field), described)
        case ArraysInput():
            if not isinstance(values, list | Mapping):
                raise BadRequest(f"{field}: found {_kind(values)}; allowed: a list of {described.reader} values")
            try:
                return to_arrays(values, described, own=own)
            except (DataError, ValueError) as error:
                raise BadRequest(f"{field}: {error}") from None
        case _:
            raise BadRequest(f"{field}: the model writes texts; send prompts")


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
        lengths = {name: len(column) for name, column in values.items() if isinstance(column, Sequence | np.ndarray)}
        if len(lengths) != len(values) or len(set(lengths.values())) > 1:
            raise BadRequest(f"{field}: found columns of {lengths or 'no'} values; allowed: lists of one length")
        return {str(name): list(column) for name, column in values.items()}
    if not isinstance(values, list) or not all(isinstance(row, Mapping) for row in values):
        raise BadRequest(f"{field}: found {_kind(values)}; allowed: a list of objects, one for each row")
    names = dict.fromkeys(str(name) for row in values for name in row)
    for number, row in enumerate(values):
        if len(row) != len(names):
            absent = next(name for name in names if name not in row)
            raise BadRequest(f"{field}[{number}]: has no {absent!r}. Fix: add it; null is a missing value")
    return {name: [row[name] for row in values] for name in names}


def _table(columns: dict[str, list[Any]], described: TableInput, field: str) -> Arrays:
    known = {column.name for column in described.columns}
    for name, column in columns.items():
        if name not in known:
            raise BadRequest(f"{field}: unknown column {name!r}; allowed: {', '.join(sorted(known))}")
        for row, value in enumerate(column):
            if not isinstance(value, str | int | float | bool | None) and not np.isscalar(value):
                raise BadRequest(f"{field}[{row}].{name}: found {_kind(value)}; allowed: a text, number or null")
    if not next(iter(columns.values()), []):
        columns = {name: [] for name in known}
    try:
        return to_arrays(_typed(columns), described)
    except (DataError, ValueError) as error:
        raise BadRequest(f"{field}: {error}") from None


def _typed(columns: dict[str, list[Any]]) -> Any:
    """Return a polars frame; a column with values of several types becomes one of texts, as in a CSV file."""
    import polars

    series = []
    for name, values in columns.items():
        kinds = {type(value) for value in values if value is not None}
        mixed = len(kinds - {int, float}) > 1 or (len(kinds) > 1 and bool(kinds - {int, float}))
        texts = [None if value is None else str(value) for value in values] if mixed else values
        series.append(polars.Series(name, texts, dtype=polars.String if mixed else None, strict=False))
    return polars.DataFrame(series)


def _images(values: Any, described: ImageInput, field: str) -> NDArray[Any]:
    if isinstance(values, list) and values and all(_is_file(value) for value in values):
        return np.stack([_decoded(value, described, f"{field}[{row}]") for row, value in enumerate(values)])
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            images = np.asarray(values)
    except (ValueError, TypeError, OverflowError, Warning):
        raise BadRequest(f"{field}: found lists of different lengths; allowed: {_allowed(described)}") from None
    if images.ndim == 3 and described.channels == 1:
        images = images[..., None]
    if images.shape[1:] != described.shape and not (images.size == 0 and images.ndim == 1):
        raise BadRequest(f"{field}: found shape {list(images.shape)}; allowed: {_allowed(described)}")
    if images.size == 0:
        return np.empty((0, *described.shape), described.raw_dtype)
    if images.dtype.kind not in "iuf":
        raise BadRequest(f"{field}: found values of type {images.dtype}; allowed: {_allowed(described)}")
    return _pixels(images, described, field)


def _pixels(images: NDArray[Any], described: ImageInput, field: str) -> NDArray[Any]:
    dtype = np.dtype(described.raw_dtype)
    if not np.isfinite(images).all():
        raise BadRequest(f"{field}: found a value that is not finite; allowed: {_allowed(described)}")
    if dtype.kind == "u":
        limit = np.iinfo(dtype).max
        if images.min() < 0 or images.max() > limit or (images.dtype.kind == "f" and (images % 1).any()):
            raise BadRequest(
                f"{field}: found values from {images.min()} to {images.max()}; allowed: {_allowed(described)}"
            )
    return images.astype(dtype)


def _allowed(described: ImageInput) -> str:
    values = "numbers" if described.dtype != "uint8" else f"whole numbers from 0 to {np.iinfo(described.raw_dtype).max}"
    height, width, channels = described.shape
    return f'shape [n, {height}, {width}, {channels}] of {values}, or image files as {{"b64": TEXT}}'


def _is_file(value: Any) -> bool:
    return isinstance(value, bytes) or (isinstance(value, Mapping) and set(value) == {"b64"})


def _decoded(value: Any, described: ImageInput, field: str) -> NDArray[Any]:
    """Return the pixels of an image file as ingest would pack them."""
    from PIL import Image

    from ratchet.data.reading.pixels import to_pixels

    if described.dtype != "uint8" or described.depth is not None or described.height != described.width:
        raise BadRequest(f"{field}: image files are not possible with this model; send {_allowed(described)}")
    if isinstance(value, Mapping):
        try:
            value = base64.b64decode(value["b64"], validate=True)
        except (binascii.Error, TypeError, ValueError):
            raise BadRequest(f"{field}.b64: is not base64") from None
    try:
        with Image.open(io.BytesIO(value), formats=FORMATS) as image:
            if image.width * image.height > _MOST_PIXELS:
                raise BadRequest(f"{field}: found {image.width} x {image.height} pixels; allowed: {_MOST_PIXELS:,}")
            return to_pixels(image, size=described.height, channels=described.channels)
    except BadRequest:
        raise
    except Exception as error:  # Pillow's decoders raise many types for damaged files
        raise BadRequest(
            f"{field}: is not an image that can be read ({error}); allowed: {', '.join(FORMATS)}"
        ) from None


def _kind(value: Any) -> str:
    """Return the JSON type of a value, for messages."""
    if value is None:
        return "null"
    names = {bool: "a boolean", int: "a number", float: "a number", str: "a text", list: "a list", dict: "an object"}
    return names.get(type(value), type(value).__name__)
