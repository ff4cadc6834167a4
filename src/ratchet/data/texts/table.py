"""Texts in a table: a CSV, JSON Lines or Parquet file with a text and a label in each row."""

import hashlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl

from ratchet.data import labelled
from ratchet.data.labelled import LabelledSamples
from ratchet.data.privacy import without_private
from ratchet.data.sources.table_file import check_single_values
from ratchet.data.tables.reading import group_notes, open_table, require
from ratchet.data.tables.targets import read_labels
from ratchet.errors import DataError
from ratchet.settings.model import DataSettings

__all__ = ["SAMPLE", "TABLES", "read_table_of_texts"]

Report = Callable[[int, int], None]

TABLES = (".csv", ".tsv", ".psv", ".parquet", ".json", ".jsonl", ".ndjson")
SAMPLE: dict[str, Any] = {"row": pl.Int64, "id": pl.String, "text": pl.String} | labelled.SAMPLE
"""Columns of the samples. text: null if it is none, because its bytes break `rule`."""


def read_table_of_texts(settings: DataSettings, *, root: Path, report: Report) -> LabelledSamples:
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
    columns = {"text": text_column} | labelled.optional_columns(frame, settings, source.where)
    extra = [name for name in frame.columns if name not in (*columns.values(), *settings.label_columns)]
    check_single_values(frame, source.where, needed=(text_column,))
    frame, row, refused = source.good_rows(frame)
    if frame.is_empty():
        raise DataError(f"{source.where} has no rows. Fix: add rows")
    labels = read_labels(frame, settings, source.where)
    groups = group_notes(frame.select(extra)) if not {"split", "group"} & set(columns) else ()
    labels = replace(labels, notes=labels.notes + source.file.notes + groups)
    cells = {name: _texts(frame, columns.get(name)) for name in ("text", "split", "group")}
    ids = [f"{Path(settings.path).name} {place}" for place in source.file.places(row.to_list())]
    contents = [None if text is None else hashlib.sha256(text.encode()).hexdigest() for text in cells["text"]]
    split, group = (labelled.without_missing(cells[name]) for name in ("split", "group"))
    table = pl.DataFrame({
        "row": row, "id": ids, "text": cells["text"], "rule": [None] * len(row), "problem": [None] * len(row),
        "content": contents, "split": split, "group": group,
    }, schema=SAMPLE)  # fmt: skip
    report(len(row), len(row))
    names = labelled.index_names(extra, frame.columns)
    table = table.with_columns(labelled.typed(frame[name]).alias(new) for name, new in names.items())
    return LabelledSamples(source.name, settings.path, table, labels, refused, tuple(names.values()))


def _texts(frame: pl.DataFrame, column: str | None) -> pl.Series:
    """Return the values of a column as texts; nulls if there is no such column."""
    return pl.Series([None] * frame.height, dtype=pl.String) if column is None else frame[column].cast(pl.String)
