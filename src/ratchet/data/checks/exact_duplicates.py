"""Exact duplicates: ids that occur twice, and equal pixels in several splits or under several labels."""

import polars as pl

from ratchet.data import quarantine
from ratchet.data.split import SPLITS

__all__ = ["copies", "cross_split_duplicates", "duplicate_ids", "label_conflicts", "split_rank"]


def split_rank(split: pl.Expr) -> pl.Expr:
    """Return the rank of a split: 0 for train, 1 for validation, 2 for test. The highest must stay unseen most."""
    ranks = {name: rank for rank, name in enumerate(SPLITS)}
    return split.replace_strict(ranks, return_dtype=pl.Int64)


def duplicate_ids(frame: pl.DataFrame) -> pl.DataFrame:
    """Return quarantine rows of samples whose id occurs twice. The sample of the highest-ranked split is kept."""
    duplicates = frame.select("row", "id", pl.col("split").fill_null("train")).filter(pl.col("id").is_duplicated())
    ranked = duplicates.with_columns(rank=split_rank(pl.col("split"))).sort("rank", "row", descending=[True, False])
    bad = ranked.with_columns(kept=pl.col("split").first().over("id")).filter(~pl.col("id").is_first_distinct())
    return quarantine.rows(
        (row["id"], row["row"], "duplicate-id", f"again in {row['split']}, kept in {row['kept']}")
        for row in bad.iter_rows(named=True)
    )


def copies(index: pl.DataFrame) -> pl.DataFrame:
    """Return the rows whose `pixels` occur again. Comparing hashes first takes a tenth of the memory."""
    hashes = index["pixels"].hash()
    ordered = hashes.sort()
    similar = index.filter(hashes.is_in(ordered.filter(ordered == ordered.shift()).unique().implode()))
    return similar.filter(pl.col("pixels").is_duplicated())


def cross_split_duplicates(index: pl.DataFrame) -> pl.DataFrame:
    """Return quarantine rows of samples whose exact pixels are also in a split of a higher rank.

    The samples in test are kept, else those in validation. Copies within one split are all kept.
    """
    ranked = copies(index.select("row", "id", "pixels", "split")).with_columns(rank=split_rank(pl.col("split")))
    ranked = ranked.with_columns(top=pl.col("rank").max().over("pixels"))
    twins = (
        ranked.filter(pl.col("rank") == pl.col("top"))
        .group_by("pixels")
        .agg(twin=pl.col("id").min(), kept=pl.col("split").first())
    )
    bad = ranked.filter(pl.col("rank") < pl.col("top")).join(twins, on="pixels", how="left").sort("row")
    return quarantine.rows(
        (row["id"], row["row"], "duplicate-across-splits", f"in {row['split']}, as {row['twin']} in {row['kept']}")
        for row in bad.iter_rows(named=True)
    )


def label_conflicts(index: pl.DataFrame) -> list[dict[str, list[str]]]:
    """Return groups of samples with equal pixels and different labels: {"ids": [...], "classes": [...]}, by id."""
    groups = (
        copies(index.select("pixels", "id", "class"))
        .group_by("pixels")
        .agg(pl.col("id").sort(), pl.col("class").unique().sort())
    )
    conflicts = groups.filter(pl.col("class").list.len() > 1)
    pairs = zip(conflicts["id"].to_list(), conflicts["class"].to_list(), strict=True)
    return [{"ids": ids, "classes": names} for ids, names in sorted(pairs)]
