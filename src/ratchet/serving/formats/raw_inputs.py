"""Raw inputs: the values that a client of a model sends, and the arrays that the model takes."""

from collections.abc import Collection, Iterable, Mapping
from numbers import Number
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ratchet.data.depth import eight_bits, raw_values
from ratchet.errors import DataError
from ratchet.kinds import Array, ArraysInput, ImageInput, Input, TableInput, TextInput

if TYPE_CHECKING:
    import polars
    import torch

    from ratchet.training import Split
    from ratchet.training.own_kind import OwnKind

__all__ = [
    "Arrays",
    "converted",
    "from_arrays",
    "from_tensors",
    "raw_samples",
    "texts_of",
    "to_arrays",
    "to_tensors",
    "values_of",
]

Arrays = tuple[NDArray[Any], ...]


def to_arrays(raw: Any, described: Input, *, own: "OwnKind | None" = None) -> Arrays:
    """Return the arrays of a packed set for raw values.

    Args:
        raw: images (n, height, width, channels) of the model's `raw_dtype`; rows of a table as a pandas or polars
            frame, a mapping of columns, or a list of mappings; texts, or raw values of a user's own kind, as a list
            or a frame with one column; arrays of such a kind as a mapping.
        described: the model's input.
        own: the user's kind if it is loaded already.

    Raises:
        ValueError: a value is out of range, or a column is missing.
    """
    match described:
        case ImageInput():
            return (_pixels(np.asarray(raw), described),)
        case TableInput():
            from ratchet.data.tables.encode import encode

            frame = _frame(raw)
            _refuse_booleans(frame, described)
            arrays: Arrays = encode(frame, described)
            return arrays
        case TextInput():
            from ratchet.tokens.tokenizers import encode as ids_of

            texts = texts_of(raw)
            return (ids_of(texts, described).gather(np.arange(len(texts))),)
        case ArraysInput():
            if isinstance(raw, Mapping):
                return _named_arrays(raw, described)
            from ratchet.training.own_kind import OwnKind

            return (own or OwnKind.of(described)).batch(list(_values(raw)), described)
        case _:
            raise ValueError(f"inputs of kind {described.kind} cannot be served")


def raw_samples(split: "Split", rows: NDArray[np.int64], described: Input) -> Any:
    """Return samples of a packed split as a client would send them: `to_arrays` converts them to the stored arrays.

    `described` is the input of the packed set.
    """
    import torch

    from ratchet.training.texts import TextSplit

    if isinstance(split, TextSplit):
        return split.texts(rows)
    inputs, _ = split.batch(rows, torch.device("cpu"))
    return from_arrays(from_tensors(inputs, described), described)


def converted(inputs: "tuple[torch.Tensor, ...]", described: Input, other: Input) -> "tuple[torch.Tensor, ...]":
    """Return a batch of rows of a table for a model with other columns or categories."""
    return to_tensors(to_arrays(from_arrays(from_tensors(inputs, described), described), other), other)


def from_arrays(arrays: Arrays, described: Input) -> Any:
    """Return arrays of a packed set as raw values: `to_arrays` converts them to those of this model or of another."""
    match described:
        case ImageInput():
            return arrays[0] if described.depth is None else raw_values(arrays[0], described.depth)
        case TableInput():
            return _table_rows(arrays, described)
        case ArraysInput():
            return dict(zip(described.names, arrays, strict=True))
        case _:
            raise ValueError(f"inputs of kind {described.kind} cannot be served")


def values_of(arrays: Arrays, described: Input, columns: Collection[str]) -> dict[str, list[float | str | None]]:
    """Return columns of a table's rows: numbers, dates as seconds since 1970, or categories. None: missing.

    Columns that the model does not have are left out, as are all columns of other kinds of data.
    """
    if not isinstance(described, TableInput) or not arrays:
        return {}
    values: dict[str, list[float | str | None]] = {}
    numbers, codes = arrays
    for place, column in enumerate(described.numeric):
        if column.name in columns:
            read = numbers[:, place].astype(np.float64) + column.offset
            values[column.name] = [None if np.isnan(value) else value for value in read.tolist()]
    for place, column in enumerate(described.categorical):
        if column.name in columns:
            names = (None, "(not in the training rows)", *column.categories)
            values[column.name] = [names[code] for code in codes[:, place].tolist()]
    return values


