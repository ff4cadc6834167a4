"""Tables whose cells have types: Parquet, JSON and JSON Lines."""

import io
import json
import re
import unicodedata
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NoReturn

import orjson
import polars as pl
from numpy.typing import NDArray

from ratchet.errors import DataError, first_line

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "DoubledKey",
    "damaged_parquet",
    "json_object",
    "nested_cells",
    "read_json",
    "read_json_lines",
    "read_parquet",
    "unique_keys",
]

_SHOWN = 5  # numbers of damaged lines
_DEEPEST = 16  # levels of lists and objects of a line of JSON; the time of polars grows with their cube
_AFTER_KEY = re.compile(r'"\s*:')
_PLAIN = "save the table as CSV, or convert the column to text, number or date"


def read_parquet(content: bytes, where: str, drop: Collection[str] = ()) -> tuple[pl.DataFrame, tuple[str, ...]]:
    """Return the rows of a Parquet file, and the columns that its metadata names as the index of a pandas data frame.

    The cells of the columns in `drop` are not read, because they may have any type: these columns are empty.

    Raises:
        DataError: it is damaged, or a column has a type that is not read.
    """
    import pyarrow as pa  # slow to import, and a served model never reads a file
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(pa.BufferReader(content))
        table = file.read()
    except (pa.ArrowException, OSError, ValueError) as error:
        raise damaged_parquet(error, where) from None
    metadata = file.schema_arrow.metadata or {}
    geometries = _described_columns(metadata, b"geo", "columns")
    doubled = next((name for name, count in Counter(table.column_names).items() if count > 1), None)
    if doubled is not None:
        raise DataError(f"{where}: column {doubled!r} is in the file twice. Fix: rename one")
    empty = pl.Series([None]).new_from_index(0, table.num_rows)
    frame = pl.DataFrame(
        [
            empty.alias(name)
            if unicodedata.normalize("NFC", name.strip()) in drop
            else _series(name, table[name], geometries, where)
            for name in table.column_names
        ]
    )
    return frame, _described_columns(metadata, b"pandas", "index_columns")


def damaged_parquet(error: BaseException, where: str) -> DataError:
    """Return the error of a Parquet file that cannot be read: what it is, if Arrow knows it, else damaged."""
    import pyarrow as pa

    problem = first_line(error)
    if isinstance(error, pa.ArrowNotImplementedError) or "encrypt" in problem.lower():
        return DataError(f"{where} is Parquet of a kind that is not read ({problem}). Fix: {_PLAIN}")
    return DataError(f"{where} is damaged Parquet ({problem}). Fix: save it again")


def _described_columns(metadata: Mapping[bytes, bytes], writer: bytes, key: str) -> tuple[str, ...]:
    """Return the columns that a writer, such as pandas, listed under a key; none if its note is damaged."""
    try:
        columns = json.loads(metadata.get(writer, b"{}"))[key]
    except (ValueError, KeyError, TypeError):
        return ()
    return tuple(name for name in columns if isinstance(name, str)) if isinstance(columns, (list, dict)) else ()


def _series(name: str, values: "pa.ChunkedArray", geometries: tuple[str, ...], where: str) -> pl.Series:
    """Return a column. polars panics at some types of Arrow, and a panic is no `Exception`."""
    import pyarrow as pa

    kind = values.type
    if name in geometries or "geoarrow" in str(kind):
        raise DataError(
            f"{where} is GeoParquet: column {name!r} has geometries, not single values. Fix: list it in data.drop, or "
            f"save it without this column: pandas.read_parquet(FILE).drop(columns={name!r}).to_parquet('table.parquet')"
        )
    try:
        return pl.Series(name, pl.from_arrow(_plain(values)))
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, pa.ArrowException, ValueError, TypeError) as error:
        raise DataError(
            f"{where}: column {name!r} has the type {kind}, which is not read ({first_line(error)}). Fix: list it in "
            f"data.drop, or {_PLAIN}"
        ) from None


