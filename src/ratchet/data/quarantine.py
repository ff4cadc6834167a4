"""The quarantine table: bad samples and the reasons, one row per sample and broken rule."""

from collections.abc import Iterable
from io import BytesIO
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray
from PIL import Image

from ratchet import files
from ratchet.data.refusal_reasons import FIX_BY_VALUE, REASONS, fix
from ratchet.errors import DataError

__all__ = ["SCHEMA", "by_rule", "read", "rows", "samples", "shown", "table", "with_thumbnails", "without", "write"]

SCHEMA = pl.Schema(
    {
        "source": pl.String, "row": pl.Int64, "rule": pl.String, "value": pl.String, "hint": pl.String,
        "content": pl.String, "thumbnail": pl.Binary,
    }
)  # fmt: skip
"""Columns of the table.

source: name of the sample in its source. row: its position among all samples, by id. value: the value that breaks the
rule. hint: the fix. content: SHA-256 (hex) of its bytes, null if they were not read. thumbnail: a small PNG, null if
the image was not decoded.
"""

_THUMBNAILS, _THUMBNAIL_SIDE = 200, 96


def rows(failures: Iterable[tuple[str, int, str, str]]) -> pl.DataFrame:
    """Return a table from tuples (source, row, rule, value)."""
    filled = [(source, row, rule, value, fix(rule, value), None, None) for source, row, rule, value in failures]
    return pl.DataFrame(filled, schema=SCHEMA, orient="row").sort("row", "rule")


def table(failures: pl.DataFrame, rule: str) -> pl.DataFrame:
    """Return a table of samples that break one rule, from columns source, row, value and optionally content."""
    content = pl.col("content") if "content" in failures.columns else pl.lit(None, pl.String)
    values = failures["value"].unique().drop_nulls() if rule in FIX_BY_VALUE else ()
    hints = {value: fix(rule, value) for value in values}
    hint = pl.col("value").replace_strict(hints, default=REASONS[rule].fix, return_dtype=pl.String)
    return failures.with_columns(
        rule=pl.lit(rule), hint=hint, content=content, thumbnail=pl.lit(None, pl.Binary)
    ).select(*SCHEMA)


def by_rule(table: pl.DataFrame) -> dict[str, int]:
    """Return the number of samples by broken rule, sorted by rule."""
    counted = table.group_by("rule").len().sort("rule")
    return dict(zip(counted["rule"].to_list(), counted["len"].to_list(), strict=True))


def samples(table: pl.DataFrame) -> int:
    """Return the number of different samples in the table."""
    return table["row"].n_unique()


def without(frame: pl.DataFrame, table: pl.DataFrame) -> pl.DataFrame:
    """Return the rows of `frame` that are not in the table, by column `row`."""
    if table.is_empty():
        return frame
    return frame.join(table.select("row").unique(), on="row", how="anti", maintain_order="left")


def shown(table: pl.DataFrame, facts: pl.DataFrame) -> pl.DataFrame:
    """Return the facts of the first samples in the table that were decoded."""
    quarantined = facts.join(table.select("row").unique(), on="row", how="semi", maintain_order="left")
    return quarantined.filter(pl.col("pixels").is_not_null()).head(_THUMBNAILS)


def with_thumbnails(table: pl.DataFrame, rows: pl.Series, images: NDArray[np.uint8]) -> pl.DataFrame:
    """Add a small PNG of each image, uint8 (n, side, side, channels), to its row."""
    thumbnails = pl.Series([_thumbnail(image) for image in images], dtype=pl.Binary)
    drawn = pl.DataFrame({"row": rows, "thumbnail": thumbnails})
    return table.drop("thumbnail").join(drawn, on="row", how="left", maintain_order="left").select(*SCHEMA)


def _thumbnail(pixels: NDArray[np.uint8]) -> bytes:
    image = Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels)
    image.thumbnail((_THUMBNAIL_SIDE, _THUMBNAIL_SIDE))
    content = BytesIO()
    image.save(content, "PNG")
    return content.getvalue()


def read(path: Path) -> pl.DataFrame:
    """Read the table.

    Raises:
        DataError: it is missing or damaged.
    """
    try:
        return pl.read_parquet(path)
    except FileNotFoundError:
        raise DataError(f"{path}: not found. Fix: ingest the data first (`ratchet train`)") from None
    except (OSError, pl.exceptions.PolarsError) as error:
        raise DataError(f"{path}: damaged ({error}). Fix: ingest the data again") from error


def write(path: Path, table: pl.DataFrame) -> None:
    """Write the table as Parquet, even if it is empty. The file is replaced as a whole."""
    content = BytesIO()
    table.sort("row", "rule").write_parquet(content, compression="zstd")
    files.remove_draft_files(path)  # of a killed ingest
    files.write_bytes(path, content.getvalue())
