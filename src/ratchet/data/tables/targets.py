"""The problem of a table, and the target of each row."""

import math
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ratchet.data.checks.far_values import moments
from ratchet.data.checks.label_spelling import check_known, in_order, look_alikes, skeleton
from ratchet.data.sources.table_file import EXACT
from ratchet.data.tables.columns import form_notes
from ratchet.data.tables.digests import by_text
from ratchet.data.tables.encode import MISSING_TEXTS, cleaned, known_texts, plain_values, texts_of, without
from ratchet.data.tables.notes import far_notes, mixed_notes, point_notes, yaml_list
from ratchet.data.tables.number_formats import PLAIN, Ambiguous, number_form, numbers
from ratchet.errors import DataError
from ratchet.problems import PROBLEMS, Classes, Labels, Numbers, Target
from ratchet.settings.model import DataSettings

__all__ = ["TargetTable", "read_labels"]

_MAX_INTEGER_CLASSES = 20
_LEAST_OF_INTEGER = 5  # rows of each integer that is a class
_ID_SHARE = 0.5  # share of different labels from which they are no classes
_SEPARATORS = ("|", ";", ",", "/")  # of several labels in a cell
_LIST_SHARE = 0.05  # of the rows that have several labels
_LIST_REUSE = 1.2  # texts in which a label of a list occurs, on average
_NESTED_LABELS = (  # records and lists inside a list, or one record
    r"""^[\[(](?:.*,\s*)?\{|^\[(?:.*,\s*)?\[|^\(\s*[\[(]|^\{\s*(?:"[^"]*"|'[^']*')\s*:|^\{[^,|"']*:\s|^\[\s*\(\s*["']"""
)
_QUOTES = ("'", '"')
_QUOTED = r""""[^"]*"|'[^']*'"""
_FLAGS = {"0", "1", "0.0", "1.0", "0.", "1.", "True", "False", "true", "false"}
_FLAG = r"""[^\s\[\](){}|;,/"']+"""
_TRUE = {"1": 1.0, "0": 0.0, "true": 1.0, "false": 0.0, "yes": 1.0, "no": 0.0}
_LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class TargetTable:
    """The targets of all rows.

    Attributes:
        problem: the problem, and why it is this one; no reason: there was no choice.
        names: classes, labels or target columns.
        values: int64 (n,) of classes, float32 (n, names) of the others; undefined in rows with faults.
        shown: the target of each row as a text.
        faults: rows without a valid target, by rule.
        notes: what was changed to read the labels.
        fault_notes: those of the notes that are about rows with faults.
    """

    problem: type[Target]
    why: str
    names: tuple[str, ...]
    values: NDArray[np.int64] | NDArray[np.float32]
    shown: pl.Series
    faults: Mapping[str, pl.Series]
    notes: tuple[str, ...] = field(default=())
    fault_notes: tuple[str, ...] = field(default=())

    def take(self, places: NDArray[np.int64]) -> "TargetTable":
        """Return the targets of the rows at these places."""
        return replace(self, values=self.values[places], shown=self.shown[places], faults={})

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes; empty if the targets are none."""
        return self.names if self.problem.is_indexed else ()

    def described(self, train: slice) -> dict[str, object]:
        """Return the problem, and statistics of the training rows' targets; nothing if there was no choice."""
        if not self.why:
            return {}
        problem = {"chosen": self.problem.problem, "why": self.why, "notes": list(self.notes)}
        return {"problem": problem, "targets": self.problem.statistics(self.names, self.values[train])}

    def target(self, train: slice) -> Target:
        """Return the description of the target; statistics are those of the training rows."""
        return self.problem.of_values(self.names, self.values[train], moments)


def read_labels(
    frame: pl.DataFrame, settings: DataSettings, where: str, *, whole_are_classes: bool = False
) -> TargetTable:
    """Return the targets of all rows.

    Args:
        whole_are_classes: plain whole numbers are classes, however many.

    Raises:
        DataError: the label columns do not fit data.problem, or allow none.
    """
    if settings.classes != "auto":  # labels have the form NFC
        classes = tuple(unicodedata.normalize("NFC", name.strip()) for name in settings.classes)
        settings = settings.model_copy(update={"classes": classes})
    columns = [_Label(frame[name], settings, where) for name in settings.label_columns]
    problem, why = _problem(columns, settings, where, whole_are_classes)
    return problem.choose(classes=_classes, labels=_labels, numbers=_numbers)(columns, settings, where, why)


