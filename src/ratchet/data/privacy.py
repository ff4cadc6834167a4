"""What must not be kept: columns that are dropped, or replaced by a keyed hash, before anything is written."""

import hashlib
import hmac
import os
from collections.abc import Sequence

import polars as pl

from ratchet.errors import SettingsError
from ratchet.params import DataSettings

__all__ = ["KEY_VARIABLE", "PERSONAL", "guarded"]

KEY_VARIABLE = "RATCHET_HASH_KEY"
_SHORTEST_KEY = 16  # characters: a shorter one could be found by trying

PERSONAL = {
    "an e-mail address": r"(?i)[a-z0-9._%+-]+@[a-z0-9-]+(\.[a-z0-9-]+)+",
    "a card number": r"(?:^|\D)(?:\d[ -]?){13,19}(?:\D|$)",
    "a telephone number": (
        r"(?:^|[^\w.])(?:\+\d{1,3}[ ./-]?)?(?:\(\d{2,5}\)[ ./-]?)?\d{2,5}(?:[ /-]\d{2,6}){1,4}(?:\D|$)"
        r"|(?:^|\s)\+\d{8,15}(?:\D|$)"
    ),
}
"""What a text looks like -> the pattern that tells."""


def guarded(table: pl.DataFrame, settings: DataSettings, *, needed: Sequence[str]) -> pl.DataFrame:
    """The table without the columns of data.drop, those of data.hash replaced.

    A keyed hash (HMAC-SHA256, 32 hexadecimal digits) is the same for the same value and key, so that groups stay
    groups; without the key nobody can try values out against it.

    Raises:
        SettingsError: a column is not there or cannot be spared, or the key is missing.
    """
    for setting, columns in (("data.drop", settings.drop), ("data.hash", settings.hash)):
        for column in columns:
            if column not in table.columns:
                raise SettingsError(
                    f"params.yaml: {setting}: found {column}; allowed: a column of the table, which has "
                    f"{', '.join(table.columns)}"
                )
            if column in needed:
                raise SettingsError(
                    f"params.yaml: {setting}: found {column}, which says where the picture is or what it shows: "
                    "take it off the list"
                )
    table = table.drop(settings.drop)
    if not settings.hash:
        return table
    key = os.environ.get(KEY_VARIABLE, "")
    if len(key) < _SHORTEST_KEY:
        found = f"one of {len(key)} characters" if key else "none"
        raise SettingsError(
            f"params.yaml: data.hash: needs a key of at least {_SHORTEST_KEY} characters in the environment variable "
            f"{KEY_VARIABLE}, found {found}: set it to the same secret wherever this data is ingested"
        )
    return table.with_columns(_hashed(table[column], key.encode()) for column in settings.hash)


def _hashed(values: pl.Series, key: bytes) -> pl.Series:
    texts = values.cast(pl.String)
    codes = {
        text: hmac.new(key, text.encode(), hashlib.sha256).hexdigest()[:32] for text in texts.unique().drop_nulls()
    }
    return texts.replace_strict(codes, default=None, return_dtype=pl.String)
