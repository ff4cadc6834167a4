"""Private columns: they are dropped or replaced by a keyed hash before anything is written."""

import hashlib
import hmac
import os
from collections.abc import Sequence

import polars as pl

from ratchet.errors import DataError, SettingsError
from ratchet.settings.model import DataSettings

__all__ = ["KEY_VARIABLE", "looks_personal", "without_private"]

KEY_VARIABLE = "RATCHET_HASH_KEY"
_SHORTEST_KEY = 16  # characters: a shorter key could be guessed

_ADDRESS = r"(?i)[a-z0-9._%+-]+@[a-z0-9-]+(\.[a-z0-9-]+)+"
_TELEPHONE = (
    r"(?:^|[^\w.])(?:"
    r"\+\d{1,3}(?:[ ./-]?\(?\d{1,5}\)?){2,5}"  # +49 30 1234567
    r"|\(0?\d{2,4}\)[ ./-]?\d{3,5}(?:[ ./-]?\d{2,5}){0,2}"  # (030) 123 4567
    r"|0\d{1,4}[ /-]\d{3,8}(?:[ -]\d{2,5}){0,2}"  # 030/1234567
    r"|\d{3}[ .-]\d{3}[ .-]\d{4}"  # 555-123-4567
    r")(?:\D|$)"
)
_CARD = r"(?:^|\D)((?:\d[ -]?){12,18}\d)(?:\D|$)"


def looks_personal(texts: pl.Series) -> pl.Series:
    """Return whether each text has what looks like an e-mail address, a telephone or card number; null for null."""
    cards = texts.str.extract(_CARD, 1)
    checked = {number: _is_card(number) for number in cards.unique().drop_nulls()}
    is_card = cards.replace_strict(checked, default=False, return_dtype=pl.Boolean)
    return texts.str.contains(_ADDRESS) | texts.str.contains(_TELEPHONE) | is_card


def _is_card(number: str) -> bool:
    """Whether the last digit is the Luhn check digit of the others. Every card number passes, and 1 other in 10."""
    digits = [int(digit) for digit in number if digit.isdigit()][::-1]
    return sum(digits[::2] + [sum(divmod(2 * digit, 10)) for digit in digits[1::2]]) % 10 == 0


def without_private(table: pl.DataFrame, settings: DataSettings, *, needed: Sequence[str]) -> pl.DataFrame:
    """Return the table without the columns of data.drop, and with those of data.hash replaced.

    A keyed hash (HMAC-SHA256, 32 hexadecimal digits) is equal for equal values and keys, so groups are preserved.
    Without the key no value can be tested against it.

    Raises:
        SettingsError: a column is missing or needed, or the key is missing.
    """
    named = [*(("data.drop", column) for column in settings.drop), *(("data.hash", column) for column in settings.hash)]
    for setting, column in named:
        if column not in table.columns:
            allowed = f"a column of the table, which has {', '.join(table.columns)}"
            raise SettingsError(f"params.yaml: {setting}: found {column}; allowed: {allowed}")
        if column in needed:
            raise SettingsError(
                f"params.yaml: {setting}: found {column}, which has the path or the label of each sample. "
                "Fix: remove it from the list"
            )
    table = table.drop(settings.drop)
    if not settings.hash:
        return table
    key = os.environ.get(KEY_VARIABLE, "")
    if len(key) < _SHORTEST_KEY:
        value = f"one of {len(key)} characters" if key else "none"
        raise SettingsError(
            f"params.yaml: data.hash: needs a key of at least {_SHORTEST_KEY} characters in the environment variable "
            f"{KEY_VARIABLE}, found {value}. Fix: set it to the same secret on every machine that ingests this data"
        )
    return table.with_columns(_hashed(table[column], key.encode()) for column in settings.hash if column in table)


def _hashed(values: pl.Series, key: bytes) -> pl.Series:
    if isinstance(values.dtype, pl.List | pl.Array | pl.Struct | pl.Binary | pl.Object):
        raise DataError(
            f"data.hash: column {values.name!r} has {values.dtype} values. Allowed: one text, number or date in each "
            "row. Fix: list it in data.drop"
        )
    texts = (values.dt.total_microseconds() if isinstance(values.dtype, pl.Duration) else values).cast(pl.String)
    codes = {
        text: hmac.new(key, text.encode(), hashlib.sha256).hexdigest()[:32] for text in texts.unique().drop_nulls()
    }
    return texts.replace_strict(codes, default=None, return_dtype=pl.String)
