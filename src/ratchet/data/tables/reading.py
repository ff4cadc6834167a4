"""The file of a table as a frame: its header, names and cells, and the rows that are no rows."""

import difflib
import os
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import polars as pl

from ratchet.data import quarantine
from ratchet.data.reading.storage import expanded, is_url, open_storage, read_whole, why_unusable
from ratchet.data.refusal_reasons import REASONS
from ratchet.data.sources.csv_records import cells_of
from ratchet.data.sources.table_file import (
    SEPARATORS,
    TableFile,
    column_names,
    composed,
    read_table,
    require_column,
    with_label_lists,
)
from ratchet.data.system_files import is_system_name
from ratchet.data.tables.columns import GROUP_NAME, ID_NAME
from ratchet.data.tables.encode import MISSING_TEXTS
from ratchet.data.tables.number_formats import PLAIN, numbers
from ratchet.data.tables.targets import TargetTable
from ratchet.errors import DataError
from ratchet.settings.model import DataSettings

__all__ = ["RawTable", "open_table", "require", "with_notes"]

_HEADER_SAMPLE = 2000  # rows
_MOST = 0.8  # share of the lines that have the same number of cells
_OTHERS = {"::": 9, "^": 1, " ": 1}
"""Separators that are not read, with the number of cells by a usual separator up to which they count."""
_PANDAS = {"::": "::", "^": r"\^", " ": r"\s+"}
_HEAD = 1 << 16  # bytes
_HEADER_AGAIN = pl.lit(REASONS["repeated-header"].value)
_GROUPS, _ROWS_EACH = 20, 1.5  # least values of an id, and rows of each on average


@dataclass(frozen=True)
class RawTable:
    """A table as it is in its file.

    Attributes:
        frame: the columns of the file. Cells of CSV are texts.
        file: gives the places of rows for messages.
        ragged: rows with too many or too few cells: `row` and `value`.
        where: setting and path of the file, for messages.
        name: name of the file without its extension.
        has_header: whether the columns have names in the file.
    """

    frame: pl.DataFrame
    file: TableFile
    ragged: pl.DataFrame
    where: str
    name: str
    has_header: bool

    def good_rows(self, frame: pl.DataFrame) -> tuple[pl.DataFrame, pl.Series, pl.DataFrame]:
        """Return the rows of `frame`, which has columns of this table, their numbers from 1, and quarantine rows.

        An empty line of CSV is no row, also with spaces in its cells. A record is bad that has too many or too few
        cells, that is the header again, or that has a list where others have a text.
        """
        rows, names = pl.Series("row", np.arange(1, frame.height + 1)), frame.columns
        filled = [
            pl.col(name).str.contains(r"\S") if kind == pl.String else pl.col(name).is_not_null()
            for name, kind in frame.schema.items()
        ]
        blank = [~cells.fill_null(False) for cells in filled]
        headers = empty = pl.Series([False]).new_from_index(0, frame.height)
        if self.file.head:  # CSV
            empty = _hold(frame, frame.select(blank[0]).to_series(), *blank)
        if all(kind == pl.String for kind in frame.dtypes):
            same = [pl.col(name).str.strip_chars() == name for name in names]
            headers = _hold(frame, frame.select(same[0]).to_series(), *same)
        again = pl.DataFrame({"row": rows.filter(headers)}, schema={"row": pl.Int64}).with_columns(value=_HEADER_AGAIN)
        refused = []
        nested = self.file.nested
        for broken, rule in ((self.ragged, "ragged-row"), (again, "repeated-header"), (nested, "nested-value")):
            source = pl.Series("source", self.file.places(broken["row"].to_list()), dtype=pl.String)
            refused.append(quarantine.table(broken.select("row", "value").with_columns(source), rule))
        if headers.any() or empty.any() or self.ragged.height or nested.height:
            kept = ~(headers | empty | rows.is_in(pl.concat([self.ragged["row"], nested["row"]]).implode()))
            frame, rows = frame.filter(kept), rows.filter(kept)
        return frame, rows, pl.concat(refused)

    def widths(self, labels: Sequence[str]) -> tuple[int, ...]:
        """Return the numbers of cells with which a file without a header has the same columns; empty: it has a header.

        It may lack the labels if they are the last columns.
        """
        names = self.frame.columns
        before = len(names) - len(labels)
        are_last = set(names[before:]) == set(labels)
        return () if self.has_header else (len(names), *([before] if are_last else []))

    def texts(self, frame: pl.DataFrame, rows: pl.Series) -> pl.DataFrame:
        """Return rows of the table, given with their numbers from 1, with the cells of a CSV file as texts."""
        read = [name for name, kind in frame.schema.items() if kind != pl.String]
        if self.file.cells is None or not read:
            return frame
        texts = self.file.cells.texts([self.frame.columns.index(name) for name in read])
        texts.columns = read
        return frame.with_columns(texts[(rows - 1)])

    def without_rows(self) -> "RawTable":
        """Return the table without its content, which is most of the memory of an ingest."""
        return replace(self, frame=self.frame.clear(), file=self.file.without_rows())


