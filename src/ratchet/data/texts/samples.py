"""Sources of texts: a table, a folder of classes with one text per file, or files of texts, one class per file."""

import hashlib
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from ratchet.combinations import column_faults
from ratchet.data import quarantine, sample_table
from ratchet.data.checks.label_spelling import in_order
from ratchet.data.privacy import without_private
from ratchet.data.reading.storage import Storage, expanded, is_url, open_storage, read_whole, why_unusable
from ratchet.data.reading.subset import subset
from ratchet.data.sample_table import LabelledSamples
from ratchet.data.sources.decoding import Decoded, decode, encoding_of
from ratchet.data.sources.image_folder import SPLIT_FOLDERS, ImageFolder
from ratchet.data.sources.table_file import check_single_values, composed
from ratchet.data.tables.reading import open_table, require, with_notes
from ratchet.data.tables.targets import TargetTable, read_labels
from ratchet.errors import DataError, SettingsError
from ratchet.problems import Classes
from ratchet.settings.model import DataSettings

__all__ = ["read_samples"]

Report = Callable[[int, int], None]

_TABLES = (".csv", ".tsv", ".psv", ".parquet", ".json", ".jsonl", ".ndjson")
SAMPLE: dict[str, Any] = {"row": pl.Int64, "id": pl.String, "text": pl.String} | sample_table.SAMPLE
"""Columns of the samples. text: null if it is none, because its bytes break `rule`."""

_UNLABELLED = frozenset({"unsup", "unsupervised", "unlabeled", "unlabelled"})  # folders of texts without a class
_NOT_SAMPLES = re.compile(r"(read.?me|licen[sc]e|copying|changelog)", re.IGNORECASE)
_LAYOUT = (
    "set it to a CSV or Parquet file with a text and a label in each row, a folder with one folder of texts per "
    "class, or a folder with one file per class and one text per line"
)
_ONLY_SPLITS = ({"train", "test"}, {"train", "validation"}, {"train", "validation", "test"})


def read_samples(settings: DataSettings, *, root: Path, report: Report, sample: bool) -> LabelledSamples:
    """Read all texts of the source that data.path names.

    Args:
        settings: the `data` section; a relative path is relative to `root`.
        root: the project folder.
        report: called with (done, total) samples.
        sample: read only a few texts of each class.

    Raises:
        SettingsError, DataError: the source is not found, has no layout of texts, or cannot be read.
    """
    if _is_file(settings.path, root):
        return _read_table(settings, root=root, report=report)
    storage = open_storage(settings.path, root=root)
    tree = storage.tree()
    if tree.folders:
        return replace(_read_folder(storage, settings, report, sample=sample), ignored=tree.ignored)
    _refuse_columns(settings, storage.where)
    tables = [file for file in tree.names if file.casefold().endswith(_TABLES)]
    if tables:
        raise DataError(
            f"data.path: {storage.where} is a folder with the table {tables[0]!r}. Fix: set "
            f"data.path={storage.where}/{tables[0]}"
        )
    return replace(_read_lines(storage, sorted(tree.names), report), ignored=tree.ignored)


def _refuse_columns(settings: DataSettings, where: str, *, but: str = "") -> None:
    """Refuse settings of the columns of a table: a folder of texts has none."""
    if faults := list(column_faults(settings, where, but=but)):
        raise SettingsError("\n".join(f"params.yaml: {fault}" for fault in faults))


def _is_file(path: str, root: Path) -> bool:
    """Whether a setting names a file with a table, not a folder."""
    if is_url(path):
        is_table = path.partition("?")[0].casefold().endswith(_TABLES)
        if not is_table and path.startswith("http"):
            raise DataError(
                f"data.path: found {path}. A web server lists no files. Fix: name the address of a table "
                f"({', '.join(_TABLES)}), or copy the texts here"
            )
        return is_table
    local = root / expanded(path)
    is_file = os.path.isfile(local)
    if not is_file and not os.path.isdir(local):
        raise DataError(f"data.path: {local} {why_unusable(local)}. Fix: {_LAYOUT}")
    if is_file and local.suffix.casefold() == ".txt":
        raise DataError(
            f"data.path: {local} is one text file without labels. Fix: {_LAYOUT}; for a language model set "
            "data.kind=tokens"
        )
    return is_file