class _Label:
    """A label column: its texts, and its numbers where a text is one."""

    def __init__(self, values: pl.Series, settings: DataSettings, where: str) -> None:
        if isinstance(values.dtype, pl.Date | pl.Datetime):  # as in CSV files
            values = values.dt.to_string("iso").str.replace(r" 00:00:00\.0+$|\.0+([+-]\d\d:\d\d)?$", "${1}")
        self.name, self.where, self.cells, self.missing = values.name, where, values, settings.missing
        missing, self.form = settings.missing, ""
        self.no_label = {*MISSING_TEXTS, *missing}.difference(() if settings.classes == "auto" else settings.classes)
        self.unlabelled: Counter[str] = Counter()  # texts such as None, which mean no label
        try:
            typed = plain_values(values, values.name)
            self.is_boolean = values.dtype == pl.Boolean
            distinct, codes = by_text(values) if typed is None else (values, None)
            cells = texts_of(distinct, values.name).str.strip_chars()
            texts = cleaned(cells, missing).alias("value")
            if settings.classes != "auto":  # a class may be called None
                is_class = cells.is_in(list(settings.classes)).fill_null(False)
                texts = pl.select(pl.when(is_class).then(cells).otherwise(texts)).to_series().alias("value")
            elif typed is None:
                is_lost = texts.is_null() & (cells.str.len_chars() > 0) & ~cells.is_in(list(missing))
                lost = cells.filter(is_lost) if codes is None else cells.gather(codes.filter(is_lost.gather(codes)))
                self.unlabelled = Counter(dict(lost.alias("value").value_counts(sort=True).rows()))
            if typed is None:
                present = texts.drop_nulls()
                if codes is not None and present.str.contains(r"\d").any():  # the commonest form is that of most rows
                    present = texts.gather(codes).drop_nulls()
                self.form = number_form(present).form if len(present) else PLAIN
                typed = numbers(texts, self.form).fill_nan(None)
            texts, typed = known_texts(texts, typed, missing), without(typed, missing, distinct)
            self.texts, typed = (texts, typed) if codes is None else (texts.gather(codes), typed.gather(codes))
            self.present = self.texts.drop_nulls()
        except Ambiguous as error:
            raise DataError(f"{where}: column {values.name!r}: {error}") from None
        except DataError as error:
            raise DataError(f"{where}: {error}") from None
        if not len(self.present):
            raise self._empty()
        self.numbers = typed.alias("value")
        self.counts = _counts(self.present) if codes is None else _counts(texts, codes)

    def _empty(self) -> DataError:
        names = self.unlabelled_names
        has = f"has only {', '.join(map(repr, names))}, which means no label" if names else "is empty"
        fix = f'; or, if these are classes, ratchet set "data.classes=[{yaml_list(names)}]"' if names else ""
        return DataError(f"{self.where}: label column {self.name!r} {has}. Fix: set data.label_column{fix}")

    @property
    def unlabelled_names(self) -> list[str]:
        return sorted(self.unlabelled, key=lambda name: (-self.unlabelled[name], name))

    @property
    def numeric_share(self) -> float:
        return (len(self.numbers) - self.numbers.null_count()) / len(self.present)

    @property
    def whole_counts(self) -> pl.Series:
        """Rows of each different number; empty if not all are whole."""
        known = self.numbers.drop_nulls()
        if self.is_boolean or known.is_empty() or not (known == known.floor()).all():
            return pl.Series(dtype=pl.UInt32)
        exact = self.texts if known.abs().max() >= EXACT else self.numbers  # type: ignore[operator]
        return exact.filter(self.numbers.is_not_null()).alias("value").value_counts()["count"]

    def odd_notes(self, limit: float, further: str = "") -> tuple[str, ...]:
        """Return a note about texts in a column of numbers. `further` is a setting that its fix needs too."""
        odd = self.texts.filter(self.numbers.is_null())
        bad = self.numbers.null_count() / len(self.texts)
        needed = f"{further} data.max_bad_fraction={math.ceil(100 * bad + 1) / 100:g}" if bad > limit else further
        fix = f"To leave their rows out: `ratchet set {needed.strip()}`" if needed else "Their rows are left out"
        return mixed_notes(self.name, "numbers", odd.drop_nulls(), len(self.present), lambda _: fix)

    @property
    def is_binary(self) -> bool:
        """Whether all numbers of the column are 0 or 1, and most labels mean one of them. Other texts are faults."""
        binary, known = self.binary(), self.numbers.drop_nulls()
        return bool(((known == 0) | (known == 1)).all()) and binary.count() > 0.5 * len(self.present)

    def far_notes(self) -> tuple[str, ...]:
        """Return notes about labels that are far from all others, or whose points can be between thousands."""
        points = point_notes(self.name, self.texts.filter(self.numbers.is_not_null())) if self.form else ()
        effect = " Training takes them as the nearest of the others, and metrics as they are."
        known = pl.select(pl.when(self.numbers.abs() <= _LARGEST).then(self.numbers)).to_series()
        return points + far_notes(self.name, self.cells, known, self.missing, effect=effect)

    def binary(self) -> pl.Series:
        """Return 0 or 1 for each text that means one, Float64; null for others."""
        known = {text: _TRUE[text.lower()] for text in self.counts if text.lower() in _TRUE}
        known |= {text: float(text) for text in self.counts if text in ("1.0", "0.0")}
        return self.texts.replace_strict(known, default=None, return_dtype=pl.Float64)


