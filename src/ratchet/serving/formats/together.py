"""Encode texts, or rows of tables, of several requests in one call of the tokenizer or of polars.

The call takes about as long for 32 rows as for one. Each request gets the arrays that it would get alone.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ratchet.errors import DataError
from ratchet.kinds import Input, TableInput, TextInput
from ratchet.serving.formats.raw_inputs import Arrays, to_arrays
from ratchet.serving.formats.refusals import BadRequest

if TYPE_CHECKING:
    from ratchet.data.tables.encode import PlainRows

__all__ = ["Unencoded", "encode_tables", "encode_texts"]

_EXACT = 2**53  # up to which float64 has all whole numbers
_KINDS: dict[type, str] = {int: "number", float: "number", str: "text", bool: "boolean"}
Columns = Mapping[str, list[Any]]


class Unencoded(NamedTuple):
    """Checked values of a request: texts, or columns of a table.

    Attributes:
        field: of the request, for messages.
        rows: number of them.
        encode: returns the arrays of each of several requests to one version.
        described: input of the model.
    """

    values: Any
    field: str
    rows: int
    encode: Callable[[Sequence["Unencoded"]], list[Arrays]]
    described: Input


def encode_texts(described: TextInput, given: Sequence[Unencoded]) -> list[Arrays]:
    """Return the token ids of the texts of each request, filled up to its own longest text."""
    from ratchet.tokens.tokenizers import encode

    rows = encode((text for each in given for text in each.values), described)
    return [(rows.gather(np.arange(begin, end)),) for begin, end in _spans(given)]


def encode_tables(described: TableInput, plain: "PlainRows | None", given: Sequence[Unencoded]) -> list[Arrays]:
    """Return the numbers and codes of the rows of each request.

    Raises:
        BadRequest: a value of a request cannot be encoded. Alone, the message is about this request.
    """
    whole = [place for place, each in enumerate(given) if len(each.values) == len(described.columns)]
    parts = _plain_parts(plain, given, whole) if plain and whole else {}
    rest = [place for place in range(len(given)) if place not in parts]
    for group in _groups([given[place].values for place in rest], len(described.columns)):
        requests = [given[rest[place]] for place in group]
        arrays = _encoded(_joined([each.values for each in requests]), described, requests[0].field)
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


def _encoded(columns: Columns, described: TableInput, field: str) -> Arrays:
    try:
        return to_arrays(_typed(columns, field), described)
    except BadRequest:
        raise
    except (DataError, ValueError) as error:
        raise BadRequest(f"{field}: {error}") from None


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
    kinds = {}
    for name, values in table.items():
        types = {type(value) for value in values} - {type(None)}
        names = {_KINDS.get(each, "") for each in types}
        if len(names) > 1 or "" in names:
            return None
        if int in types and any(type(value) is int and not -_EXACT <= value <= _EXACT for value in values):
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


def _typed(columns: Columns, field: str) -> Any:
    """Return a polars frame. Rows decide no type for others: all values of a column have one."""
    import polars

    series = []
    for name, values in columns.items():
        kinds = {type(value) for value in values if value is not None}
        if len(kinds) > 1 and kinds != {int, float}:
            raise BadRequest(f"{field}: column {name!r} has values of several types; allowed: one type, or null")
        series.append(polars.Series(name, values, strict=False))
    return polars.DataFrame(series)
