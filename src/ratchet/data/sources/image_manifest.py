"""Pictures that a table lists: a CSV or Parquet file beside them with a path and a label in each row.

A split, a group and any other columns may stand there too; the others go with each sample into the index.
"""

import difflib
import posixpath
import unicodedata
from collections.abc import Collection

import polars as pl

from ratchet.data import quarantine
from ratchet.data.checks.label_spelling import look_alikes
from ratchet.data.contract import FACTS
from ratchet.data.privacy import guarded
from ratchet.data.reading.storage import Storage
from ratchet.data.sources import LISTING, listing
from ratchet.data.sources.image_folder import SPLIT_FOLDERS
from ratchet.data.sources.table_file import MISSING, TableFile, read_table
from ratchet.data.split import SPLITS, SplitName
from ratchet.data.table_contract import check_table
from ratchet.errors import DataError, SettingsError
from ratchet.settings.model import DataSettings

__all__ = ["ImageManifest"]

_RESERVED = frozenset(
    {
        *LISTING, *FACTS, "source", "class", "place", "at", "earlier", "claimed", "agrees", "side", "area", "aspect",
        "path", "known", "normal", "means", "assigned", "there", "named", "inside", "labelled", "divided",
    }
)  # fmt: skip
_NESTED = (pl.List, pl.Array, pl.Struct, pl.Binary, pl.Object)


