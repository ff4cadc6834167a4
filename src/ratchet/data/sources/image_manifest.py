"""Images listed in a table: a CSV, JSON or Parquet file beside them with a path and a label in each row.

A label is a class, one or several numbers, or several labels at once, as in tables. A row may also have a split and a
group. All further columns are copied to the index.
"""

import posixpath
import unicodedata
from collections.abc import Mapping

import polars as pl

from ratchet.data import quarantine
from ratchet.data.checks.exact_duplicates import split_rank
from ratchet.data.image_rules import FACTS
from ratchet.data.listing_rules import check_table
from ratchet.data.packed_set import LABEL_PLACE
from ratchet.data.privacy import without_private
from ratchet.data.reading.storage import Storage, read_whole
from ratchet.data.sample_table import optional_columns
from ratchet.data.sources import LISTING, listing
from ratchet.data.sources.image_folder import SPLIT_FOLDERS
from ratchet.data.sources.table_file import (
    MISSING,
    TableFile,
    check_single_values,
    column_names,
    read_table,
    require_column,
    with_label_lists,
)
from ratchet.data.split import SplitName
from ratchet.data.system_files import Ignored
from ratchet.data.tables.reading import with_notes
from ratchet.data.tables.targets import TargetTable, read_labels
from ratchet.errors import DataError, SettingsError
from ratchet.settings.model import DataSettings

__all__ = ["ImageManifest"]

_RESERVED = frozenset(
    {
        *LISTING, *FACTS, "source", "class", "place", "at", "packed_at", "claimed", "agrees", "side", "area", "aspect",
        "path", "normal", "assigned", "there", "named", "inside", "divided", LABEL_PLACE,
    }
)  # fmt: skip
"""Names of columns that the index or ingest itself uses."""


