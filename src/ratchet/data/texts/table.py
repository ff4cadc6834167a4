"""Texts in a table: a CSV, JSON Lines or Parquet file with a text and a label in each row."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from ratchet.data.privacy import without_private
from ratchet.data.sources.table_file import MISSING
from ratchet.data.tables.reading import open_table, require
from ratchet.data.tables.rules import shared_rows
from ratchet.data.tables.targets import Labelling, read_labels
from ratchet.errors import DataError
from ratchet.settings.model import DataSettings

__all__ = ["SAMPLE", "TABLES", "TextSamples", "read_table_of_texts"]

Report = Callable[[int, int], None]

TABLES = (".csv", ".tsv", ".psv", ".parquet", ".json", ".jsonl", ".ndjson")
SAMPLE: dict[str, Any] = {
    "row": pl.Int64, "id": pl.String, "text": pl.String, "rule": pl.String, "problem": pl.String,
    "content": pl.String, "split": pl.String, "group": pl.String,
}  # fmt: skip
"""Columns of the samples of every source.

row: number of the sample in its source. id: unique, and the same on every machine. text: null if it is none, because
its bytes break `rule` with the value `problem`. content: SHA-256 (hex) of its bytes. split, group: as they are written;
null: none.
"""
_RESERVED = frozenset(
    [*SAMPLE, "source", "label", "class", "packed", "pixels", "place", "characters", "words", "normal", "assigned"]
)


@dataclass(frozen=True)
class TextSamples:
    """The texts of a source, with its name and place; `labels` and `table` have the same rows.

    `refused` has quarantine rows of what cannot be a sample. `extra` are further columns of the table.
    """

    name: str
    where: str
    table: pl.DataFrame
    labels: Labelling
    refused: pl.DataFrame
    extra: tuple[str, ...] = ()


def read_table_of_texts(settings: DataSettings, *, root: Path, report: Report) -> TextSamples:
    """Read the table data.path.

    Raises:
        SettingsError: a setting names a column that the table must not lose.
        DataError: the file is no table, or lacks a column.
    """
    source = open_table(settings, root=root)
    text_column = settings.text_column
    require(source, text_column, "data.text_column")
    for column in settings.label_columns:
        require(source, column, "data.label_column")
    frame = without_private(source.frame, settings, needed=(text_column, *settings.label_columns))
    columns = {"text": text_column} | _optional(frame, settings)
    extra = [name for name in frame.columns if name not in (*columns.values(), *settings.label_columns)]
    _check_columns(frame, text_column, source.where)
    row = pl.Series("row", range(1, frame.height + 1), dtype=pl.Int64)
    header = frame.select(pl.all_horizontal(_equals(frame[name], name) for name in frame.columns)).to_series()
    empty = frame.select(pl.all_horizontal(pl.all().is_null())).to_series()
    refused = shared_rows(source.file, source.ragged, row.filter(header))
    kept = ~(header | empty | row.is_in(source.ragged["row"].implode()))
    frame, row = frame.filter(kept), row.filter(kept)
    if frame.is_empty():
        raise DataError(f"{source.where} has no rows. Fix: add rows")
    labels = read_labels(frame, settings, source.where)
    cells = {
        name: frame[columns[name]].cast(pl.String) if name in columns else pl.Series([None] * len(row), dtype=pl.String)
        for name in ("text", "split", "group")
    }
    ids = [f"{Path(settings.path).name} {place}" for place in source.file.places(row.to_list())]
    contents = [None if text is None else hashlib.sha256(text.encode()).hexdigest() for text in cells["text"]]
    table = pl.DataFrame({
        "row": row, "id": ids, "text": cells["text"], "rule": [None] * len(row), "problem": [None] * len(row),
        "content": contents, "split": _without_missing(cells["split"]), "group": _without_missing(cells["group"]),
    }, schema=SAMPLE)  # fmt: skip
    report(len(row), len(row))
    names = _kept_names(extra, frame.columns)
    table = table.with_columns(_typed(frame[name]).alias(new) for name, new in names.items())
    return TextSamples(source.name, settings.path, table, labels, refused, tuple(names.values()))


def _optional(frame: pl.DataFrame, settings: DataSettings) -> dict[str, str]:
    """Return the columns of split and group. A column that a setting names must be there; a default may be absent."""
    columns = {"split": settings.split_column, "group": settings.group_column}
    present = {name: column for name, column in columns.items() if column in frame.columns}
    for name, column in columns.items():
        if name not in present and column != type(settings).model_fields[f"{name}_column"].default:
            raise DataError(
                f"data.{name}_column: the table has no column {column!r}; it has {', '.join(frame.columns[:40])}. "
                f"Fix: correct data.{name}_column"
            )
    return present


def _equals(values: pl.Series, name: str) -> pl.Series:
    """Return whether each cell is the name of its column."""
    if values.dtype != pl.String:
        return pl.Series([False]).new_from_index(0, len(values)).alias(name)
    return (values.str.strip_chars() == name).fill_null(False).alias(name)


def _check_columns(table: pl.DataFrame, text_column: str, where: str) -> None:
    """Check that no column has lists, records or bytes."""
    for name, dtype in table.schema.items():
        if dtype.is_nested() or dtype == pl.Binary or dtype == pl.Object:
            fix = "save one text in each row" if name == text_column else f"set data.drop=[{name}]"
            raise DataError(f"{where}: column {name!r} has {dtype}, not single values. Fix: {fix}")


def _kept_names(extra: Sequence[str], columns: Sequence[str]) -> dict[str, str]:
    """Return the name in the index of each extra column: one that the index has gets `_` at its end."""
    taken, kept = {*_RESERVED, *columns}, {}
    for name in extra:
        new = name
        while new in _RESERVED or (new != name and new in taken):
            new += "_"
        kept[name] = new
        taken.add(new)
    return kept


def _without_missing(texts: pl.Series) -> pl.Series:
    return texts.to_frame("").select(pl.when(~pl.col("").str.strip_chars().is_in(list(MISSING))).then("")).to_series()


def _typed(values: pl.Series) -> pl.Series:
    """Return a column of texts as numbers if all are numbers."""
    if values.dtype != pl.String:
        return values
    texts = _without_missing(values).alias(values.name)
    for dtype in (pl.Int64, pl.Float64):
        numbers = texts.str.strip_chars().cast(dtype, strict=False)
        if numbers.null_count() == texts.null_count() < len(texts):
            return numbers
    return texts