def _hold(frame: pl.DataFrame, first: pl.Series, *conditions: pl.Expr) -> pl.Series:
    """Return whether all conditions hold for each row. `first` is one of them, which rarely holds."""
    places = first.fill_null(False).arg_true()
    held = frame[places].select(pl.all_horizontal(*conditions).fill_null(False)).to_series()
    return pl.Series([False]).new_from_index(0, frame.height).scatter(places, held)


def open_table(settings: DataSettings, *, root: Path, typed: bool = False) -> RawTable:
    """Read the file data.path. `typed`: columns of CSV may become numbers.

    Raises:
        DataError: there is no such file, or it is no table.
    """
    path = settings.path.rstrip("/")
    content = _content(path, root)
    shown = path if is_url(path) else str(root / expanded(path))
    where, needed = f"data.path: {shown}", settings.label_columns
    may_be_numbers = _numeric_names(settings) if typed and not settings.missing else None
    file = read_table(content, where=where, needed=needed, drop=settings.drop, may_be_numbers=may_be_numbers)
    _check_layout(file.first_lines, where)
    has_header = not _looks_like_data(list(map(composed, file.header)), file.table, wanted=needed)
    if not has_header:
        file = read_table(content, where=where, needed=(), is_header=lambda cells: False)
    frame = with_label_lists(file.named(column_names(file.header, where)), needed, where)
    if frame.is_empty():
        raise DataError(f"{where} has a header and no rows. Fix: add rows")
    name = re.sub(r"(\.\w+)+$", "", path.rpartition("/")[2]) or "table"
    return RawTable(frame, file, file.ragged, where, name, has_header)


def _numeric_names(settings: DataSettings) -> Callable[[str], bool]:
    """Return whether a column, by its name, has numbers only as a feature, so that nothing else needs its texts.

    A header cell without a name gets another one later, or is no name but a missing value in a file without a header.
    """
    special = {settings.split_column, settings.group_column, settings.order_by}
    texts = special.union(settings.label_columns, settings.columns, settings.hash)

    def may_be_numbers(name: str) -> bool:
        has_texts = composed(name) in texts or name in MISSING_TEXTS or ID_NAME.search(name) or GROUP_NAME.search(name)
        return not has_texts and numbers(pl.Series([name]), PLAIN).null_count() == 1  # a header may be repeated

    return may_be_numbers


def _content(path: str, root: Path) -> bytes:
    """Return the bytes of a local or remote file."""
    if not is_url(path):
        local = root / expanded(path)
        if not os.path.isfile(local):
            raise DataError(f"data.path: {local} {why_unusable(local)}. Fix: set it to {_near_file(local)}")
        folder, name = str(local.parent), local.name
    else:
        folder, _, name = path.rpartition("/")
    storage = open_storage(folder, root=root)
    try:
        content = read_whole(storage, name)
    except OSError as error:
        raise DataError(
            f"data.path: {storage.where}/{name}: {error.strerror or error}. Fix: set it to a CSV or Parquet file"
        ) from None
    if not content[:_HEAD].strip():
        raise DataError(f"data.path: {storage.where}/{name} is empty. Fix: fetch it again")
    return content


def _near_file(path: Path) -> str:
    """Return the fix for a path that is no file, with a likely file."""
    if os.path.isdir(path):
        tables = sorted(
            file.name
            for file in path.iterdir()
            if file.suffix.lower() in (".csv", ".tsv", ".parquet") and not is_system_name(file.name)
        )
        return f"a file{f', such as {path / tables[0]}' if tables else ''}"
    others = [file.name for file in path.parent.glob("*") if file.is_file()] if os.path.isdir(path.parent) else []
    near = difflib.get_close_matches(path.name, others, n=1)
    return f"a CSV or Parquet file{f' ({near[0]}?)' if near else ''}"