class ImageManifest:
    """The images that file `settings.manifest` in `storage` lists; ids are their paths, relative to `storage`.

    Raises:
        SettingsError: data.manifest is not set.
        DataError: the table cannot be read, lacks a column, or has fewer than two classes.
    """

    def __init__(self, storage: Storage, settings: DataSettings) -> None:
        self.read, self.is_local = storage.read, storage.is_local
        self._settings = settings
        if settings.manifest == "none":
            raise SettingsError(
                "params.yaml: data.manifest: found none, and data.source is image-manifest; allowed: the CSV or "
                "Parquet file in data.path that lists the images"
            )
        self.name = storage.name
        self._where = f"{storage.where}/{settings.manifest}"
        self._file = self._table(storage)
        where = f"data.manifest: {self._where}"
        cells = with_label_lists(
            self._file.named(column_names(self._file.header, where)), settings.label_columns, where
        )
        table = self._named(cells)
        ragged = self._file.ragged
        table = table.join(ragged.select("row"), on="row", how="anti", maintain_order="left")
        header = self._is_header(table)
        rows = self._with_meanings(table, self._stamps(storage))
        self.given: frozenset[SplitName] = frozenset(rows["assigned"].drop_nulls())
        extra = [name for name in table.columns if name not in ("row", "path", "label", "split", "group")]
        self.targets = self._labels(cells, table.filter(~header), extra)
        self.classes = self.targets.classes
        refused, typed = check_table(rows, settings, extra=extra, header=header)
        typed = typed.with_columns(pl.int_range(pl.len(), dtype=pl.Int64).alias(LABEL_PLACE))
        refused = pl.concat([refused, *_bad_targets(typed, self.targets)])
        kept = typed.join(refused.select("row").unique(), on="row", how="anti", maintain_order="left")
        duplicates = self._duplicates(kept)
        kept = kept.join(duplicates.select("row"), on="row", how="anti", maintain_order="left")
        ragged = ragged.select("row", "value", source=pl.lit(settings.manifest))
        self.refused = pl.concat([refused, quarantine.table(ragged, "ragged-row"), duplicates]).sort("row", "rule")
        self.ignored = Ignored()  # the table names every file
        self.listing = self._listing(kept, extra)

    def _listing(self, kept: pl.DataFrame, extra: list[str]) -> pl.DataFrame:
        """Return the columns that every source has, and the extra ones of the table."""
        places = kept[LABEL_PLACE]
        labels = pl.Series(self.targets.values[places.to_numpy()]) if self.classes else places
        columns = {"row": kept["row"], "id": kept["normal"], "label": labels, "split": kept["assigned"]}
        listed = listing(columns | {"group": kept["group"], "stamp": kept["stamp"]})
        return listed.join(kept.select("row", *extra), on="row", how="left", maintain_order="left")

    def _labels(self, cells: pl.DataFrame, rows: pl.DataFrame, extra: list[str]) -> TargetTable:
        """Return the targets of some rows. Whole numbers are classes, unless data.problem says otherwise."""
        settings, frame = self._settings, cells.select(self._settings.label_columns)[(rows["row"] - 1).to_numpy()]
        labels = read_labels(frame, settings, f"data.manifest: {self._where}", whole_are_classes=True)
        return with_notes(labels, rows.select(extra), self._columns(cells), self._file.notes)

    def _with_meanings(self, table: pl.DataFrame, stamps: pl.DataFrame | None) -> pl.DataFrame:
        """Add what path and split mean, whether the file is there, and its stamp; see `check_table`."""
        rows = table.with_columns(
            normal=table["path"].map_elements(_normal, return_dtype=pl.String, skip_nulls=True),
            assigned=pl.col("split")
            .str.strip_chars()
            .str.to_lowercase()
            .replace_strict(SPLIT_FOLDERS, default=None, return_dtype=pl.String),
        )
        if stamps is None:
            return rows.with_columns(there=pl.lit(True), stamp=pl.lit(None, pl.String))
        rows = rows.with_columns(normal=_as_stored(rows["normal"], stamps["id"]))
        rows = rows.join(stamps, left_on="normal", right_on="id", how="left", maintain_order="left")
        if not rows["there"].any():
            self._check_paths(rows["normal"].drop_nulls().unique(maintain_order=True), stamps["id"])
        return rows

    def _check_paths(self, paths: pl.Series, stored: pl.Series) -> None:
        """Check that paths, none of which is there, do not only lack a folder or an ending, or have another case.

        Raises:
            DataError: one does.
        """
        names: dict[str, list[str]] = {}
        for path in stored.sort():
            base = posixpath.basename(path).casefold()
            for name in {base, posixpath.splitext(base)[0]}:
                names.setdefault(name, []).append(path)
        column = self._settings.path_column
        for path in paths:
            for file in names.get(posixpath.basename(path).casefold(), ()):
                whole = next((end for end in (posixpath.splitext(file)[0], file) if end.endswith(path)), "")
                before, after = whole.removesuffix(path), file[len(whole) :]
                parts = [repr(before)] * bool(before) + [f"table[{column!r}].astype(str)"] + [repr(after)] * bool(after)
                how = f"in pandas, after read_csv(..., dtype=str): table[{column!r}] = {' + '.join(parts)}"
                raise DataError(
                    f"data.manifest: {self._where}: no path in column {column!r} is a file in data.path. {path!r} is "
                    f"not there, and {file!r} is. Fix: write the paths as the files are called"
                    + (f", such as {how}" if whole else "")
                )

    def _is_header(self, table: pl.DataFrame) -> pl.Series:
        """Return whether each row is the header again."""
        settings = self._settings
        same = (pl.col("path") == settings.path_column) & (pl.col("label") == "|".join(settings.label_columns))
        return table.select(same.fill_null(False)).to_series()

    def _table(self, storage: Storage) -> TableFile:
        """Read the file that lists the samples; the cells of CSV are texts."""
        name = self._settings.manifest
        try:
            try:
                content = read_whole(storage, name)
            except FileNotFoundError:
                content = read_whole(storage, self._other_form(storage))
        except OSError as error:
            raise DataError(
                f"data.manifest: {self._where}: {error.strerror or error}. Fix: set it to a file in data.path"
            ) from None
        needed = (self._settings.path_column, *self._settings.label_columns)
        return read_table(content, where=f"data.manifest: {self._where}", needed=needed, drop=self._settings.drop)

    def _other_form(self, storage: Storage) -> str:
        """Return the file of this name in another Unicode form; the name itself if there is none."""
        name = self._settings.manifest
        if name.isascii() or not storage.can_list:
            return name
        same = [other for other in storage.tree().names if _composed(other) == _composed(name)]
        return same[0] if len(same) == 1 else name

    def _named(self, table: pl.DataFrame) -> pl.DataFrame:
        """Return the table with columns row, path, label, split, group, and the extra ones that may be kept."""
        settings, columns = self._settings, self._columns(table)
        used = {*columns.values(), *settings.label_columns}
        table = without_private(table, settings, needed=(columns["path"], *settings.label_columns))
        check_single_values(table, f"data.manifest: {self._where}", needed=used)
        extra = [name for name in table.columns if name not in used]
        taken = [name for name in extra if name in _RESERVED]
        if taken:
            raise DataError(
                f"data.manifest: {self._where}: column {taken[0]!r} has a reserved name. Fix: rename it, or list it in "
                "data.drop"
            )
        texts = self._texts(columns)
        row = pl.int_range(1, pl.len() + 1, dtype=pl.Int64)
        return table.select(row=row, **texts, **{name: pl.col(name) for name in extra})

    def _columns(self, table: pl.DataFrame) -> dict[str, str]:
        """Return the table's columns for path, label, split and group."""
        settings, labels = self._settings, self._settings.label_columns
        if not labels:
            raise SettingsError(
                "params.yaml: data.label_column: found []; allowed: one or several columns. "
                "Fix: run `ratchet set data.label_column=NAME`"
            )
        where = f"data.manifest: {self._where}"
        for name, column in (("path", settings.path_column), *(("label", label) for label in labels)):
            require_column(column, f"data.{name}_column", table.columns, where)
        kept = table.drop(settings.drop, strict=False)
        return {"path": settings.path_column, "label": labels[0]} | optional_columns(kept, settings, where)

    def _texts(self, columns: Mapping[str, str]) -> dict[str, pl.Expr]:
        """Return the expressions for path, label, split and group. Only a label may mean a missing value."""
        text = {
            name: pl.col(columns[name]).cast(pl.String) if name in columns else pl.lit(None, pl.String)
            for name in ("path", "label", "split", "group")
        }
        labels = self._settings.label_columns
        if len(labels) > 1:
            cells = [pl.col(name).cast(pl.String).fill_null("") for name in labels]
            text["label"] = pl.concat_str(cells, separator="|")
        missing = {name: column.str.strip_chars().is_in(list(MISSING)) for name, column in text.items()}
        return text | {name: pl.when(~missing[name]).then(text[name]) for name in ("path", "split", "group")}

    def _duplicates(self, kept: pl.DataFrame) -> pl.DataFrame:
        """Return quarantine rows of files that are listed twice. The row of the highest-ranked split is kept."""
        duplicates = kept.filter(pl.col("normal").is_duplicated())
        if duplicates.is_empty():
            return quarantine.rows([])
        rank = split_rank(pl.col("assigned").fill_null("train"))
        ordered = duplicates.with_columns(rank=rank).sort("rank", "row", descending=[True, False])
        first = pl.col("row", "label", "split").first().over("normal").name.prefix("kept_")
        bad = ordered.with_columns(first).filter(pl.col("row") != pl.col("kept_row")).sort("row")
        places = zip(*(self._file.places(bad[name].to_list()) for name in ("row", "kept_row")), strict=True)
        rows = []
        for (place, kept_place), row in zip(places, bad.iter_rows(named=True), strict=True):
            value = f"{place} lists it again, kept is {kept_place}"
            for column in ("label", "split"):
                if row[column] != row[f"kept_{column}"]:
                    value += f"; {column} {row[column] or 'none'}, kept {row[f'kept_{column}'] or 'none'}"
            rows.append((row["normal"], row["row"], "duplicate-id", value))
        return quarantine.rows(rows)

    def _stamps(self, storage: Storage) -> pl.DataFrame | None:
        """Return id, stamp and `there` of all files; None if the storage cannot list them."""
        if not storage.can_list:
            return None
        return storage.tree().files.with_columns(there=pl.lit(True))


