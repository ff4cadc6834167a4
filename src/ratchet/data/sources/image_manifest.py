"""Pictures that a table lists: a CSV or Parquet file beside them with a path and a label in each row.

A split, a group and any other columns may stand there too; the others go with each sample into the index.
"""

import difflib
import io
import posixpath

import polars as pl

from ratchet.data.contract import FACTS
from ratchet.data.privacy import guarded
from ratchet.data.reading.storage import Storage
from ratchet.data.sources import LISTING, listing
from ratchet.data.sources.image_folder import SPLIT_FOLDERS
from ratchet.data.split import SplitName
from ratchet.data.table_contract import check_table
from ratchet.data.trouble.spelling import look_alikes
from ratchet.errors import DataError, SettingsError
from ratchet.params import DataSettings

__all__ = ["ImageManifest"]

_RESERVED = frozenset(
    {
        *LISTING,
        *FACTS,
        "source",
        "class",
        "place",
        "at",
        "earlier",
        "claimed",
        "agrees",
        "side",
        "area",
        "aspect",
    }
)


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
        table = self._named(self._table(storage))
        self.classes, meant = self._classes(table["label"])
        splits = table["split"].str.to_lowercase().replace_strict(SPLIT_FOLDERS, default=None, return_dtype=pl.String)
        given = {split for split in splits.unique() if split is not None}
        self.given: frozenset[SplitName] = frozenset(given)
        known = self._stamps(storage)
        judged = table.with_columns(
            normal=table["path"].map_elements(_normal, return_dtype=pl.String, skip_nulls=True),
            means=table["label"].replace_strict(meant, default=None, return_dtype=pl.String),
            assigned=splits,
        )
        if known is not None:
            judged = judged.join(known, left_on="normal", right_on="id", how="left", maintain_order="left")
        else:
            judged = judged.with_columns(there=pl.lit(True), stamp=pl.lit(None, pl.String))
        own = [name for name in table.columns if name not in ("row", "path", "label", "split", "group")]
        self.refused, typed = check_table(judged, settings, own=own, classes=self.classes)
        kept = typed.join(self.refused.select("row").unique(), on="row", how="anti", maintain_order="left")
        labels = kept["means"].replace_strict({name: at for at, name in enumerate(self.classes)}, return_dtype=pl.Int64)
        columns = {"row": kept["row"], "id": kept["normal"], "label": labels, "split": kept["assigned"]}
        listed = listing(columns | {"group": kept["group"], "stamp": kept["stamp"]})
        self.listing = listed.join(kept.select("row", *own), on="row", how="left", maintain_order="left")

    def _table(self, storage: Storage) -> pl.DataFrame:
        """The table as it stands there, CSV's cells as texts."""
        name = self._settings.manifest
        try:
            content = storage.read(name)
            if not isinstance(content, bytes):
                with content as file:
                    content = file.read()
        except OSError as error:
            raise DataError(
                f"data.manifest: {self._where}: {error.strerror or error}: name a file in data.path"
            ) from None
        try:
            if name.lower().endswith((".parquet", ".pq")):
                return pl.read_parquet(io.BytesIO(content))
            return pl.read_csv(content, infer_schema=False, separator="\t" if name.lower().endswith(".tsv") else ",")
        except (pl.exceptions.PolarsError, OSError, ValueError) as error:
            told = str(error).splitlines()[0]
            raise DataError(
                f"data.manifest: {self._where} is no readable table ({told}): save it as UTF-8 CSV with one header "
                "line, or as Parquet"
            ) from error

    def _named(self, table: pl.DataFrame) -> pl.DataFrame:
        """The table with columns row, path, label, split and group, and its own without what must not be kept."""
        doubled = [name.removesuffix("_duplicated_0") for name in table.columns if name.endswith("_duplicated_0")]
        if doubled:
            raise DataError(f"data.manifest: {self._where}: column {doubled[0]!r} stands there twice: rename one")
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
        text = {
            name: pl.col(column).cast(pl.String) if column in table.columns else pl.lit(None, pl.String)
            for name, column in asked.items()
        }
        own = [name for name in table.columns if name not in asked.values()]
        taken = [name for name in own if name in _RESERVED]
        if taken:
            raise DataError(
                f"data.manifest: {self._where}: column {taken[0]!r} has a name that the index uses itself: rename it, "
                "or list it in data.drop"
            )
        row = pl.int_range(1, pl.len() + 1, dtype=pl.Int64)
        return table.select(row=row, **text, **{name: pl.col(name) for name in own})

    def _classes(self, labels: pl.Series) -> tuple[tuple[str, ...], dict[str, str]]:
        """The classes, and which labels mean which."""
        counts = dict(labels.drop_nulls().value_counts().rows())
        if self._settings.classes != "auto":
            classes = tuple(self._settings.classes)
            return classes, {name: name for name in classes}
        counts.pop(self._settings.label_column, None)  # a header that stands there again
        classes = tuple(sorted(set(counts) - set(look_alikes(counts)) - {""}))
        if len(classes) < 2:
            found = f"one class only ({classes[0]!r})" if classes else "no labels"
            raise DataError(f"data.manifest: {self._where} holds {found}: two or more are needed to tell apart")
        return classes, {name: name for name in classes}

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