def _read_table(settings: DataSettings, *, root: Path, report: Report) -> LabelledSamples:
    """Read the table data.path.

    Raises:
        SettingsError: a setting names a column that the table must not lose.
        DataError: the file is no table, or lacks a column.
    """
    source = open_table(settings, root=root)
    text_column = composed(settings.text_column)
    require(source, text_column, "data.text_column")
    for column in settings.label_columns:
        require(source, column, "data.label_column")
    frame = without_private(source.frame, settings, needed=(text_column, *settings.label_columns))
    columns = {"text": text_column} | sample_table.optional_columns(frame, settings, source.where)
    extra = [name for name in frame.columns if name not in (*columns.values(), *settings.label_columns)]
    check_single_values(frame, source.where, needed=(text_column,))
    frame, row, refused = source.good_rows(frame)
    if frame.is_empty():
        raise DataError(f"{source.where} has no rows. Fix: add rows")
    labels = read_labels(frame, settings, source.where)
    labels = with_notes(labels, frame.select(extra), columns, source.file.notes)
    cells = {name: _texts(frame, columns.get(name)) for name in ("text", "split", "group")}
    ids = [f"{Path(settings.path).name} {place}" for place in source.file.places(row.to_list())]
    contents = [None if text is None else hashlib.sha256(text.encode()).hexdigest() for text in cells["text"]]
    split, group = (sample_table.without_missing(cells[name]) for name in ("split", "group"))
    table = pl.DataFrame({
        "row": row, "id": ids, "text": cells["text"], "rule": [None] * len(row), "problem": [None] * len(row),
        "content": contents, "split": split, "group": group,
    }, schema=SAMPLE)  # fmt: skip
    report(len(row), len(row))
    names = sample_table.index_names(extra, frame.columns)
    table = table.with_columns(sample_table.typed(frame[name]).alias(new) for name, new in names.items())
    return LabelledSamples(source.name, settings.path, table, labels, refused, tuple(names.values()))


def _texts(frame: pl.DataFrame, column: str | None) -> pl.Series:
    """Return the values of a column as texts; nulls if there is no such column."""
    return pl.Series([None] * frame.height, dtype=pl.String) if column is None else frame[column].cast(pl.String)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _frame(rows: Sequence[Sequence[Any]]) -> pl.DataFrame:
    return pl.DataFrame(rows, schema=SAMPLE, orient="row")


def _read_folder(storage: Storage, settings: DataSettings, report: Report, *, sample: bool) -> LabelledSamples:
    """Read a folder of classes, or train, validation and test folders of classes: each file is a text."""
    _refuse_columns(settings, storage.where, but="group_column")
    source = ImageFolder(storage, settings.label_level, group=settings.named_group, of="texts")
    unlabelled = [name for name in source.classes if name.casefold() in _UNLABELLED]
    if unlabelled:
        raise DataError(
            f"{storage.where}: the class folder {unlabelled[0]!r} has the name of texts without a class. Fix: move it "
            "away, or rename it if it is a class"
        )
    listed = subset(source.listing, classes=len(source.classes)) if sample else source.listing
    extra = [name for name in listed.columns if name.startswith("level_")]
    rows = []
    for done, (row, name, split, group) in enumerate(listed.select("row", "id", "split", "group").iter_rows(), 1):
        try:
            content = read_whole(storage, name)
            decoded = decode(content)
        except OSError as error:
            content, decoded = b"", Decoded(None, "unreadable-text", error.strerror or str(error))
        rows.append((row, name, *decoded, _digest(content), split, group))
        report(done, listed.height)
    refused = quarantine.table(source.refused.select("source", "row", "value"), "unreadable-text")
    table = _frame(rows).with_columns(listed[name] for name in extra)
    labels = _targets(listed["label"], source.classes, "the folders are the classes")
    return LabelledSamples(source.name, storage.where, table, labels, refused, tuple(extra))


def _read_lines(storage: Storage, names: Sequence[str], report: Report) -> LabelledSamples:
    """Read files of texts, one per line; see `_named`."""
    files = [name for name in names if not _NOT_SAMPLES.search(name)]
    if len(files) < 2:
        raise DataError(f"data.path: {storage.where} has {len(files)} files and no folders. Fix: {_LAYOUT}")
    labels, splits = _named(files, storage.where)
    classes = tuple(sorted(set(labels), key=in_order))
    targets: list[int] = []
    rows: list[tuple[Any, ...]] = []
    for done, (name, label, split) in enumerate(zip(files, labels, splits, strict=True), 1):
        try:
            content = read_whole(storage, name)
        except OSError as error:
            raise DataError(
                f"{storage.where}/{name}: cannot be read ({error.strerror or error}). Fix: {_LAYOUT}"
            ) from None
        for line, (raw, decoded) in enumerate(_lines(content, f"{storage.where}/{name}"), 1):
            rows.append((len(rows), f"{name}:{line}", *decoded, _digest(raw), split, None))
            targets.append(classes.index(label))
        report(done, len(files))
    others = [(name, at) for at, name in enumerate((name for name in names if name not in files), len(rows))]
    beside = pl.DataFrame(others, schema={"source": pl.String, "row": pl.Int64}, orient="row")
    refused = quarantine.table(beside.with_columns(value=pl.lit("a description of the data")), "unreadable-text")
    targeted = _targets(pl.Series(targets, dtype=pl.Int64), classes, "the names of the files are the classes")
    return LabelledSamples(storage.name, storage.where, _frame(rows), targeted, refused)