def _bad_targets(rows: pl.DataFrame, targets: TargetTable) -> list[pl.DataFrame]:
    """Return the quarantine rows of rows without a valid target."""
    named = rows.select(
        "row", source=pl.coalesce("normal", "path", pl.format("row {}", "row")), value=targets.shown.fill_null("")
    )
    return [quarantine.table(named[places], rule) for rule, places in targets.faults.items() if len(places)]


def _normal(path: str) -> str | None:
    """Return a path in the form of ids; None if it is outside the folder."""
    plain = posixpath.normpath(path.strip().replace("\\", "/"))
    outside = plain == ".." or plain.startswith(("/", "../")) or "://" in path or plain[1:2] == ":"
    return None if outside else plain


def _composed(text: str) -> str:
    """Return a text in the Unicode form NFC, which is the same for all its forms."""
    return unicodedata.normalize("NFC", text)


def _by_composed(texts: pl.Series) -> dict[str, list[str]]:
    """Return the different texts by their composed form. ASCII texts have only one form."""
    forms: dict[str, list[str]] = {}
    for text in sorted(texts.drop_nulls().unique()):
        forms.setdefault(text if text.isascii() else _composed(text), []).append(text)
    return forms


def _as_stored(paths: pl.Series, stored: pl.Series) -> pl.Series:
    """Return paths as the storage spells them, if it has the same name in another Unicode form."""
    listed = paths.drop_nulls().unique()
    unmatched = listed.filter(~listed.is_in(stored.implode()))
    if unmatched.is_empty():
        return paths
    forms = _by_composed(stored.filter(stored.str.contains(r"[^\x00-\x7F]")))
    candidates = {path: forms.get(_composed(path), []) for path in unmatched}
    meant = {path: names[0] for path, names in candidates.items() if len(names) == 1}
    return paths.replace(meant) if meant else paths