def _counts(texts: pl.Series, codes: pl.Series | None = None) -> dict[str, int]:
    """Return how often each text occurs; `codes`: the place of each row's text."""
    if codes is None:
        return dict(texts.drop_nulls().alias("value").value_counts().rows())
    counts = np.bincount(codes.drop_nulls().to_numpy(), minlength=len(texts))
    table = pl.DataFrame({"value": texts, "count": counts}).drop_nulls()
    return dict(table.group_by("value").agg(pl.col("count").sum()).rows())


def _problem(
    columns: Sequence[_Label], settings: DataSettings, where: str, whole_are_classes: bool
) -> tuple[type[Target], str]:
    if settings.problem != "auto":
        problem = PROBLEMS[settings.problem]
        if problem.is_indexed and len(columns) > 1:
            raise DataError(
                f"{where}: data.problem is classification with {len(columns)} label columns. "
                "Fix: name one column in data.label_column, or set data.problem to multi-label"
            )
        return problem, "data.problem"
    if len(columns) > 1:
        return _problem_of_several(columns, where)
    (column,) = columns
    if settings.classes != "auto":
        return Classes, "data.classes"
    counts = column.whole_counts
    whole, least = len(counts), int(counts.min() or 0)  # type: ignore[arg-type]
    is_class = whole == 2 or (whole <= _MAX_INTEGER_CLASSES and least >= _LEAST_OF_INTEGER)
    is_plain = whole_are_classes and bool(whole) and column.form in ("", PLAIN)
    is_class |= is_plain and least >= settings.min_per_class
    if column.is_boolean or column.numeric_share < 0.9:
        _check_single(column, settings, has_numbers=not is_class and 0.5 < column.numeric_share < 0.9)
        return Classes, f"texts in {column.name!r}"
    if is_plain and not is_class:
        raise _two_readings(
            column,
            settings,
            f"{column.name!r} has {whole} different whole numbers, some of them in fewer than {settings.min_per_class} "
            "rows. Fix: if it is a number to predict, `ratchet set data.problem=regression`",
        )
    if is_class:
        return Classes, f"{whole} different whole numbers in {column.name!r}"
    return Numbers, f"{column.numbers.drop_nulls().n_unique():,} different numbers in {column.name!r}"


def _problem_of_several(columns: Sequence[_Label], where: str) -> tuple[type[Target], str]:
    if all(column.is_binary for column in columns):
        return Labels, f"{len(columns)} label columns with 0 and 1"
    if all(column.numeric_share > 0.5 for column in columns):
        return Numbers, f"{len(columns)} label columns with numbers"
    odd = min((column for column in columns if column.numeric_share <= 0.5), key=lambda column: column.is_binary)
    raise DataError(
        f"{where}: label column {odd.name!r} has texts such as {odd.present[0]!r}, and several label columns need "
        f"numbers, or 0 and 1. Fix: write them in {odd.name!r}, or set data.label_column to other columns"
    )