def to_tensors(arrays: Arrays, described: Input) -> "tuple[torch.Tensor, ...]":
    """Return arrays of a packed set as the model takes them."""
    import torch

    tensors = tuple(torch.from_numpy(np.ascontiguousarray(array)) for array in arrays)
    return tuple(tensor.permute(0, 3, 1, 2) for tensor in tensors) if isinstance(described, ImageInput) else tensors


def from_tensors(inputs: "tuple[torch.Tensor, ...]", described: Input) -> Arrays:
    """Return a batch as arrays of a packed set: the inverse of `to_tensors`."""
    tensors = tuple(tensor.permute(0, 2, 3, 1) for tensor in inputs) if isinstance(described, ImageInput) else inputs
    return tuple(tensor.numpy() for tensor in tensors)


def _pixels(values: NDArray[Any], described: ImageInput) -> NDArray[Any]:
    """Return raw images as the training images were packed. Integers of another type must be in range."""
    limits = np.iinfo(described.raw_dtype) if described.dtype == "uint8" else None
    if limits and values.size and not limits.min <= values.min() <= values.max() <= limits.max:
        raise ValueError(
            f"values from {values.min()} to {values.max()}; allowed: {limits.min} to {limits.max}, as in the "
            "training images. Fix: scale 16-bit images to 8 bits, or train on 16-bit images"
        )
    if described.depth is not None:
        values = eight_bits(values, described.depth)
    return np.array(values, described.dtype)


def _table_rows(arrays: Arrays, described: TableInput) -> Any:
    """Return the rows as a pandas frame. A value that the training rows do not have becomes a text of its own."""
    import pandas  # type: ignore[import-untyped]

    numbers, codes = arrays
    values: dict[str, Any] = {}
    for place, column in enumerate(described.numeric):
        read = numbers[:, place].astype(np.float64) + column.offset
        is_date = column.type == "datetime"
        values[column.name] = (read * 1e6).round().astype("datetime64[us]") if is_date else read
    for place, column in enumerate(described.categorical):
        unseen = max(column.categories, key=len, default="") + "?"
        names = np.array([None, unseen, *column.categories], dtype=object)
        values[column.name] = names[codes[:, place]]
    return pandas.DataFrame({column.name: values[column.name] for column in described.columns})


def _named_arrays(raw: Mapping[str, Any], described: ArraysInput) -> Arrays:
    """Return arrays that are given by name, (n, *shape) each."""
    if set(raw) != set(described.names):
        raise ValueError(f"found {', '.join(map(str, raw)) or 'no arrays'}; allowed: {described.described}")
    arrays = tuple(_converted(raw[array.name], array) for array in described.arrays)
    rows = {len(values) if values.ndim else -1 for values in arrays}
    for array, values in zip(described.arrays, arrays, strict=True):
        if values.shape[1:] != array.shape or len(rows) > 1 or rows == {-1}:
            shape = ", ".join(map(str, ("n", *array.shape)))
            raise ValueError(f"{array.name} has shape {values.shape}; allowed: ({shape}), with one n for all arrays")
    return arrays


def _converted(values: Any, array: Array) -> NDArray[Any]:
    """Return values in the type of the array, which must be able to hold them."""
    given = np.asarray(values, None if isinstance(values, np.ndarray) else object)
    kinds = (
        set(map(type, given.ravel().tolist())) if given.dtype == object else {bool} if given.dtype == bool else set()
    )
    try:
        if kinds & {str, bytes} or (bool in kinds and array.dtype != "bool"):
            raise TypeError("no numbers")
        with np.errstate(all="ignore"):
            result = given.astype(array.dtype)
        wrong = not np.isfinite(result).all() if array.dtype == "float32" else bool((result != given).any())
    except (ValueError, TypeError, OverflowError):
        wrong = True
    if wrong:
        raise ValueError(f"{array.name} has values that are no finite {array.dtype}")
    return result


def _values(raw: Any) -> Any:
    """Return the values of a list, an array, or the only column of a frame."""
    if not hasattr(raw, "columns"):
        return raw
    if len(raw.columns) != 1:
        raise ValueError(f"found the columns {', '.join(map(str, raw.columns))}; allowed: one column with the values")
    return raw[raw.columns[0]].to_list()


