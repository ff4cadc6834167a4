"""Rows of a table: objects, columns and frames in requests and files, and for models with other columns."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from unicodedata import normalize

import numpy as np
from numpy.typing import NDArray

from ratchet.errors import DataError
from ratchet.kinds.inputs import Column, TableInput
from ratchet.kinds.protocol import (
    UNKNOWN,
    Arrays,
    InputError,
    Json,
    Kind,
    RawValue,
    TensorSpec,
    Unencoded,
    Unusual,
    go_on,
    require_fit,
)
from ratchet.kinds.raw_values import json_type
from ratchet.kinds.table.requests import encode_requests, frame_of

if TYPE_CHECKING:
    import pandas  # type: ignore[import-untyped]
    from mlflow.types import Schema

    from ratchet.data.tables.encode import PlainRows
    from ratchet.training import Split

__all__ = ["Tables"]

_CELLS = frozenset({str, int, float, bool, type(None)})  # types of the cells of a table
_SHOWN = 200  # characters of a name in a message
_UNKNOWN = 1  # code of a category outside the training rows


class Tables(Kind[TableInput]):
    """Rows of a table, as two arrays: numbers and codes of categories."""

    name = "table"
    networks = MappingProxyType({"tabm": "TabM", "mlp": "TableMLP"})
    model = "TableModel"
    program_inputs = ("numbers", "codes")
    packages = ("polars",)
    in_tables = True
    copies_have_target = True
    baseline = "trees"
    batch_rows = 4096
    noun = ("row", "rows")

    def prepare(self, spec: TableInput) -> "PlainRows":
        from ratchet.data.tables.encode import PlainRows

        return PlainRows(spec)

    def example(self, spec: TableInput, rows: int, seed: int) -> Arrays:
        random = np.random.default_rng(seed)
        numbers = [random.normal(column.mean, column.std, rows) for column in spec.numeric]
        codes = [random.integers(0, len(column.categories) + 2, rows) for column in spec.categorical]
        return (
            np.array(numbers, np.float32).reshape(-1, rows).T.copy(),
            np.array(codes, np.int64).reshape(-1, rows).T.copy(),
        )

    def zeros(self, spec: TableInput, rows: int) -> Arrays:
        return np.zeros((rows, len(spec.numeric)), np.float32), np.zeros((rows, len(spec.categorical)), np.int64)

    def read(self, values: Any, spec: TableInput, field: str, check: Callable[[], None] = go_on) -> Arrays | Unencoded:
        """Return checked columns of a list of objects, or of an object of columns; of a frame the arrays."""
        if not hasattr(values, "columns"):
            columns = _known_columns(_columns(values, field), spec, field)
            return Unencoded(columns, field, len(next(iter(columns.values()), ())), spec)
        from ratchet.data.tables.encode import encode

        try:
            return encode(frame_of(values, spec), spec)
        except DataError as error:
            raise InputError(f"{field}: {error}") from None

    def encode(self, given: Sequence[Unencoded]) -> list[Arrays]:
        return encode_requests(given)

    def values(self, arrays: Arrays, spec: TableInput) -> "pandas.DataFrame":
        """Return a frame. A value that the training rows do not have becomes a text of its own."""
        import pandas

        numbers, codes = arrays
        values: dict[str, Any] = {}
        for place, column in enumerate(spec.numeric):
            read = numbers[:, place].astype(np.float64) + column.offset
            is_date = column.type == "datetime"
            values[column.name] = (read * 1e6).round().astype("datetime64[us]") if is_date else read
        for place, column in enumerate(spec.categorical):
            unseen = max(column.categories, key=len, default="") + "?"
            names = np.array([None, unseen, *column.categories], dtype=object)
            values[column.name] = names[codes[:, place]]
        return pandas.DataFrame({column.name: values[column.name] for column in spec.columns})

    def columns(self, arrays: Arrays, spec: TableInput, names: Collection[str]) -> dict[str, list[float | str | None]]:
        """Return numbers, dates as seconds since 1970, or categories. None: missing."""
        if not arrays:
            return {}
        values: dict[str, list[float | str | None]] = {}
        numbers, codes = arrays
        for place, column in enumerate(spec.numeric):
            if (name := normalize("NFC", column.name)) in names:
                read = numbers[:, place].astype(np.float64) + column.offset
                values[name] = [None if np.isnan(value) else value for value in read.tolist()]
        for place, column in enumerate(spec.categorical):
            if (name := normalize("NFC", column.name)) in names:
                known = (None, UNKNOWN, *column.categories)
                values[name] = [known[code] for code in codes[:, place].tolist()]
        return values

    def features(self, arrays: Arrays, spec: TableInput) -> dict[str, NDArray[Any]]:
        """Return the columns: numbers as they are packed, and categories."""
        numbers, codes = arrays
        features: dict[str, NDArray[Any]] = {column.name: numbers[:, at] for at, column in enumerate(spec.numeric)}
        for place, column in enumerate(spec.categorical):
            features[column.name] = np.array([None, UNKNOWN, *column.categories], object)[codes[:, place]]
        return features

    def unusual(self, arrays: Arrays, spec: TableInput, raw_value: RawValue) -> Iterator[Unusual]:
        numbers, codes = arrays
        (low, high), complete_numbers, complete_codes, has_all = spec.usual
        for cells, columns, reason in (
            ((numbers < low) | (numbers > high), spec.numeric, "range"),
            ((codes == _UNKNOWN) & has_all, spec.categorical, "category"),
            (np.isnan(numbers) & complete_numbers, spec.numeric, "missing"),
            ((codes == 0) & complete_codes, spec.categorical, "missing"),
        ):
            for row, place in np.argwhere(cells).tolist() if cells.any() else ():
                column, value = columns[place], None
                if reason != "missing":
                    value = numbers[row, place].item() if reason == "range" else raw_value(row, column.name)
                yield Unusual(row, column.name, reason, value, column)

    def obstacle(self, have: TableInput, want: TableInput) -> str:
        forms = {normalize("NFC", column.name) for column in have.columns}  # as `encode` finds them
        missing = {column.name for column in want.columns if normalize("NFC", column.name) not in forms}
        if missing:
            return f"it takes the column {min(missing)}, which these data do not have"
        texts = {normalize("NFC", column.name) for column in have.categorical}
        changed = {column.name for column in want.numeric if normalize("NFC", column.name) in texts}
        if changed:
            return f"it takes numbers or dates in the column {min(changed)}, which has categories now"
        return ""

    def converts(self, have: TableInput, want: TableInput) -> bool:
        return not self.obstacle(have, want)

    def adapt(self, arrays: Arrays, have: TableInput, want: TableInput) -> Arrays:
        return self.decode(self.values(arrays, have), want)

    def packed_digests(self, arrays: Arrays) -> NDArray[np.uint64]:
        from ratchet.data.tables.digests import array_digests

        return array_digests(arrays, len(arrays[0]))

    def continued(self, own: TableInput, parent: TableInput) -> TableInput:
        """Return the input with the parent's scaling. The columns, and the order of their categories, are equal."""
        require_fit(*(", ".join(f"{each.name} ({each.type})" for each in table.columns) for table in (parent, own)))
        for before, now in zip(parent.categorical, own.categorical, strict=True):
            require_fit(*(f"in column {each.name} the categories {each.categories}" for each in (before, now)))
        pairs = zip(parent.columns, own.columns, strict=True)
        return replace(own, columns=tuple(_rescaled(before, now) for before, now in pairs))

    def open_split(self, packed: Path, name: str, manifest: Mapping[str, Any], spec: TableInput) -> "Split":
        from ratchet.training.batches import TableSplit

        return TableSplit.open(packed, name, manifest)

    def tensors(self, spec: TableInput) -> tuple[TensorSpec, ...]:
        return tuple(TensorSpec(each.name, "float64" if each.type == "numeric" else "text") for each in spec.columns)

    def from_named(self, tensors: Mapping[str, NDArray[Any]], spec: TableInput) -> dict[str, list[Any]]:
        return {name: _column_values(name, array) for name, array in tensors.items()}

    def schema(self, spec: TableInput) -> Json:
        columns = {column.name: _column_schema(column) for column in spec.columns}
        return {"type": "array", "items": {"type": "object", "properties": columns, "required": list(columns)}}

    def example_values(self, spec: TableInput) -> list[dict[str, Any]]:
        return [{column.name: _example_cell(column) for column in spec.columns}]

    def example_tensors(self, spec: TableInput) -> list[list[Any]]:
        (row,) = self.example_values(spec)
        return [["" if row[name] is None and dtype == "text" else row[name]] for name, dtype, _ in self.tensors(spec)]

    def mlflow_schema(self, spec: TableInput) -> "Schema":
        from mlflow.types import ColSpec, Schema
        from mlflow.types.schema import AnyType

        # Of any type, because ingest reads numbers, dates and texts in many forms, and so does `predict`.
        anything = AnyType()  # type: ignore[no-untyped-call]
        return Schema([ColSpec(anything, column.name, required=False) for column in spec.columns])

    def columns_expected(self, spec: TableInput, column: str | None) -> list[str]:
        return [known.name for known in spec.columns]

    def columns_read(self, spec: TableInput, names: Sequence[str], column: str | None) -> list[str]:
        return self.columns_expected(spec, column)