def _plain(values: "pa.ChunkedArray") -> "pa.ChunkedArray":
    """Return the values in a type that polars has, if there is one."""
    import pyarrow as pa

    if isinstance(values.type, pa.BaseExtensionType):
        values = pa.chunked_array([chunk.storage for chunk in values.chunks], values.type.storage_type)
    if pa.types.is_map(values.type):
        pair = pa.struct([("key", values.type.key_type), ("value", values.type.item_type)])
        return values.cast(pa.list_(pair))
    if pa.types.is_decimal256(values.type):
        return values.cast(pa.float64())
    if pa.types.is_timestamp(values.type) and (values.type.tz or "").startswith(("+", "-")):
        return values.cast(pa.timestamp(values.type.unit, "UTC"))
    return values


def read_json(text: str, where: str) -> pl.DataFrame:
    """Return the rows of a JSON list of objects.

    Raises:
        DataError: it is no list of objects.
    """
    try:
        objects = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where} is damaged JSON ({first_line(error)}). Fix: save it again") from None
    wrong = next((place for place, value in enumerate(objects, start=1) if not isinstance(value, dict)), None)
    if wrong is not None:
        raise DataError(
            f"{where}: element {wrong} of the JSON list is not an object. Fix: save a list of objects, one for each "
            "row, or JSON Lines, CSV or Parquet"
        )
    for place, row in enumerate(unique_keys(text, objects), start=1):
        if isinstance(row, DoubledKey):
            raise DataError(f"{where}: element {place} of the JSON list {row.fault}")
    # Columns and types are inferred from all objects, so that a key of late objects only is not lost.
    try:
        table = pl.read_json(io.BytesIO(text.encode()), infer_schema_length=None)
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, ValueError) as error:
        raise DataError(f"{where}: the JSON is no table ({first_line(error)}). Fix: {_PLAIN}") from None
    _check_flags(text, objects, table, where)
    return table


def _check_flags(text: str, objects: Sequence[Mapping[str, Any]], table: pl.DataFrame, where: str) -> None:
    """Check that no number of the table was true or false, which polars takes for 1 and 0."""
    flags = sum(column.count() for column in table if column.dtype == pl.Boolean)
    if text.count("true") + text.count("false") == flags:
        return
    for name in (column.name for column in table if column.dtype.is_numeric()):
        for place, row in enumerate(objects, start=1):
            if isinstance(flag := row.get(name), bool):
                raise DataError(
                    f"{where}: element {place} of the JSON list has {str(flag).lower()} as {name!r}, and others have "
                    "numbers. Fix: write a number, or null for a missing value"
                )


def read_json_lines(lines: Sequence[str], numbers: NDArray[Any], where: str) -> pl.DataFrame:
    """Return the rows of JSON Lines, one for each line. `numbers`: of the lines in the file, for messages.

    Raises:
        DataError: a line is no object.
    """
    for number, line in zip(numbers, lines, strict=True):
        if line.count("[") + line.count("{") > _DEEPEST and _depth(line) > _DEEPEST:
            raise DataError(
                f"{where}: line {number} has lists or objects in more than {_DEEPEST} levels ({line[:60]!r}). Fix: "
                "save one text or number in each cell, or leave this column out"
            )
    try:
        table = pl.read_ndjson("\n".join(lines).encode(), infer_schema_length=None)
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, ValueError) as error:
        _check_lines(lines, numbers, where)
        raise DataError(f"{where}: the JSON Lines are no table ({first_line(error)}). Fix: {_PLAIN}") from None
    assert table.height == len(lines), f"polars found {table.height} rows in {len(lines)} lines"
    for place in _lines_with_other_keys(lines, table):
        try:
            row = orjson.loads(lines[place])
        except orjson.JSONDecodeError:  # it refuses more than polars
            row = json_object(lines[place])
        if isinstance(row := unique_keys(lines[place], row), DoubledKey):
            raise DataError(f"{where}: line {numbers[place]} {row.fault}")
    return table