def texts_of(raw: Any) -> list[str]:
    """Return texts from a list, an array, or the only column of a frame.

    Raises:
        ValueError: a value is no text.
    """
    texts = list(np.atleast_1d(np.asarray(_values(raw), dtype=object)))
    for place, text in enumerate(texts):
        if not isinstance(text, str):
            raise ValueError(f"row {place}: found {text!r}; allowed: a text")
    return texts


def _frame(raw: Any) -> "polars.DataFrame":
    """Return rows as a frame. Numbers and texts in one column become texts, as in a file.

    Raises:
        DataError: a column has values that no type holds, or a name is given twice.
    """
    import polars

    if isinstance(raw, polars.DataFrame):
        return raw
    if not getattr(getattr(raw, "columns", None), "is_unique", True):  # of pandas
        name = raw.columns[raw.columns.duplicated()][0]
        raise DataError(f"column {name!r} is given twice. Fix: keep one")
    _refuse_mixed_booleans(raw)
    try:
        return polars.from_pandas(raw) if hasattr(raw, "iloc") else polars.DataFrame(raw)
    except (*_NO_COLUMN, polars.exceptions.PolarsError):
        names = list(dict.fromkeys(name for row in raw for name in row)) if isinstance(raw, list) else list(raw)
        columns = {name: [row.get(name) for row in raw] if isinstance(raw, list) else raw[name] for name in names}
        return polars.DataFrame([_column(str(name), list(cells)) for name, cells in columns.items()])


def _refuse_booleans(frame: "polars.DataFrame", described: TableInput) -> None:
    """Refuse booleans for numbers and dates: ingest reads them as texts.

    Raises:
        DataError: naming the column.
    """
    import polars

    for column in described.numeric:
        values = frame[column.name] if column.name in frame.columns else None
        if values is not None and values.dtype == polars.Boolean and values.null_count() < len(values):
            kind = "date" if column.type == "datetime" else "number"
            raise DataError(f"column {column.name!r}: found a boolean; allowed: a {kind}, or an empty value")


def _refuse_mixed_booleans(raw: Any) -> None:
    """Refuse a column with booleans and other values: libraries take True for 1 there.

    Raises:
        DataError: naming the column.
    """
    is_frame = hasattr(raw, "iloc")
    if isinstance(raw, list):
        rows = [row for row in raw if isinstance(row, Mapping)]
        names = {name for row in rows if bool in map(type, row.values()) for name in row}
        columns = {name: [row.get(name) for row in rows] for name in names}
    elif isinstance(raw, Mapping) or is_frame:
        columns = {name: raw[name] for name in raw if str(getattr(raw[name], "dtype", "object")) == "object"}
    else:
        return
    for name, cells in columns.items():
        if bool not in map(type, cells):
            continue
        values = [cell for cell in cells if isinstance(cell, str | Number)]
        kinds = {type(value) for value in values if value == value or not is_frame}  # in pandas NaN is a missing value
        if len(kinds) > 1:
            raise _types_error(name, kinds)


def _types_error(name: str, kinds: Iterable[type]) -> DataError:
    types = ", ".join(sorted(kind.__name__ for kind in kinds))
    allowed = "numbers, texts or dates. Fix: convert them to one type"
    return DataError(f"column {name!r} has values of the types {types}. Allowed: {allowed}")


_NO_COLUMN = (TypeError, ValueError, OverflowError, NotImplementedError)  # of polars and of Arrow


def _is_missing(cell: Any) -> bool:
    """Return whether it is None, NaN, or one of pandas' own missing values, NaT and NA."""
    return cell is None or (isinstance(cell, float) and cell != cell) or type(cell).__name__ in ("NaTType", "NAType")


def _column(name: str, cells: list[Any]) -> "polars.Series":
    """Return one column; texts if it has numbers and texts."""
    import polars

    values = [None if _is_missing(cell) else cell for cell in cells]
    try:
        return polars.Series(name, values)
    except (*_NO_COLUMN, polars.exceptions.PolarsError):
        kinds: set[type] = {type(value) for value in values if value is not None}
    if not all(issubclass(kind, str | Number) for kind in kinds) or kinds & {bool, complex}:
        raise _types_error(name, kinds)
    texts = [value if value is None or isinstance(value, str) else f"{value}".removesuffix(".0") for value in values]
    return polars.Series(name, texts, dtype=polars.String)
