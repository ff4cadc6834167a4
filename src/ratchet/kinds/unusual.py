"""Samples that are unlike those of the training set: a model answers them too, but its answers were never tested.

Numbers are unusual if they are outside [smallest - width, largest + width] of the training values, `width` being the
distance between the two; values far from all others do not count. Ordinary rows are found by NumPy as a whole.
"""

import unicodedata
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ratchet.kinds.inputs import ArraysInput, ImageInput, Input, TableInput, TextInput, with_margin

__all__ = ["Unusual", "unusual"]

_JUDGED = 1 << 16  # characters of a text; Unicode's form of a longer one takes seconds, and hundreds of MiB
_UNKNOWN = 1  # id of a word outside the vocabulary, and code of a category outside the training rows
RawValue = Callable[[int, str], Any]
"""Returns the value of a row in a column, as the client sent it."""


class Unusual(NamedTuple):
    """A value that is unlike those of the training samples.

    Attributes:
        row: from 0.
        field: column, array or tensor.
        reason: range, category, missing or text.
        value: the packed number, or the value as the client sent it; None: missing.
        known: description of the training values.
    """

    row: int
    field: str
    reason: str
    value: Any
    known: Any


def unusual(arrays: tuple[NDArray[Any], ...], described: Input, raw_value: RawValue) -> Iterator[Unusual]:
    """Yield what is unlike the training samples in the arrays of a model."""
    match described:
        case TableInput():
            yield from _cells(arrays, described, raw_value)
        case TextInput():
            yield from _texts(arrays[0], described, raw_value)
        case ImageInput(range=range) if range:
            yield from _far(arrays[0], "pixels", range)
        case ArraysInput():
            for values, array in zip(arrays, described.arrays, strict=True):
                yield from _far(values, array.name, array.range)


def _cells(arrays: tuple[NDArray[Any], ...], table: TableInput, raw_value: RawValue) -> Iterator[Unusual]:
    numbers, codes = arrays
    (low, high), complete_numbers, complete_codes, has_all = table.usual
    is_far = (numbers < low) | (numbers > high)
    is_unknown = (codes == _UNKNOWN) & has_all
    is_absent = np.isnan(numbers) & complete_numbers, (codes == 0) & complete_codes
    for cells, columns, reason in (
        (is_far, table.numeric, "range"),
        (is_unknown, table.categorical, "category"),
        (is_absent[0], table.numeric, "missing"),
        (is_absent[1], table.categorical, "missing"),
    ):
        if cells.any():
            for row, place in np.argwhere(cells).tolist():
                column = columns[place]
                value = None
                if reason != "missing":
                    value = numbers[row, place].item() if reason == "range" else raw_value(row, column.name)
                yield Unusual(row, column.name, reason, value, column)


def _far(values: NDArray[Any], field: str, range: tuple[float, ...]) -> Iterator[Unusual]:
    if not range or not values.size:
        return
    low, high = with_margin(range)
    flat = values.reshape(len(values), -1)
    lowest, highest = flat.min(axis=1), flat.max(axis=1)
    for row in np.flatnonzero((lowest < low) | (highest > high)).tolist():
        value = lowest[row] if lowest[row] < low else highest[row]
        yield Unusual(row, field, "range", float(f"{value:.6g}"), range)


def _texts(ids: NDArray[np.int64], described: TextInput, raw_value: RawValue) -> Iterator[Unusual]:
    for row in np.flatnonzero(~(ids > _UNKNOWN).any(axis=1)).tolist():
        text = _plain(raw_value(row, ""))
        yield Unusual(row, "", "text", text, "no word that the model knows" if text.strip() else "no words")
    if described.characters:
        known = frozenset(described.characters)
        texts = [_plain(raw_value(row, "")) for row in range(len(ids))]
        if _strange("".join(texts), known):
            for row, text in enumerate(texts):
                letters = [character for character in text if character.isalnum()]
                if 2 * sum(letter not in known for letter in letters) > len(letters):
                    yield Unusual(row, "", "text", raw_value(row, ""), "mostly characters that no training text has")


def _plain(text: Any) -> str:
    """Return the beginning of a text as the tokenizers read it."""
    text = (text.decode() if isinstance(text, bytes) else str(text))[:_JUDGED]
    return text.lower() if text.isascii() else unicodedata.normalize("NFKC", text).lower()


def _strange(text: str, known: frozenset[str]) -> set[str]:
    """Return the letters and digits of a text that are not known."""
    return {character for character in set(text) - known if character.isalnum()}
