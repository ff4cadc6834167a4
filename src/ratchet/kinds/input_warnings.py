"""Warnings about rows that a model answers, although no training sample is like them."""

import unicodedata
from collections.abc import Collection, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from ratchet.kinds.inputs import Column, Input
from ratchet.kinds.protocol import Arrays, Unusual
from ratchet.kinds.registry import kind_of

__all__ = ["InputWarning", "by_row", "input_warnings"]

_MOST, _MOST_IN_ALL = 20, 10_000  # warnings of one row, and of one request
_LONGEST = 60  # characters of a value
_DAYS = 3 * 86400  # seconds
_BEGINNING = datetime(1970, 1, 1, tzinfo=UTC)


class InputWarning(NamedTuple):
    """One warning. `reason`: range, scale, category, missing or text."""

    row: int
    reason: str
    text: str


def input_warnings(
    arrays: Arrays, spec: Input, values: Any, *, most: int | None = _MOST_IN_ALL
) -> tuple[InputWarning, ...]:
    """Return warnings about rows.

    Args:
        arrays: of the rows, as `Kind.decode` returns them.
        values: the rows as the client sent them: a list, a mapping of columns, or a frame.
    """
    findings = kind_of(spec).unusual(arrays, spec, lambda row, name: _cell(values, row, name))
    spellings: dict[str, dict[str, str]] = {}
    return tuple(InputWarning(each.row, each.reason, _text(each, spellings)) for each in islice(findings, most))


def by_row(warnings: Iterable[InputWarning], rows: int) -> list[list[str]]:
    """Return the texts of the warnings for each row."""
    texts: list[list[str]] = [[] for _ in range(rows)]
    for warning in warnings:
        texts[warning.row].append(warning.text)
    return [each if len(each) <= _MOST else [*each[:_MOST], f"{len(each) - _MOST} more"] for each in texts]


def _text(finding: Unusual, spellings: dict[str, dict[str, str]]) -> str:
    """Return a warning. `spellings` has the categories of each column so far by their lower case."""
    known = finding.known
    if finding.reason == "text":
        return f"the text has {known}"
    if finding.reason == "missing":
        return f"{finding.field}: is missing; every training row has a value"
    if finding.reason == "scale":
        fix = f"Fix: if they are scaled to 0..1, multiply by {known}"
        return f"{finding.field}: found only 0 and 1, and the training images have larger values. {fix}"
    if finding.reason == "category":
        names = spellings.setdefault(finding.field, {})
        if not names:
            names |= {name.casefold(): name for name in known.categories}
        text = _as_text(finding.value)
        alike = names.get(text.casefold())
        fix = f". Fix: write {_shown(alike)}" if alike else ""
        return f"{finding.field}: found {_shown(text)}, which no training row has{fix}"
    ends = known.range if isinstance(known, Column) else known
    value, low, high = (_number(number, known) for number in (finding.value, *ends))
    return f"{finding.field}: found {value}, far from the training values {low} to {high}"


def _number(value: float, column: Any) -> str:
    """Return a packed number in the units of the client."""
    if not isinstance(column, Column):
        return f"{value:g}"
    if column.type == "numeric":
        return f"{value + column.offset:.6g}"
    try:
        low, high = column.range
        form = "%Y-%m-%d" if high - low > _DAYS else "%Y-%m-%dT%H:%M:%S"  # float32 has no seconds of far dates
        return (_BEGINNING + timedelta(seconds=round(value + column.offset))).strftime(form)
    except OverflowError:
        return f"{value + column.offset:g} s after 1970"


def _as_text(value: Any) -> str:
    """Return a value as a CSV file has it, so that a row has the same warnings in every format."""
    value = value.item() if isinstance(value, np.generic) else value
    return str(value).lower() if isinstance(value, bool) else str(value).strip().removesuffix(".0")


def _shown(text: str) -> str:
    return repr(text if len(text) <= _LONGEST else f"{text[:_LONGEST]}...")


def _cell(values: Any, row: int, name: str) -> Any:
    """Return the value of a row in a column; without a name, in the only one."""
    if isinstance(values, list | tuple | np.ndarray):
        cell = values[row]
        if isinstance(cell, Mapping):
            cell = cell[_key(cell, name)]
        return cell[0] if isinstance(cell, list | np.ndarray) else cell
    column = values
    if isinstance(values, Mapping) or hasattr(values, "columns"):
        column = values[_key(values if isinstance(values, Mapping) else values.columns, name)]
    return column.iloc[row] if hasattr(column, "iloc") else column[row]


def _key(names: Collection[Any], name: str) -> Any:
    """Return the column with this name, which a client may write with other code points."""
    if name in names:
        return name
    form = unicodedata.normalize("NFC", name)
    return next(
        each for each in names if not name or str(each) == name or unicodedata.normalize("NFC", str(each)) == form
    )