def _two_readings(column: _Label, settings: DataSettings, problem: str) -> DataError:
    """Return an error with the command for classes too, if so many texts can be classes."""
    if _are_ids(column.counts, column):
        return DataError(f"{column.where}: label column {problem}")
    rarest = min(column.counts, key=column.counts.__getitem__)
    least = " data.min_per_class=1" if column.counts[rarest] < settings.min_per_class else ""
    more = f", and add a row to each class that has only one, such as {rarest!r}" if column.counts[rarest] == 1 else ""
    return DataError(
        f"{column.where}: label column {problem}; or, if each text is one class, "
        f"`ratchet set data.problem=classification{least}`{more}"
    )


def _are_ids(names: Collection[str], column: _Label) -> bool:
    return len(names) > max(_FEW, _ID_SHARE * len(column.present))


def _check_single(column: _Label, settings: DataSettings, *, has_numbers: bool) -> None:
    """Check that the texts of a label column are no lists of labels, and most of them no numbers to predict."""
    separator = _list_separator(column.counts)
    if separator is not None:
        _check_lists(column)
        lists = [text for text in column.counts if len(_labels_in(text, separator)) > 1]
        example = min(lists or column.counts)
        problem = (
            f"{column.name!r} has several labels in a cell, separated by {separator!r}, such as {example!r}. Fix: "
            "`ratchet set data.problem=multi-label`"
        )
    elif has_numbers:
        (problem,) = column.odd_notes(settings.max_bad_fraction, "data.problem=regression")
        problem = problem.replace("To leave", "Fix: to leave")
    else:
        return
    raise _two_readings(column, settings, problem)


def _check_lists(column: _Label) -> None:
    """Check that lists in cells have names of labels: no records, no lists, and not 0 and 1 for each label.

    Raises:
        DataError: naming a cell.
    """
    unquoted = {text: re.sub(_QUOTED, "''", text) if re.match(r"\[\s*[\"']", text) else text for text in column.counts}
    nested = min((text for text, rest in unquoted.items() if re.search(_NESTED_LABELS, rest)), default=None)
    if nested is not None:
        raise DataError(
            f"{column.where}: label column {column.name!r} has lists or records inside a cell, such as "
            f"{nested[:60]!r}. Fix: write only the names of the labels, separated by |"
        )
    lists = [re.findall(_FLAG, text) for text in column.counts]
    flags = all(_FLAGS.issuperset(parts) for parts in lists) and len({len(parts) for parts in lists}) == 1
    if flags and len(lists[0]) > 1:  # else each row has both labels
        raise DataError(
            f"{column.where}: label column {column.name!r} has 0 and 1 for each label in one cell, such as "
            f"{min(column.counts)!r}. Fix: write them in a column of each label, and list these in data.label_column"
        )


def _check_unlabelled(column: _Label, classes: Sequence[str], limit: float | None) -> tuple[str, ...]:
    """Return a note about labels such as None and NA, which mean no label. `limit`: None: such rows are samples.

    Raises:
        DataError: too many rows have such a label, so it may be a class.
    """
    count = sum(column.unlabelled.values())
    if not count:
        return ()
    names = ", ".join(map(repr, column.unlabelled_names))
    listed = yaml_list(sorted({*classes, *column.unlabelled}, key=in_order))
    fix = f'"data.classes=[{listed}]"' if len(classes) <= _MAX_LISTED else "data.classes to the list of all classes"
    text = f"{count:,} of {len(column.texts):,} labels are {names}, which means no label"
    if limit is None or count <= limit * len(column.texts):
        effect, noun = ("their rows are left out", "class") if limit is not None else ("they do not count", "label")
        return (f"{column.name}: {text}: {effect}. If it is a {noun}: ratchet set {fix}",)
    raise DataError(
        f"{column.where}: label column {column.name!r}: {text}, and data.max_bad_fraction allows {limit:.1%} rows "
        f"without one. Fix: if it is a class, ratchet set {fix}; if not, remove these rows, or raise "
        "data.max_bad_fraction"
    )