class ImageManifest:
    """The pictures that file `settings.manifest` in `storage` lists; ids are their paths, relative to it.

    Raises:
        SettingsError: data.manifest is not set.
        DataError: the table cannot be read, lacks a column, or holds one class only.
    """

    def __init__(self, storage: Storage, settings: DataSettings) -> None:
        self.read, self.near = storage.read, storage.near
        self._settings = settings
        if settings.manifest == "none":
            raise SettingsError(
                "params.yaml: data.manifest: found none, and data.source is image-manifest; allowed: the CSV or "
                "Parquet file in data.path that lists the pictures"
            )
        self.name = storage.name
        self._where = f"{storage.where}/{settings.manifest}"
        self._file = self._table(storage)
        table = self._named(self._file.table)
        ragged = self._file.ragged
        table = table.join(ragged.select("row"), on="row", how="anti", maintain_order="left")
        self.classes, meant = self._classes(table["known"])
        splits = table["split"].str.to_lowercase().replace_strict(SPLIT_FOLDERS, default=None, return_dtype=pl.String)
        given = {split for split in splits.unique() if split is not None}
        self.given: frozenset[SplitName] = frozenset(given)
        known = self._stamps(storage)
        judged = table.with_columns(
            normal=table["path"].map_elements(_normal, return_dtype=pl.String, skip_nulls=True),
            means=table["known"].replace_strict(meant, default=None, return_dtype=pl.String),
            assigned=splits,
        )
        if known is not None:
            judged = judged.with_columns(normal=_as_stored(judged["normal"], known["id"]))
            judged = judged.join(known, left_on="normal", right_on="id", how="left", maintain_order="left")
        else:
            judged = judged.with_columns(there=pl.lit(True), stamp=pl.lit(None, pl.String))
        own = [name for name in table.columns if name not in ("row", "path", "label", "known", "split", "group")]
        refused, typed = check_table(judged, settings, own=own, classes=self.classes)
        kept = typed.join(refused.select("row").unique(), on="row", how="anti", maintain_order="left")
        again = self._listed_again(kept)
        kept = kept.join(again.select("row"), on="row", how="anti", maintain_order="left")
        ragged = ragged.select("row", "value", source=pl.lit(settings.manifest))
        self.refused = pl.concat([refused, quarantine.table(ragged, "ragged-row"), again]).sort("row", "rule")
        labels = kept["means"].replace_strict({name: at for at, name in enumerate(self.classes)}, return_dtype=pl.Int64)
        columns = {"row": kept["row"], "id": kept["normal"], "label": labels, "split": kept["assigned"]}
        listed = listing(columns | {"group": kept["group"], "stamp": kept["stamp"]})
        self.listing = listed.join(kept.select("row", *own), on="row", how="left", maintain_order="left")

    def _table(self, storage: Storage) -> TableFile:
        """The file that lists the samples, the cells of CSV as texts."""
        name = self._settings.manifest
        try:
            try:
                content = storage.read(name)
            except FileNotFoundError:
                name = self._spelled_otherwise(storage)
                content = storage.read(name)
            if not isinstance(content, bytes):
                with content as file:
                    content = file.read()
        except OSError as error:
            raise DataError(
                f"data.manifest: {self._where}: {error.strerror or error}: name a file in data.path"
            ) from None
        needed = (self._settings.path_column, self._settings.label_column)
        return read_table(content, where=self._where, needed=needed)

    def _spelled_otherwise(self, storage: Storage) -> str:
        """The file of that name in another Unicode form; the name itself where there is none."""
        name = self._settings.manifest
        if name.isascii() or not storage.lists:
            return name
        same = [other for other in storage.tree().names if _composed(other) == _composed(name)]
        return same[0] if len(same) == 1 else name

    def _named(self, table: pl.DataFrame) -> pl.DataFrame:
        """The table with columns row, path, label, split and group, and its own without what must not be kept."""
        doubled = [name.removesuffix("_duplicated_0") for name in table.columns if name.endswith("_duplicated_0")]
        if doubled:
            raise DataError(f"data.manifest: {self._where}: column {doubled[0]!r} is in the header twice: rename one")
        settings = self._settings
        asked = {
            "path": settings.path_column, "label": settings.label_column,
            "split": settings.split_column, "group": settings.group_column,
        }  # fmt: skip
        defaults = {name: type(settings).model_fields[f"{name}_column"].default for name in asked}
        for name, column in asked.items():
            optional = name in ("split", "group") and column == defaults[name]
            if column not in table.columns and not optional:
                near = "".join(difflib.get_close_matches(column, table.columns, n=1))
                raise DataError(
                    f"data.manifest: {self._where} has no column {column!r}; it has {', '.join(table.columns)}: "
                    f"set data.{name}_column{f' (to {near}?)' if near else ''}"
                )
        table = guarded(table, settings, needed=(asked["path"], asked["label"]))
        self._check_flat(table, asked.values())
        text = {
            name: pl.col(column).cast(pl.String) if column in table.columns else pl.lit(None, pl.String)
            for name, column in asked.items()
        }
        classes = () if settings.classes == "auto" else settings.classes
        missing = {name: column.str.strip_chars().is_in(list(MISSING)) for name, column in text.items()}
        known = pl.when(~missing["label"] | text["label"].is_in(list(classes))).then(text["label"])
        text |= {name: pl.when(~missing[name]).then(text[name]) for name in ("path", "split", "group")}
        own = [name for name in table.columns if name not in asked.values()]
        taken = [name for name in own if name in _RESERVED]
        if taken:
            raise DataError(
                f"data.manifest: {self._where}: column {taken[0]!r} has a name that the index uses itself: rename it, "
                "or list it in data.drop"
            )
        row = pl.int_range(1, pl.len() + 1, dtype=pl.Int64)
        named = table.select(row=row, **text, known=known, **{name: pl.col(name) for name in own})
        self._check_groups(named["group"])
        return named

    def _check_flat(self, table: pl.DataFrame, asked: Collection[str]) -> None:
        """Refuse columns of lists, records and bytes.

        Raises:
            DataError: a column holds them.
        """
        for name, dtype in table.schema.items():
            if isinstance(dtype, _NESTED):
                kind = "lists" if isinstance(dtype, pl.List | pl.Array) else f"{dtype.base_type().__name__} values"
                fix = "save one text or number in each row" if name in asked else f"set data.drop=[{name}]"
                raise DataError(
                    f"data.manifest: {self._where}: column {name!r} holds {kind}, not one value each: {fix}"
                )

    def _check_groups(self, groups: pl.Series) -> None:
        """Refuse groups that are the same text in two Unicode forms: they would not share a split.

        Raises:
            DataError: there are such.
        """
        for forms in _by_composed(groups).values():
            if len(forms) > 1:
                raise DataError(
                    f"data.manifest: {self._where}: group {forms[0]!r} is written in {len(forms)} Unicode forms "
                    f"({', '.join(map(ascii, forms))}): write it in one form"
                )

    def _listed_again(self, kept: pl.DataFrame) -> pl.DataFrame:
        """The quarantine rows of files that are listed again; the row whose split must most stay unseen stays."""
        again = kept.filter(pl.col("normal").is_duplicated())
        if again.is_empty():
            return quarantine.rows([])
        ranks = {name: place for place, name in enumerate(SPLITS)}
        rank = pl.col("assigned").fill_null("train").replace_strict(ranks, return_dtype=pl.Int64)
        ordered = again.with_columns(rank=rank).sort("rank", "row", descending=[True, False])
        first = pl.col("row", "label", "split").first().over("normal").name.prefix("kept_")
        leaving = ordered.with_columns(first).filter(pl.col("row") != pl.col("kept_row")).sort("row")
        places = zip(*(self._file.places(leaving[name].to_list()) for name in ("row", "kept_row")), strict=True)
        found = []
        for (place, kept_place), one in zip(places, leaving.iter_rows(named=True), strict=True):
            value = f"{place} lists it again, kept is {kept_place}"
            for column in ("label", "split"):
                if one[column] != one[f"kept_{column}"]:
                    value += f"; {column} {one[column] or 'none'}, kept {one[f'kept_{column}'] or 'none'}"
            found.append((one["normal"], one["row"], "duplicate-id", value))
        return quarantine.rows(found)

    def _classes(self, labels: pl.Series) -> tuple[tuple[str, ...], dict[str, str]]:
        """The classes, and which labels mean which."""
        counts: dict[str, int] = dict(labels.drop_nulls().value_counts().rows())
        if self._settings.classes != "auto":
            classes = tuple(self._settings.classes)
            composed = {_composed(name): name for name in classes}
            return classes, {name: composed.get(_composed(name), name) for name in (*counts, *classes)}
        counts.pop(self._settings.label_column, None)  # a header that stands there again
        usual = {
            form: max(forms, key=lambda form: (counts[form], form))
            for forms in _by_composed(pl.Series(list(counts), dtype=pl.String)).values()
            for form in forms
        }
        totals: dict[str, int] = {}
        for name, count in counts.items():
            totals[usual[name]] = totals.get(usual[name], 0) + count
        classes = tuple(sorted(set(totals) - set(look_alikes(totals))))
        if len(classes) < 2:
            found = f"one class only ({classes[0]!r})" if classes else "no labels"
            raise DataError(f"data.manifest: {self._where} holds {found}: two or more are needed to tell apart")
        return classes, usual

    def _stamps(self, storage: Storage) -> pl.DataFrame | None:
        """What lies there: id, stamp and `there`; None where a place cannot tell."""
        if not storage.lists:
            return None
        tree = storage.tree()
        return pl.DataFrame(
            {"id": tree.names, "stamp": tree.stamps}, schema={"id": pl.String, "stamp": pl.String}
        ).with_columns(there=pl.lit(True))