def _columns(values: Any, field: str) -> dict[str, list[Any]]:
    """Return the columns of rows: a list of objects that have the same keys, or an object of lists of one length."""
    if isinstance(values, Mapping):
        lengths = {len(column) if isinstance(column, list | np.ndarray) else -1 for column in values.values()}
        if len(lengths) > 1 or -1 in lengths:
            raise InputError(f"{field}: allowed: an object of lists that have one length")
        return {str(name): list(column) for name, column in values.items()}
    if not isinstance(values, list):
        raise InputError(f"{field}: found {json_type(values)}; allowed: a list of objects, one for each row")
    for number, row in enumerate(values):
        if not isinstance(row, Mapping):
            raise InputError(f"{field}[{number}]: found {json_type(row)}; allowed: an object with the columns of a row")
    names = dict.fromkeys(str(name) for row in values for name in row)
    if values and not names:
        raise InputError(f"{field}[0]: has no columns")
    for number, row in enumerate(values):
        if len(row) != len(names):
            absent = next(name for name in names if name not in row)
            raise InputError(f"{field}[{number}]: has no {absent!r}. Fix: add it; null is a missing value")
    return {name: [row[name] for row in values] for name in names}


def _known_columns(columns: dict[str, list[Any]], spec: TableInput, field: str) -> dict[str, list[Any]]:
    """Return the columns of a table, whose names and types are allowed."""
    from ratchet.data.tables.encode import other_spellings

    spelled = other_spellings(columns, [column.name for column in spec.columns])
    columns = {spelled.get(name, name): column for name, column in columns.items()}
    known = {column.name for column in spec.columns}
    for name, column in columns.items():
        if name not in known:
            raise InputError(f"{field}: unknown column {name[:_SHOWN]!r}; allowed: {', '.join(sorted(known))}")
        if set(map(type, column)) <= _CELLS:
            continue
        for row, value in enumerate(column):
            if type(value) not in _CELLS and not np.isscalar(value):
                raise InputError(f"{field}[{row}].{name}: found {json_type(value)}; allowed: a text, number or null")
    return columns if next(iter(columns.values()), []) else {name: [] for name in known}