def _check_layout(lines: list[str], where: str) -> None:
    """Check that a CSV file has a known separator, and no title above its header."""
    columns = {mark: [len(cells_of(line, mark)) for line in lines] for mark in SEPARATORS}
    usual = {mark: max(counts[1:], key=counts[1:].count, default=1) for mark, counts in columns.items()}
    separator = max(usual, key=lambda mark: usual[mark])
    first, rest = columns[separator][:1], columns[separator][1:]
    other = next((mark for mark, least in _OTHERS.items() if usual[separator] <= least and _divides(mark, lines)), None)
    if other is not None:
        raise DataError(
            f"{where}: the columns are separated by {other!r}; allowed are comma, semicolon, tab and |. Fix: save it "
            f"with commas, such as with pandas: read_csv(FILE, sep={_PANDAS[other]!r}, engine='python')"
            ".to_csv('table.csv', index=False); without a header add header=None"
        )
    _check_quotes(lines, columns[separator], separator, where)
    fits = any(1 < counts[0] == usual[mark] for mark, counts in columns.items() if counts)
    if first and first[0] < usual[separator] and not fits and rest.count(usual[separator]) >= _MOST * len(rest):
        raise DataError(
            f"{where}: the first line ({lines[0][:40]!r}) has {first[0]} of the {usual[separator]} cells of the rest. "
            "Fix: delete a title above the header, or write one name for each column"
        )
    names = [cell for cell in cells_of(lines[0], separator) if cell.strip()] if lines and first[0] > 1 else []
    if len(names) == 1 and usual[separator] > 2:
        raise DataError(
            f"{where}: the first line has one name ({names[0]!r}) for {usual[separator]} columns. Fix: delete a title "
            "above the header, or write one name for each column"
        )


def _check_quotes(lines: Sequence[str], counts: Sequence[int], separator: str, where: str) -> None:
    """Check that a quotation mark of a cell with a separator follows a separator at once, and is a double one."""
    end = f"[{separator}]"
    quoted = rf"""(?:^|{end}) *(?: "[^"]*{end}[^"]*"|'[^']*{end}[^']*') *(?:$|{end})"""
    for count, line in zip(counts, lines, strict=True):
        if count > counts[0] and (cell := re.search(quoted, line)):
            mark = '"' if '"' in cell[0] else "'"
            raise DataError(
                f"{where}: {line[:40]!r} has {count} cells, the header has {counts[0]}: a cell with {separator!r} must "
                f"be in double quotation marks, without a space before them. Fix: save it with pandas: read_csv(FILE, "
                f"sep={separator!r}, quotechar={mark!r}, skipinitialspace=True).to_csv('table.csv', index=False)"
            )


def _divides(mark: str, lines: list[str]) -> bool:
    """Return whether a mark divides all lines into the same number of cells."""
    counts = {len(re.findall(_PANDAS[mark], line.strip())) for line in lines}
    return len(lines) > 1 and len(counts) == 1 and counts != {0}


def _looks_like_data(header: list[str], table: pl.DataFrame, *, wanted: tuple[str, ...]) -> bool:
    """Whether the first line is a row: each cell could be a value of its column, and some certainly are."""
    if set(wanted) & set(header) or table.is_empty() or not all(kind == pl.String for kind in table.dtypes):
        return False
    fits = 0
    for cell, name in zip(header, table.columns, strict=False):
        values = table[name].head(_HEADER_SAMPLE).str.strip_chars()
        values = values.filter(~values.is_in(list(MISSING_TEXTS)))
        share = float(values.cast(pl.Float64, strict=False).is_not_null().mean() or 0.0)  # type: ignore[arg-type]
        is_number = pl.Series([cell]).cast(pl.Float64, strict=False).is_not_null()[0]
        if cell in MISSING_TEXTS:
            continue
        if is_number != (share > 0.5):
            return False
        if is_number or cell in values:
            fits += 1
        elif len(values) and values.n_unique() < len(values) / 2:  # the name is none of few values
            return False
    return fits > 0


def with_notes(
    labels: TargetTable, extra: pl.DataFrame, roles: Collection[str], notes: Sequence[str] = ()
) -> TargetTable:
    """Return the labels with more notes: those given, and one about each column that looks like the id of a person.

    Args:
        extra: columns that have no role.
        roles: of the other columns; with a split or a group it is known what belongs together.
        notes: of the file.
    """
    groups = []
    for name in filter(GROUP_NAME.search, () if {"split", "group"} & set(roles) else extra.columns):
        distinct = extra[name].drop_nulls().n_unique()
        if distinct >= _GROUPS and extra.height >= _ROWS_EACH * distinct:
            groups.append(
                f"column {name!r} has {distinct:,} values in {extra.height:,} rows, so rows of one value may be in "
                f"several splits. If they belong together: ratchet set data.group_column={name}"
            )
    return replace(labels, notes=(*labels.notes, *notes, *groups))


def require(table: RawTable, column: str, setting: str) -> None:
    """Check that the table has a column that a setting names.

    Raises:
        DataError: it has not.
    """
    if table.has_header or column in table.frame.columns:
        return require_column(column, setting, table.frame.columns, table.where)
    first = ", ".join(repr(str(value).strip()) for value in table.frame.row(0)[:3])
    raise DataError(
        f"{table.where} has no column {column!r}. Its first line is no header ({first}, ...), so the columns are "
        f"numbered. Fix: set {setting} (to {table.frame.columns[-1]}?), or add a header line"
    )