def _targets(labels: pl.Series, classes: tuple[str, ...], why: str) -> TargetTable:
    names = pl.Series(classes, dtype=pl.String).gather(labels)
    return TargetTable(Classes, why, classes, labels.to_numpy().astype(np.int64), names, {})


def _lines(content: bytes, where: str) -> Iterator[tuple[bytes, Decoded]]:
    """Yield the bytes and the text of each line. Only a line feed ends a line; a carriage return before it is dropped.

    In UTF-8 one wrong byte refuses one line.
    """
    encoding, mark = encoding_of(content)
    whole = decode(content)
    if whole.rule == "not-text":
        raise DataError(f"{where} is {whole.problem}, not lines of text. Fix: {_LAYOUT}")
    if encoding != "utf-8":
        if whole.text is None:
            raise DataError(f"{where}: {whole.problem}. Fix: save it as UTF-8")
        content, mark = whole.text.encode("utf-8", "surrogatepass"), 0
    lines = content[mark:].split(b"\n")
    at = mark
    for raw in lines[:-1] if not lines[-1] else lines:
        yield raw, decode(raw.removesuffix(b"\r"), offset=at, marked=False)
        at += len(raw) + 1


def _named(files: Sequence[str], where: str) -> tuple[list[str], list[str | None]]:
    """Return the class and the split of each file: rt.neg, rt.pos -> neg, pos; train_pos, test_pos -> pos, pos.

    The class is the part of a name that the others do not share. A part that names a split is not of the class.

    Raises:
        DataError: all are of one class, or only some names have a split.
    """
    parts = _distinct_parts([re.findall(r"[^._-]+[._-]*", name) for name in files])
    places = [[place for place, part in enumerate(name) if _plain(part).casefold() in SPLIT_FOLDERS] for name in parts]
    splits = [
        _plain(name[place[0]]) if place and len(name) > 1 else None for name, place in zip(parts, places, strict=True)
    ]
    others = [
        [*name[: place[0]], *name[place[0] + 1 :]] if place else name for name, place in zip(parts, places, strict=True)
    ]
    terms, rests = {split.casefold() for split in splits if split}, {tuple(map(_plain, name)) for name in others}
    is_unique = "training" not in terms and len(rests) == len(others)
    if terms <= {"dev", "training", "testing"} and (None in splits or is_unique):
        splits = [None] * len(splits)  # classes, as web_dev and data_science
    if any(splits) and None in splits:
        given = next(name for name, split in zip(files, splits, strict=True) if split)
        raise DataError(
            f"{where}: {given!r} names a split, and {files[splits.index(None)]!r} names none. Fix: rename one of them"
        )
    if any(splits):
        parts = _distinct_parts(others)
    labels = [_plain("".join(name)) for name in parts]
    if len(set(labels)) == 1:
        raise DataError(f"{where}: the names of the {len(files)} files give one class, {labels[0]!r}. Fix: {_LAYOUT}")
    if {SPLIT_FOLDERS.get(label.casefold()) for label in labels} in _ONLY_SPLITS:
        raise DataError(
            f"{where}: the names of the files ({', '.join(map(repr, files))}) name splits, and no class. Fix: write "
            "files for each class, such as train_CLASS.txt; or if each line has its class, save a table with the "
            "columns text, label and split"
        )
    return labels, splits


def _distinct_parts(names: Sequence[list[str]]) -> list[list[str]]:
    """Return the parts of each name without those that all names begin or end with."""
    parts = list(names)
    for end in (-1, 0):
        while all(len(each) > 1 for each in parts) and len({_plain(each[end]) for each in parts}) == 1:
            parts = [each[:-1] if end else each[1:] for each in parts]
    return parts


def _plain(part: str) -> str:
    return part.strip("._-")
