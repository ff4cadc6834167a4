"""Differences between two versions of a data set, sample by sample."""

from dataclasses import dataclass

import polars as pl

from ratchet.counts import count_of

__all__ = ["COLUMNS", "Difference", "difference"]

COLUMNS = ("id", "split", "class", "content")
"""Columns of an index that are compared."""


@dataclass(frozen=True)
class Difference:
    """Tables of changed samples, sorted by id.

    Attributes:
        added: id, split, class.
        removed: id, split, class.
        renamed: same content under another id: before, id, split, class.
        altered: same id with other content: id, split, class.
        relabelled: same content in another class: id, before, after.
        moved: same content in another split: id, before, after.
        rows: number of samples before and after.
    """

    added: pl.DataFrame
    removed: pl.DataFrame
    renamed: pl.DataFrame
    altered: pl.DataFrame
    relabelled: pl.DataFrame
    moved: pl.DataFrame
    rows: tuple[int, int]

    def counts(self) -> dict[str, int]:
        """Return the number of samples by kind of change, without zeros."""
        tables = {name: value for name, value in vars(self).items() if isinstance(value, pl.DataFrame)}
        return {name: table.height for name, table in tables.items() if table.height}

    def lines(self, most: int) -> list[str]:
        """Return a line for each sample that differs, at most `most` of each kind (0: all)."""
        signs = {"added": "+", "removed": "-", "renamed": ">", "altered": "!", "relabelled": "~", "moved": "~"}
        lines = []
        for kind, count in self.counts().items():
            table: pl.DataFrame = getattr(self, kind)
            for row in (table.head(most) if most else table).iter_rows(named=True):
                before = f"{row.pop('before')} -> " if "before" in row else ""
                name = row.pop("id")
                rest = row.get("after") or f"{row.get('class')}, {row.get('split')}"
                line = f"{before}{name}: {rest}" if kind == "renamed" else f"{name}: {before}{rest}"
                lines.append(f"{signs[kind]} {kind:10} {line}")
            if most and count > most:
                lines.append(f"  ... and {count - most:,} more {kind}: --most 0 lists all")
        return lines

    @property
    def summary(self) -> str:
        """Summary in one line."""
        changes = ", ".join(f"{count:,} {name}" for name, count in self.counts().items()) or "no sample differs"
        return f"{count_of(self.rows[0], 'sample')} before, {self.rows[1]:,} after: {changes}"


def difference(before: pl.DataFrame, after: pl.DataFrame) -> Difference:
    """Compare two indexes, both with COLUMNS and unique ids.

    Samples with the same id are the same sample. A removed sample whose content is added under another id was renamed.
    If several samples have the same content, they are paired in the order of their ids.
    """
    before, after = (index.select(COLUMNS).sort("id") for index in (before, after))
    gone = before.join(after, on="id", how="anti")
    new = after.join(before, on="id", how="anti")
    number = pl.int_range(pl.len()).over("content").alias("number")
    pairs = gone.with_columns(number).rename({"id": "before", "class": "was", "split": "from"})
    renamed = new.with_columns(number).join(pairs, on=["content", "number"], how="inner").sort("id")
    kept = after.join(before.rename({"class": "was", "split": "from", "content": "then"}), on="id", how="inner")
    kept = pl.concat([kept, renamed.with_columns(then="content").select(kept.columns)]).sort("id")
    same = kept.filter(pl.col("content") == pl.col("then"))
    shown = ("id", "split", "class")
    return Difference(
        added=new.join(renamed, on="id", how="anti").select(shown),
        removed=gone.join(renamed, left_on="id", right_on="before", how="anti").select(shown),
        renamed=renamed.select("before", *shown),
        altered=kept.filter(pl.col("content") != pl.col("then")).select(shown),
        relabelled=same.filter(pl.col("class") != pl.col("was")).select("id", before="was", after="class"),
        moved=same.filter(pl.col("split") != pl.col("from")).select("id", before="from", after="split"),
        rows=(before.height, after.height),
    )
