"""Values as clients send them: counted, and read as texts or numbers. A wrong value has one message."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ratchet.kinds.protocol import InputError, TooManyRows

__all__ = ["as_type", "check_rows", "json_type", "only_column", "texts_in"]


def json_type(value: Any) -> str:
    """Return the JSON type of a value, for messages."""
    if value is None:
        return "null"
    names = {bool: "a boolean", int: "a number", float: "a number", str: "a text", list: "a list", dict: "an object"}
    return names.get(type(value), type(value).__name__)


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


def only_column(values: Any, field: str) -> Any:
    """Return the only column of a frame, a Series or a tuple as a list; other values as they are."""
    if not hasattr(values, "columns"):
        return list(values) if isinstance(values, tuple) or hasattr(values, "to_list") else values
    if len(values.columns) != 1:
        names = ", ".join(map(str, values.columns))
        raise InputError(f"{field}: found the columns {names}; allowed: one column with the values")
    return values[values.columns[0]].to_list()


def texts_in(values: Any, field: str) -> list[str]:
    """Return texts from a list of them, or from rows, columns or a frame with one column.

    Raises:
        InputError: a value is no text.
    """
    values = only_column(values, field)
    if isinstance(values, Mapping) and len(values) == 1:
        (values,) = values.values()
    if not isinstance(values, list | np.ndarray):
        raise InputError(f"{field}: found {json_type(values)}; allowed: a list of texts")
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
                raise InputError(f"{field}[{row}]: is not UTF-8 (byte {error.start})") from None
        if not isinstance(value, str):
            raise InputError(f"{field}[{row}]: found {json_type(value)}; allowed: a text")
        texts.append(value)
    return texts


def as_type(values: NDArray[Any], dtype: "np.dtype[Any]") -> NDArray[Any]:
    """Return finite numbers as another type. Whole numbers stay the same; floats may be rounded.

    Raises:
        ValueError, TypeError, OverflowError: a value is none, or not in the range of the type.
    """
    if values.dtype == dtype and dtype.kind in "biu":
        return values
    kinds = {bool if values.dtype == bool else int}
    if values.dtype == object:
        kinds = {type(value.item() if isinstance(value, np.generic) else value) for value in values.ravel().tolist()}
    if not kinds <= ({int, float} if dtype.kind != "b" else {int, float, bool}):
        raise ValueError("values that are no numbers")
    with np.errstate(all="ignore"):
        result = values.astype(dtype)
    if not (np.isfinite(result).all() if dtype.kind == "f" else (result == values).all()):
        raise ValueError("values out of range")
    return result
