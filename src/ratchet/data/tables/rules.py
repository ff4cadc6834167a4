"""Rules about single rows of a table. A row that breaks one is quarantined."""

import hashlib
from collections.abc import Callable, Sequence

import polars as pl
from pandera import polars as pa

from ratchet.data import quarantine
from ratchet.data.privacy import looks_personal
from ratchet.data.refusal_reasons import REASONS
from ratchet.data.sample_rules import failures, must
from ratchet.data.sources.table_file import TableFile
from ratchet.data.tables.columns import TypedColumn
from ratchet.data.tables.targets import TargetTable

__all__ = ["Faults", "personal", "refused_rows"]

_AT_ONCE = 50  # rules of one schema; pandera's time for each grows with the width of the table

Faults = dict[tuple[str, str], pl.Series]
"""Places of the rows that break a rule in a column, by rule and column."""


def refused_rows(
    columns: Sequence[TypedColumn], labels: TargetTable, further: Faults, *, rows: pl.Series, file: TableFile,
    texts: Callable[[], pl.DataFrame],
) -> pl.DataFrame:  # fmt: skip
    """Return the quarantine rows of the rows that break a rule.

    Args:
        columns: the features.
        labels: the targets.
        further: faults of other columns.
        rows: number of each row in the file, from 1.
        file: gives the places of rows.
        texts: returns the cells as they are in the file, for the values of broken rules.
    """
    faults: Faults = {
        (rule, column.name): places for column in columns for rule, places in column.faults.items() if len(places)
    }
    faults |= {(rule, ""): places for rule, places in labels.faults.items() if len(places)}
    faults |= {key: places for key, places in further.items() if len(places)}
    if not faults:
        return quarantine.rows([])
    written = texts()
    source, content = _places(faults, rows, file, written)
    broken = []
    for start in range(0, len(faults), _AT_ONCE):
        frame = {"row": rows, "source": source, "content": content, "label": labels.shown.cast(pl.String)}
        chosen = list(faults)[start : start + _AT_ONCE]
        keys = {f"{key[0]} {place}": key for place, key in enumerate(chosen)}
        for name, key in keys.items():
            frame[name] = pl.Series([True]).new_from_index(0, len(rows)).scatter(faults[key], False)
        schema = {name: pa.Column(pl.Boolean, must(rule)) for name, (rule, _) in keys.items()}
        cells = {f"cell {column}": written[column].cast(pl.String) for _, column in keys.values() if column}
        broken.append(failures(pl.DataFrame(frame | cells), schema, _values(keys), source="source"))
    return pl.concat(broken).sort("row", "rule", "value")


def _places(faults: Faults, rows: pl.Series, file: TableFile, texts: pl.DataFrame) -> tuple[pl.Series, pl.Series]:
    """Return "line 7" and the SHA-256 (hex) of the cells for each row with a fault; null for the others."""
    none = pl.Series([None], dtype=pl.String).new_from_index(0, len(rows))
    bad = pl.concat([places.cast(pl.UInt32) for places in faults.values()]).unique().sort()
    cells = ("\x1f".join(map(str, row)) for row in texts[bad].iter_rows())
    contents = pl.Series([hashlib.sha256(row.encode()).hexdigest() for row in cells], dtype=pl.String)
    return none.scatter(bad, pl.Series(file.places(rows.gather(bad).to_list()))), none.clone().scatter(bad, contents)


def _values(keys: dict[str, tuple[str, str]]) -> Callable[[str, str], pl.Expr | None]:
    def value(rule: str, name: str) -> pl.Expr | None:
        column = keys[name][1]
        if rule == "personal-data":
            return pl.lit(REASONS[rule].value.format(column=column))
        if not column:
            return None
        return pl.format("{} {}", pl.lit(column), pl.col(f"cell {column}").fill_null(""))

    return value


def personal(columns: Sequence[TypedColumn]) -> Faults:
    """Return the faults of texts that look like an address or a number of a person."""
    faults: Faults = {}
    for column in columns:
        if column.values.dtype == pl.Float64:
            continue
        distinct = column.values.unique().drop_nulls().cast(pl.String)
        named = distinct.filter(looks_personal(distinct))
        if len(named):
            is_named = column.values.cast(pl.String).is_in(named.implode()).fill_null(False)
            faults["personal-data", column.name] = is_named.arg_true()
    return faults
