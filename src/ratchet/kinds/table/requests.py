"""Rows of several requests, and frames, as polars reads them.

A call of polars takes about as long for 32 rows as for one. Each request gets the arrays that it would get alone.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from numbers import Number
from typing import TYPE_CHECKING, Any

from ratchet.errors import DataError
from ratchet.kinds.inputs import TableInput
from ratchet.kinds.protocol import Arrays, InputError, Unencoded

if TYPE_CHECKING:
    import polars

    from ratchet.data.tables.encode import PlainRows

__all__ = ["encode_requests", "frame_of"]

_KINDS: dict[type, str] = {int: "number", float: "number", str: "text", bool: "boolean"}
_NO_COLUMN = (TypeError, ValueError, OverflowError, NotImplementedError)  # of polars and of Arrow
Columns = Mapping[str, list[Any]]


def encode_requests(given: Sequence[Unencoded]) -> list[Arrays]:
    """Return the numbers and codes of the rows of each request to one model.

    Raises:
        InputError: a value of a request cannot be encoded. Alone, the message is about this request.
    """
    spec: Any = given[0].spec
    whole = [place for place, each in enumerate(given) if len(each.values) == len(spec.columns)]
    parts = _plain_parts(spec.prepared, given, whole) if whole else {}
    rest = [place for place in range(len(given)) if place not in parts]
    for group in _groups([given[place].values for place in rest], len(spec.columns)):
        requests = [given[rest[place]] for place in group]
        arrays = _encoded(_joined([each.values for each in requests]), spec, requests[0].field)
        parts |= zip((rest[place] for place in group), _parts(arrays, requests), strict=True)
    return [parts[place] for place in range(len(given))]


def _plain_parts(plain: "PlainRows", given: Sequence[Unencoded], places: list[int]) -> dict[int, Arrays]:
    """Return the arrays of requests by place, if their rows need no reading: all in one call, or else one by one."""
    requests = [given[place] for place in places]
    if arrays := plain.encode(_joined([each.values for each in requests])):
        return dict(zip(places, _parts(arrays, requests), strict=True))
    if len(places) == 1:
        return {}
    return {at: arrays for place in places for at, arrays in _plain_parts(plain, given, [place]).items()}


def _encoded(columns: Columns, spec: TableInput, field: str) -> Arrays:
    from ratchet.data.tables.encode import encode

    try:
        frame = _typed(columns, field)
        _refuse_booleans(frame, spec)
        return encode(frame, spec)
    except DataError as error:
        raise InputError(f"{field}: {error}") from None


def _groups(tables: Sequence[Columns], columns: int) -> Iterator[list[int]]:
    """Yield places of tables whose values polars reads together as it reads them alone."""
    groups: list[tuple[dict[str, str], list[int]]] = []
    for place, table in enumerate(tables):
        kinds = _kinds(table) if len(table) == columns else None
        if kinds is None:
            yield [place]
            continue
        for known, places in groups:
            if all(known.get(name, kind) == kind for name, kind in kinds.items()):
                known |= kinds
                places.append(place)
                break
        else:
            groups.append((kinds, [place]))
    yield from (places for _, places in groups)


def _kinds(table: Columns) -> dict[str, str] | None:
    """Return the kind of the values of each column that has any; None: a column has several, or an unusual one."""
    from ratchet.data.sources.table_file import EXACT

    kinds = {}
    for name, values in table.items():
        types = {type(value) for value in values} - {type(None)}
        names = {_KINDS.get(each, "") for each in types}
        if len(names) > 1 or "" in names:
            return None
        if int in types and any(type(value) is int and not -EXACT <= value <= EXACT for value in values):
            return None
        if names:
            (kinds[name],) = names
    return kinds if any(table.values()) else None


def _joined(tables: Sequence[Columns]) -> Columns:
    if len(tables) == 1:
        return tables[0]
    joined = {name: [value for table in tables for value in table[name]] for name in tables[0]}
    for name, values in joined.items():
        types = set(map(type, values))
        if {int, float} <= types and bool not in types and str not in types:
            joined[name] = [float(value) if type(value) is int else value for value in values]
    return joined


def _parts(arrays: Arrays, given: Sequence[Unencoded]) -> list[Arrays]:
    if len(given) == 1:
        return [arrays]
    return [tuple(array[begin:end] for array in arrays) for begin, end in _spans(given)]


def _spans(given: Sequence[Unencoded]) -> Iterator[tuple[int, int]]:
    return pairwise(accumulate((each.rows for each in given), initial=0))


def _typed(columns: Columns, field: str) -> "polars.DataFrame":
    """Return a polars frame. Rows decide no type for others: all values of a column have one."""
    import polars

    series = []
    for name, values in columns.items():
        kinds = {type(value) for value in values if value is not None}
        if len(kinds) > 1 and kinds != {int, float}:
            raise InputError(f"{field}: column {name!r} has values of several types; allowed: one type, or null")
        series.append(polars.Series(name, values, strict=False))
    return polars.DataFrame(series)


def frame_of(raw: Any, spec: TableInput) -> "polars.DataFrame":
    """Return a pandas or polars frame as one of polars. Numbers and texts in one column become texts, as in a file.

    Raises:
        DataError: a column has values that no type holds, or a name is given twice.
    """
    import polars

    if not isinstance(raw, polars.DataFrame):
        if not raw.columns.is_unique:
            name = raw.columns[raw.columns.duplicated()][0]
            raise DataError(f"column {name!r} is given twice. Fix: keep one")
        _refuse_mixed_booleans(raw)
        try:
            raw = polars.from_pandas(raw)
        except (*_NO_COLUMN, polars.exceptions.PolarsError):
            raw = polars.DataFrame([_column(str(name), list(raw[name])) for name in raw])
    _refuse_booleans(raw, spec)
    frame: polars.DataFrame = raw
    return frame


def _refuse_booleans(frame: "polars.DataFrame", spec: TableInput) -> None:
    """Refuse booleans for numbers and dates: ingest reads them as texts.

    Raises:
        DataError: naming the column.
    """
    import polars

    for column in spec.numeric:
        values = frame[column.name] if column.name in frame.columns else None
        if values is not None and values.dtype == polars.Boolean and values.null_count() < len(values):
            kind = "date" if column.type == "datetime" else "number"
            raise DataError(f"column {column.name!r}: found a boolean; allowed: a {kind}, or an empty value")


def _refuse_mixed_booleans(raw: Any) -> None:
    """Refuse a column of a pandas frame with booleans and other values: libraries take True for 1 there.

    Raises:
        DataError: naming the column.
    """
    for name in raw:
        cells = raw[name] if str(raw[name].dtype) == "object" else ()
        if bool not in map(type, cells):
            continue
        kinds = {type(cell) for cell in cells if isinstance(cell, str | Number) and cell == cell}  # NaN is missing
        if len(kinds) > 1:
            raise _types_error(name, kinds)


def _types_error(name: str, kinds: Iterable[type]) -> DataError:
    types = ", ".join(sorted(kind.__name__ for kind in kinds))
    allowed = "numbers, texts or dates. Fix: convert them to one type"
    return DataError(f"column {name!r} has values of the types {types}. Allowed: {allowed}")


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