def nested_cells(lines: Sequence[str], table: pl.DataFrame) -> dict[str, dict[int, str]]:
    """Return the lists and objects among the texts of JSON Lines: polars makes texts of them.

    Returns:
        By column: rows, from 0, and "a list" or "an object".
    """
    nested: dict[str, dict[int, str]] = {}
    for column in table.select(pl.col(pl.String)):
        for place in column.str.contains(r"^[\[{]").fill_null(False).arg_true():
            cell = (json_object(lines[place], nan=True) or {}).get(column.name)
            if isinstance(cell, list | dict):
                name = "a list" if isinstance(cell, list) else "an object"
                nested.setdefault(column.name, {})[place] = name
    return nested


def _lines_with_other_keys(lines: Sequence[str], table: pl.DataFrame) -> list[int]:
    """Return the places of lines that have more keys, at most, than their row has values. All others are unique.

    A line whose row has a null, a list or an object is among them, and a line with `":` inside a text.
    """
    values = [pl.col(name).is_not_null() for name, kind in table.schema.items() if not kind.is_nested()]
    counts = table.select(pl.sum_horizontal(pl.lit(0, pl.UInt32), *values)).to_series()
    places: list[int] = (pl.Series(lines).str.count_matches(_AFTER_KEY.pattern) != counts).arg_true().to_list()
    return places


def _depth(line: str) -> int:
    """Return the number of levels of lists and objects in a line of JSON."""
    steps = [1 if mark in "[{" else -1 for mark in re.findall(r"[][{}]", re.sub(r'"(?:[^"\\]|\\.)*"', "", line))]
    return max(accumulate(steps), default=0)


def _check_lines(lines: Sequence[str], numbers: NDArray[Any], where: str) -> None:
    """Check that each line is an object; name those that are none."""
    wrong = [place for place, line in enumerate(lines) if json_object(line) is None]
    if not wrong:
        return
    if wrong[0] == 0 and json_object("\n".join(lines)) is not None:
        raise DataError(
            f"{where} is one JSON object, not a table. Fix: save a list of objects, one for each row, or JSON Lines, "
            "CSV or Parquet"
        )
    shown = ", ".join(str(numbers[place]) for place in wrong[:_SHOWN]) + (", ..." if wrong[_SHOWN:] else "")
    text = lines[wrong[0]]
    cut = ", it is cut off" if wrong == [len(lines) - 1] and text.lstrip().startswith("{") else ""
    which = f"line {shown} is no JSON object" if len(wrong) == 1 else f"lines {shown} are no JSON objects"
    raise DataError(f"{where}: {which} ({text[:60]!r}{cut}). Fix: correct or delete; null is a missing value")


def json_object(text: str, *, nan: bool = False) -> dict[str, Any] | None:
    """Return a JSON object; None if it is something else. `nan`: it may have NaN and Infinity, which are no JSON."""
    try:
        value = json.loads(text, parse_constant=float if nan else _refuse)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


class DoubledKey(str):
    """The key that a JSON object has twice: readers take its first or its last value."""

    @property
    def fault(self) -> str:
        return f"has the key {str(self)!r} twice. Fix: remove one"


def unique_keys(text: str, value: Any) -> Any:
    """Return what JSON text has, `value`, with a `DoubledKey` for an object, or one of a list, that has a key twice."""
    rows = value if isinstance(value, list) else [value]
    keys = sum(len(row) for row in rows if isinstance(row, dict))
    if value is None or len(_AFTER_KEY.findall(text)) == keys:  # nearly always, and counting is fast
        return value
    return json.loads(text, object_pairs_hook=_with_unique_keys)


def _with_unique_keys(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any] | DoubledKey:
    content = dict(pairs)
    if len(content) == len(pairs):
        return next((value for value in content.values() if isinstance(value, DoubledKey)), content)
    return DoubledKey(next(name for name, count in Counter(name for name, _ in pairs).items() if count > 1))


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON; write null for a missing value")