def _check_varied(name: str, values: NDArray[np.float64], where: str) -> None:
    """Check that a number to predict has at least two values as float32."""
    with np.errstate(over="ignore"):
        known = values.astype(np.float32)
    known = known[np.isfinite(known)]
    if len(known) and (known == known[0]).all():
        raise DataError(
            f"{where}: label column {name!r} has only the value {known[0]:g}, to the 7 digits of float32, so there is "
            "nothing to predict. Fix: set data.label_column, or subtract or scale the numbers before"
        )


def _classes(columns: Sequence[_Label], settings: DataSettings, where: str, why: str) -> TargetTable:
    (column,) = columns
    wanted = None if settings.classes == "auto" else settings.classes
    texts, notes = _plain_classes(column, wanted)
    counts = column.counts if texts is column.texts else _counts(texts)
    if wanted is not None:
        classes = tuple(wanted)
    else:
        if _are_ids(counts, column):
            raise DataError(
                f"{where}: label column {column.name!r} has {len(counts):,} different values in "
                f"{len(column.present):,} rows, so they are no classes. Fix: set data.label_column to another column"
                ", or list them in data.classes"
                + (", or data.problem to regression" if column.numeric_share > 0.5 else "")
                + "".join(f". {note}" for note in form_notes(column.name, column.present))
            )
        classes = tuple(sorted(set(counts) - set(look_alikes(counts)), key=in_order))
    if len(classes) < 2:
        raise DataError(
            f"{where}: label column {column.name!r} has only one class ({classes[0]!r}), but at least two are needed. "
            "Fix: add rows of another class, or set data.label_column"
        )
    notes += _check_unlabelled(column, classes, settings.max_bad_fraction)
    if settings.problem == settings.classes == "auto":
        has_numbers = 0.5 < column.numeric_share < 1
        notes += column.odd_notes(settings.max_bad_fraction, "data.problem=regression") if has_numbers else ()
        notes += form_notes(column.name, column.present)
    notes += _spellings(column.name, [name for name in classes if name in counts])
    check_known(counts, settings.classes, f"{where}: label column {column.name!r}")
    labels = texts.cast(pl.Enum(classes), strict=False).to_physical().cast(pl.Int64)
    faults = {
        "no-label": texts.is_null().arg_true(),
        "unknown-label": (labels.is_null() & texts.is_not_null()).arg_true(),
    }
    values = labels.fill_null(0).to_numpy()
    return TargetTable(Classes, why, classes, values, texts, faults, notes)


_FEW = 20
_MAX_LISTED = 30  # classes that a message lists


def _plain_classes(column: _Label, wanted: Sequence[str] | None) -> tuple[pl.Series, tuple[str, ...]]:
    """Return labels without the final point that all have, or that another spelling lacks, and without ".0".

    Labels with a unit, such as 2D, and those of data.classes, `wanted`, stay as they are.
    """
    own = set(wanted or ())
    is_plain = column.form in ("", PLAIN) and not column.is_boolean
    if column.numeric_share == 1.0 and is_plain and not column.present.str.contains(r"^0\d").any():
        read = pl.DataFrame({"text": column.texts, "number": texts_of(column.numbers, column.name)}).unique("text")
        changed = {
            text: number
            for text, number in read.drop_nulls().rows()
            if text not in own and not text.removeprefix("-").isdecimal()
        }
        changed = {text: number for text, number in changed.items() if text != number}
        note = f"{column.name}: whole numbers are classes without decimal point"
        return column.texts.replace(changed), (note,) if changed else ()
    pointed = {name: name[:-1].rstrip() for name in column.counts if name.endswith(".") and len(name) > 1}
    all_pointed = len(pointed) == len(column.counts)
    changed = {name: plain for name, plain in pointed.items() if all_pointed or plain in column.counts}
    changed = {name: plain for name, plain in changed.items() if name not in own and (not own or plain in own)}
    if not changed:
        return column.texts, ()
    return column.texts.replace(changed), (f"{column.name}: the final point is removed, as in {min(changed)!r}",)