def _normal(path: str) -> str | None:
    """A path as ids have it; None where it leads out of the folder."""
    plain = posixpath.normpath(path.strip().replace("\\", "/"))
    outside = plain == ".." or plain.startswith(("/", "../")) or "://" in path or plain[1:2] == ":"
    return None if outside else plain


def _composed(text: str) -> str:
    """A text in the one Unicode form (NFC) that all its spellings share."""
    return unicodedata.normalize("NFC", text)


def _by_composed(texts: pl.Series) -> dict[str, list[str]]:
    """Different texts by their composed form; ASCII has one form only and is left to itself."""
    forms: dict[str, list[str]] = {}
    for text in sorted(texts.drop_nulls().unique()):
        forms.setdefault(text if text.isascii() else _composed(text), []).append(text)
    return forms


def _as_stored(paths: pl.Series, stored: pl.Series) -> pl.Series:
    """Paths as the storage spells them, where it has the same name in another Unicode form."""
    listed = paths.drop_nulls().unique()
    unmatched = listed.filter(~listed.is_in(stored.implode()))
    if unmatched.is_empty():
        return paths
    forms = _by_composed(stored.filter(stored.str.contains(r"[^\x00-\x7F]")))
    found = {path: forms.get(_composed(path), []) for path in unmatched}
    meant = {path: names[0] for path, names in found.items() if len(names) == 1}
    return paths.replace(meant) if meant else paths