def _rescaled(before: Column, now: Column) -> Column:
    """Return a column with the scaling of an earlier model, whose packed numbers had another offset."""
    shift = before.offset - now.offset
    quantiles, limits = (tuple(value + shift for value in values) for values in (before.quantiles, before.limits))
    return replace(now, mean=before.mean + shift, std=before.std, quantiles=quantiles, limits=limits)


def _column_values(name: str, array: NDArray[Any]) -> list[Any]:
    if array.ndim > 2 or (array.ndim == 2 and array.shape[1] != 1):
        raise InputError(f"inputs: {name}: found shape {list(array.shape)}; allowed: [n] or [n, 1]")
    values = array.ravel().tolist()
    for row, value in enumerate(values):
        if isinstance(value, bytes):
            try:
                values[row] = value.decode()
            except UnicodeDecodeError as error:
                raise InputError(f"inputs: {name}[{row}]: is not UTF-8 (byte {error.start})") from None
    return values


def _column_schema(column: Column) -> Json:
    """Return the schema of a column. Other values than those of the training rows are answered too."""
    if column.type == "categorical":
        return {"type": ["string", "number", "boolean", "null"], "examples": list(column.categories)}
    ends = [column.offset + end for end in (column.quantiles[0], column.quantiles[-1])] if column.quantiles else []
    is_date = column.type == "datetime"
    span = " to ".join(_date(end) if is_date else f"{end:.6g}" for end in ends)
    described = {"description": f"training values: {span}"} if span else {}
    if is_date:
        return {"type": ["string", "number", "null"], "format": "date-time", **described}
    return {"type": ["number", "null"] if not column.form else ["number", "string", "null"], **described}


def _example_cell(column: Column) -> Any:
    if column.type == "categorical":
        return column.categories[0] if column.categories else None
    if column.form:
        return None
    value = column.offset + (column.quantiles[len(column.quantiles) // 2] if column.quantiles else column.mean)
    return _date(value) if column.type == "datetime" else value


def _date(seconds: float) -> str:
    return datetime.fromtimestamp(round(seconds), UTC).strftime("%Y-%m-%dT%H:%M:%S")