def _spellings(column: str, classes: Sequence[str], noun: str = "classes") -> tuple[str, ...]:
    """Return a note about each group of classes or labels that look alike, such as yes and Yes."""
    alike: dict[str, list[str]] = defaultdict(list)
    for name in classes:
        alike[skeleton(name)].append(name)
    return tuple(
        f"{column}: {' and '.join(map(repr, names))} differ only in spelling, and they are {len(names)} {noun}. To "
        "make them one, write them alike in the file"
        for names in alike.values()
        if len(names) > 1
    )


def _numbers(columns: Sequence[_Label], settings: DataSettings, where: str, why: str) -> TargetTable:
    for column in columns:
        if column.numeric_share <= 0.5:
            raise DataError(
                f"{where}: label column {column.name!r} has texts such as {column.present[0]!r}, and regression needs "
                "numbers. Fix: write numbers, such as days for dates; or set data.problem to classification, or "
                "data.label_column to another column"
            )
        _check_varied(column.name, column.numbers.drop_nulls().to_numpy(), where)
    missing, odd, infinite = (pl.Series([False]).new_from_index(0, len(columns[0].texts)) for _ in range(3))
    for column in columns:
        too_large = (column.numbers.abs() > _LARGEST).fill_null(False)
        missing |= column.texts.is_null()
        odd |= column.numbers.is_null() & column.texts.is_not_null()
        infinite |= too_large
    bad = (missing | odd | infinite).to_numpy()
    values = np.stack([column.numbers.fill_null(0.0).to_numpy() for column in columns], axis=1)
    values = np.where(bad[:, None], 0.0, values).astype(np.float32)
    faults = {"no-label": missing.arg_true(), "label-not-a-number": (odd & ~missing).arg_true()}
    faults["infinite-label"] = (infinite & ~missing & ~odd).arg_true()
    names = tuple(column.name for column in columns)
    odd_notes = tuple(note for column in columns for note in column.odd_notes(settings.max_bad_fraction))
    notes = [note for column in columns for note in column.far_notes()]
    notes += [
        f"{each.name}: labels written as {each.form} are numbers" for each in columns if each.form not in ("", PLAIN)
    ]
    return TargetTable(Numbers, why, names, values, _joined(columns), faults, (*odd_notes, *notes), odd_notes)


def _labels(columns: Sequence[_Label], settings: DataSettings, where: str, why: str) -> TargetTable:
    if len(columns) == 1:
        return _listed(columns[0], where, why)
    binary = [column.binary() for column in columns]
    for column, flags in zip(columns, binary, strict=True):
        if flags.null_count() > 0.5 * len(flags):
            empty, has = column.texts.null_count(), f"values such as {column.present[0]!r}"
            fix = f"write them in {column.name!r}"
            if 2 * empty >= flags.null_count():
                has, fix = f"no value in {empty:,} of {len(flags):,} rows", "write 0 there, if that means no"
            raise DataError(
                f"{where}: label column {column.name!r} has {has}, and multi-label needs 0 and 1. Fix: {fix}, or set "
                "data.label_column to other columns"
            )
    missing, odd = (pl.Series([False]).new_from_index(0, len(columns[0].texts)) for _ in range(2))
    for column, flags in zip(columns, binary, strict=True):
        missing |= column.texts.is_null()
        odd |= flags.is_null() & column.texts.is_not_null()
    values = np.stack([flags.fill_null(0.0).to_numpy() for flags in binary], axis=1).astype(np.float32)
    faults = {"no-label": missing.arg_true(), "unknown-label": (odd & ~missing).arg_true()}
    names = tuple(column.name for column in columns)
    return TargetTable(Labels, why, names, values, _joined(columns), faults)


