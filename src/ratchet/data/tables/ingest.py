"""Ingest of a table: read, type, check, split, encode and pack its rows."""

from dataclasses import replace

import polars as pl

from ratchet.data import overrides, quarantine
from ratchet.data.manifest import Manifest
from ratchet.data.packed_set import IngestTask
from ratchet.data.privacy import without_private
from ratchet.data.set_rules import SetRules
from ratchet.data.sources.image_folder import SPLIT_FOLDERS
from ratchet.data.tables import rules, splits
from ratchet.data.tables.columns import TypedColumn, each, typed_column
from ratchet.data.tables.encode import cleaned, texts_of
from ratchet.data.tables.reading import RawTable, open_table, require, with_notes
from ratchet.data.tables.special_columns import SpecialColumns
from ratchet.data.tables.table_writer import TableColumns, TableWriter
from ratchet.data.tables.targets import read_labels
from ratchet.data.tables.time_splits import gap_in_units
from ratchet.errors import DataError, SettingsError

__all__ = ["ingest_table"]

CHOSEN_BY = {"kind": ("table",)}

_SAMPLE = 2000  # rows of a trial run


def ingest_table(task: IngestTask) -> Manifest:
    """Ingest a table; see `ratchet.data.ingest`."""
    return _Ingest(task, open_table(task.settings, root=task.root, typed=True)).run()