def _listed(column: _Label, where: str, why: str) -> TargetTable:
    """Return the labels of a column with texts such as "red|round"; an empty cell has no label."""
    _check_lists(column)
    separator = _list_separator(column.counts) or next(
        (mark for mark in _SEPARATORS[:3] if any(mark in text for text in column.counts)), _SEPARATORS[0]
    )
    split = {text: _labels_in(text, separator) for text in column.counts}
    for text, parts in split.items():
        column.unlabelled.update(dict.fromkeys(column.no_label.intersection(parts), column.counts[text]))
        split[text] = [part for part in parts if part not in column.no_label]
    lists = pl.Series([split.get(text, []) for text in column.texts], dtype=pl.List(pl.String))
    names = tuple(sorted(name for name in lists.explode().unique() if name))
    if len(names) < 2:
        raise DataError(
            f"{where}: label column {column.name!r} has {len(names)} different labels, but at least two are needed. "
            "Fix: separate the labels of a row by |"
        )
    if _are_ids(names, column):
        raise DataError(
            f"{where}: label column {column.name!r} has {len(names):,} different labels in {len(column.present):,} "
            "rows. Fix: separate the labels of a row by |, or set data.label_column to another column"
        )
    values = np.stack([lists.list.contains(name).to_numpy() for name in names], axis=1).astype(np.float32)
    shown = ", ".join(names[:_FEW]) + (", ..." if len(names) > _FEW else "")
    note = f"{column.name}: labels are separated by {separator!r}: {shown}"
    if all(len(parts) < 2 for parts in split.values()):
        note = (
            f"{column.name}: no row has two labels ({', '.join(map(repr, names[:_FEW]))}, ...). If a cell has several, "
            f"separate them by {' or '.join(_SEPARATORS)}"
        )
    notes = (note, *_spellings(column.name, names, "labels"), *_check_unlabelled(column, names, None))
    return TargetTable(Labels, why, names, values, column.texts.fill_null(""), {}, notes)


def _joined(columns: Sequence[_Label]) -> pl.Series:
    frame = pl.DataFrame([column.texts.alias(str(place)) for place, column in enumerate(columns)])
    return frame.select(pl.concat_str(pl.all().fill_null(""), separator="|")).to_series()


def _list_separator(counts: Mapping[str, int]) -> str | None:
    """Return the separator if texts are lists of labels; None: each is one label.

    Labels of lists occur in several texts, and a list may have any length or order. "Washington, DC" and "animal/cat"
    have one length, and each part its own place.
    """
    if all(map(_is_list, counts)):
        return ","
    for separator in _SEPARATORS:
        lists = {text: _labels_in(text, separator) for text in counts}
        several = {text: parts for text, parts in lists.items() if len(parts) > 1}
        if sum(counts[text] for text in several) < _LIST_SHARE * sum(counts.values()) or not several:
            continue
        places: dict[str, set[int]] = defaultdict(set)
        for parts in lists.values():
            for place, part in enumerate(parts):
                places[part].add(place)
        uses = sum(len(set(parts)) for parts in lists.values())
        lengths = {len(parts) for parts in lists.values()}
        moves = sum(len(seen) > 1 for seen in places.values()) >= 0.3 * len(places)
        is_date = separator == "/" and _are_digits(places)
        if uses >= _LIST_REUSE * len(places) and (len(lengths) > 1 or moves) and not is_date:
            return separator
    return None


def _is_list(text: str) -> bool:
    """Return whether a text is a list of Python or JSON with texts, or an empty one."""
    return text == "[]" or (text[:1] == "[" and text[-1:] == "]" and text[1:2] in _QUOTES)


def _labels_in(text: str, separator: str) -> list[str]:
    """Return the labels of a cell, without the brackets and quotes of a list. A separator inside quotes is none."""
    text = _unwrapped(text)
    if text.startswith(_QUOTES):
        end = rf"(?=\s*(?:{re.escape(separator)}|$))"
        parts = re.findall(rf"""(?:"[^"]*"{end}|'[^']*'{end}|[^{re.escape(separator)}])+""", text)
    else:
        parts = text.split(separator)
    labels = (_unwrapped(part.strip()).strip("'\"").strip() for part in parts)
    return [label for label in labels if label]


def _unwrapped(text: str) -> str:
    """Return a text without brackets, if they are around all of it."""
    first, last, depth = text[:1], text[-1:], 0
    if first + last not in ("[]", "{}", "()"):
        return text
    for mark in text[:-1] if last in text[:-1] else "":
        depth += (mark == first) - (mark == last)
        if not depth:
            return text
    return text[1:-1]


def _are_digits(texts: Iterable[str]) -> bool:
    return all(text.replace(".", "").isdigit() for text in texts)