class _Ingest:
    """Ingest of one table."""

    def __init__(self, task: IngestTask, source: RawTable) -> None:
        settings = task.settings
        self.task, self.settings, self.source, self.total = task, settings, source, source.frame.height
        self.row_labels = source.file.row_labels
        labels = settings.label_columns
        if not labels or settings.order_by in labels:
            raise SettingsError(
                f"params.yaml: data.label_column: found [{', '.join(labels)}]; allowed: one or several columns, not "
                f"that of data.order_by ({settings.order_by}). Fix: run `ratchet set data.label_column=NAME`"
            )
        for name in labels:
            require(source, name, "data.label_column")
        for name in settings.columns:
            require(source, name, "data.columns")
            self._check_type(name)
        self.frame = without_private(source.frame, settings, needed=settings.label_columns)

    def _check_type(self, name: str) -> None:
        """Check that a column with a type in data.columns can be a feature."""
        others = {"data.label_column": self.settings.label_columns, "data.drop": self.settings.drop}
        for setting, names in others.items():
            if name in names:
                raise SettingsError(
                    f"params.yaml: data.columns: found {name}, which {setting} names too; allowed: columns to learn "
                    "from. Fix: take it out of data.columns"
                    + ("; data.problem sets how the label is read" if setting == "data.label_column" else "")
                )

    def run(self) -> Manifest:
        """Write the packed set and the quarantine table."""
        self.task.report(0, self.total)
        content, bad, used = self._content()
        self.source, self.frame = self.source.without_rows(), self.frame.clear()  # the texts of all cells
        writer = TableWriter(self.task, self.source, content, bad, used)
        del content
        self._check_set(writer)
        self.task.report(self.total, self.total)
        return writer.write()

    def _content(self) -> tuple[TableColumns, pl.DataFrame, pl.DataFrame]:
        """Return the good rows, the quarantine table, and the releases that let rows in."""
        frame, rows, bad = self._rows()
        labels = read_labels(frame, self.settings, self.source.where)
        special, faults = self._special(frame)
        split_by_rows = special.given is None and special.groups is None and special.order is None
        roles = () if split_by_rows else ("split",)
        labels = with_notes(labels, frame.drop(self.settings.label_columns), roles, self.source.file.notes)
        taken = {*self.settings.label_columns, *(column.name for column in special.columns)}
        features = each(self._typed, [frame[name] for name in frame.columns if name not in taken])
        if not any(column.is_feature for column in features):
            reasons = ", ".join(f"{column.name} ({column.why})" for column in [*features, *special.columns])
            raise DataError(
                f"{self.source.where} has no column to learn from, beside the label: {reasons or 'no other column'}. "
                "Fix: set the type of a column in data.columns"
            )
        if self.settings.refuse_personal:
            named = [self._role(texts_of(frame[name], name), "label") for name in self.settings.label_columns]
            faults |= rules.personal([*features, *special.columns, *named])
        refused = rules.refused_rows(
            features, labels, faults, rows=rows, file=self.source.file, texts=lambda: self.source.texts(frame, rows)
        )
        bad, used = overrides.apply(pl.concat([bad, refused]), self.task.released)
        good = ~rows.is_in(bad["row"].unique().implode())
        notes = [note for column in features for note in column.notes if column.faults]
        self.task.check_quarantine(bad, total=self.total, notes=[*labels.fault_notes, *notes])
        return TableColumns(rows, features, special, labels).filter(good), bad, used

    def _rows(self) -> tuple[pl.DataFrame, pl.Series, pl.DataFrame]:
        """Return the good records, or a sample of them, their numbers, and the quarantine rows of the others."""
        frame, rows, bad = self.source.good_rows(self.frame)
        if self.task.sample and frame.height > _SAMPLE:
            by_label = frame[self.settings.label_columns[0]].arg_sort()
            chosen = by_label.gather_every(frame.height // _SAMPLE + 1).sort()
            frame, rows = frame[chosen], rows.gather(chosen)
        self.total = len(rows) + quarantine.samples(bad)
        if frame.is_empty():
            self.task.check_quarantine(bad, total=self.total)
        return frame, rows, bad

    def _typed(self, values: pl.Series) -> TypedColumn:
        chosen = {*self.settings.columns, self.settings.order_by}
        if values.name in self.row_labels and values.name not in chosen:
            return self._role(values.cast(pl.String), "index of pandas")
        column = typed_column(
            values,
            wanted=self.settings.columns.get(values.name),
            missing=self.settings.missing,
            where=self.source.where,
            is_csv=self.source.file.cells is not None,
        )
        if values.name == self.settings.split_column:  # it gives no splits
            texts = texts_of(values, values.name).str.strip_chars().str.to_lowercase()
            if texts.is_in(list(SPLIT_FOLDERS)).any():
                note = "split: a column like others, as most values are no splits. If it gives the splits, correct it"
                column = replace(column, notes=(*column.notes, note))
        return column

    def _special(self, frame: pl.DataFrame) -> tuple[SpecialColumns, rules.Faults]:
        """Return split, group and order of the rows, and the rows where they are missing or wrong."""
        settings = self.settings
        columns: list[TypedColumn] = []
        faults: rules.Faults = {}
        given = self._texts(frame, "split_column")
        if given is not None:
            meant = given.str.to_lowercase().replace_strict(SPLIT_FOLDERS, default=None, return_dtype=pl.String)
            is_default = settings.split_column == type(settings).model_fields["split_column"].default
            names = set(meant.drop_nulls())
            if is_default and meant.count() <= 0.5 * given.count() and not ("train" in names and len(names) > 1):
                given = None  # a feature that happens to have this name
            else:
                faults["unknown-split", settings.split_column] = (meant.is_null() & given.is_not_null()).arg_true()
                columns.append(self._role(given, "data.split_column"))
                given = meant
        groups = self._texts(frame, "group_column")
        if groups is not None:
            columns.append(self._role(groups, "data.group_column"))
        splits.check_order(settings, given=given is not None)
        order = self._order(frame) if settings.order_by != "none" else None
        if order is not None:
            faults |= {(rule, order.name): places for rule, places in order.faults.items()}
            faults["no-order", order.name] = (
                order.texts.is_null() | (order.values.is_null() & ~_known(order))
            ).arg_true()
            if settings.order_by not in settings.columns:
                columns.append(replace(order, type="ignored", why="data.order_by"))
        if order is None:
            return SpecialColumns(given, groups, None, tuple(columns)), faults
        return SpecialColumns(given, groups, order.values, tuple(columns), gap_in_units(settings, order)), faults

    def _texts(self, frame: pl.DataFrame, setting: str) -> pl.Series | None:
        """Return the texts of the column that a setting names; None if there is none and the setting is the default."""
        name = getattr(self.settings, setting)
        if name in frame.columns and name not in self.settings.label_columns:
            return cleaned(texts_of(frame[name], name), self.settings.missing)
        if name != type(self.settings).model_fields[setting].default:
            require(self.source, name, f"data.{setting}")
            raise SettingsError(
                f"params.yaml: data.{setting}: found {name}, which is dropped or a label. Fix: change it"
            )
        return None

    def _role(self, values: pl.Series, setting: str) -> TypedColumn:
        return TypedColumn(values.name, "ignored", values, values, setting, values.drop_nulls().n_unique())

    def _order(self, frame: pl.DataFrame) -> TypedColumn:
        name = self.settings.order_by
        require(self.source, name, "data.order_by")
        if name not in frame.columns:
            raise SettingsError(
                f"params.yaml: data.order_by: found {name}, which data.drop removes. Fix: take it out of data.drop"
            )
        column = self._typed(frame[name])
        if column.values.dtype != pl.Float64:
            raise DataError(
                f"{self.source.where}: data.order_by: column {name!r} has no numbers or dates ({column.why}, such as "
                f"{column.texts[0]!r}). Fix: set data.order_by to another column, or write dates as YYYY-MM-DD"
            )
        return column

    def _check_set(self, writer: TableWriter) -> None:
        bad = writer.bad
        self.task.check_quarantine(bad, total=self.total)
        empty = [split for split, rows in writer.sizes.items() if not rows]
        copies = len(writer.repeats)
        distinct = writer.index.height - copies
        special, settings = writer.special, self.settings
        drawn = special.given is None and min(settings.validation_fraction, settings.test_fraction) > 0
        if empty and drawn and copies >= distinct and settings.order_by == "none":
            raise DataError(
                f"{self.source.where} has only {distinct} different rows, and equal rows share a split, so split "
                f"{empty[0]} is empty. Fix: add a column {self.settings.split_column!r} with train, validation or test"
            )
        order = special.order
        if empty and drawn and order is not None and order.n_unique() < len(order):
            raise DataError(
                f"{self.source.where}: split {empty[0]} is empty, because rows with equal {self.settings.order_by!r} "
                f"share a split, and it has {order.n_unique():,} different values. Fix: set data.order_by to another "
                "column, or to none"
            )
        settings = settings.model_copy(update={"min_per_class": 1}) if self.task.sample else settings
        groups = special.groups
        index = writer.index if groups is None else writer.index.with_columns(group=groups)
        SetRules(settings, writer.classes, self.task.quarantine).check_sizes(index)


def _known(order: TypedColumn) -> pl.Series:
    """Return whether a missing value of the column has another fault already."""
    known = pl.Series([False]).new_from_index(0, len(order.values))
    for places in order.faults.values():
        known = known.scatter(places, True)
    return known
