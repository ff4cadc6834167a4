"""What was kept out, and why: one row per sample and broken rule."""

from collections.abc import Iterable
from io import BytesIO
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray
from PIL import Image

from ratchet import files
from ratchet.errors import DataError

__all__ = [
    "HINTS",
    "SCHEMA",
    "by_rule",
    "read",
    "rows",
    "samples",
    "shown",
    "table",
    "with_thumbnails",
    "without",
    "write",
]

SCHEMA = pl.Schema(
    {
        "source": pl.String, "row": pl.Int64, "rule": pl.String, "value": pl.String, "hint": pl.String,
        "content": pl.String, "thumbnail": pl.Binary,
    }
)  # fmt: skip
"""source: where the sample came from; row: its position among all samples, by id; value: what was found; content:
SHA-256 (hex) of its bytes, null where they were not read; thumbnail: a small PNG, where there is something to see."""

_THUMBNAILS, _THUMBNAIL_SIDE = 200, 96

HINTS = {
    "empty-file": "the file has no content: fetch it again, or remove it",
    "permission": "this user may not read the file: change its permissions, or remove it",
    "unreadable": "not an image, or a damaged one, or outside every class folder: save it again, or move it away",
    "format-not-allowed": "convert the picture, or allow its format in data.formats",
    "format-mismatch": "the content is of another format than the extension says: rename the file",
    "animated": "the file holds several frames: keep one",
    "too-small": "leave the picture out, or lower data.min_side",
    "too-large": "scale the picture down, or raise data.max_pixels",
    "bad-aspect": "crop the picture, or raise data.max_aspect",
    "unknown-label": "the label is none of the set's classes: correct it, or list the class in data.classes",
    "no-path": "the row names no file: fill in its path, or remove the row",
    "outside-folder": "the path leads out of data.path: move the picture inside and name it relative to the folder",
    "missing-file": "no such file lies in data.path: correct the path, or put the picture there",
    "unknown-split": "write train, validation or test, or nothing",
    "other-type": "the value is not of the column's kind: correct it, empty it, or list the column in data.drop",
    "personal-data": "remove it, list the column in data.drop or data.hash, or set data.refuse_personal: false",
    "ragged-row": "the row has more or fewer cells than the header: quote cells that hold the separator",
    "repeated-header": "the header stands among the rows, as when files are joined: remove the line",
    "raised": "your Dataset raised an error for this sample: mend the file it reads, or the Dataset",
    "not-a-sample": "return (image, label): a uint8 or floating-point tensor (channels, height, width) and an integer",
    "other-shape": "all images must have one type and shape, and this is not the commonest: convert, resize or crop it",
    "not-finite": "some values are nan or infinite: mend the file or the arithmetic, a division by zero perhaps",
    "duplicate-id": "another sample has the same id: give each its own, and put a sample into one split only",
    "duplicate-across-splits": "the same pixels are in a split that must stay unseen: remove one of the two",
}
"""Rule -> the way out."""


def rows(found: Iterable[tuple[str, int, str, str]]) -> pl.DataFrame:
    """A table from (source, row, rule, value)."""
    filled = [(source, row, rule, value, HINTS[rule], None, None) for source, row, rule, value in found]
    return pl.DataFrame(filled, schema=SCHEMA, orient="row").sort("row", "rule")


def table(found: pl.DataFrame, rule: str) -> pl.DataFrame:
    """A table from columns source, row, value and perhaps content, of samples that break one rule."""
    content = pl.col("content") if "content" in found.columns else pl.lit(None, pl.String)
    return found.with_columns(
        rule=pl.lit(rule), hint=pl.lit(HINTS[rule]), content=content, thumbnail=pl.lit(None, pl.Binary)
    ).select(*SCHEMA)


def by_rule(table: pl.DataFrame) -> dict[str, int]:
    """Rule -> number of samples that break it, by name."""
    counted = table.group_by("rule").len().sort("rule")
    return dict(zip(counted["rule"].to_list(), counted["len"].to_list(), strict=True))


def samples(table: pl.DataFrame) -> int:
    """How many different samples the table holds."""
    return table["row"].n_unique()


def without(frame: pl.DataFrame, table: pl.DataFrame) -> pl.DataFrame:
    """The rows of `frame` that the table does not hold, by their column `row`."""
    if table.is_empty():
        return frame
    return frame.join(table.select("row").unique(), on="row", how="anti", maintain_order="left")


def shown(table: pl.DataFrame, facts: pl.DataFrame) -> pl.DataFrame:
    """The facts of the first samples in the table that there is something to see of."""
    mine = facts.join(table.select("row").unique(), on="row", how="semi", maintain_order="left")
    return mine.filter(pl.col("pixels").is_not_null()).head(_THUMBNAILS)


def with_thumbnails(table: pl.DataFrame, rows: pl.Series, pictures: NDArray[np.uint8]) -> pl.DataFrame:
    """The table with a small PNG of each of these pictures, uint8 (n, side, side, channels), beside its row."""
    drawn = pl.DataFrame({"row": rows, "thumbnail": pl.Series([_thumbnail(one) for one in pictures], dtype=pl.Binary)})
    return table.drop("thumbnail").join(drawn, on="row", how="left", maintain_order="left").select(*SCHEMA)


def _thumbnail(pixels: NDArray[np.uint8]) -> bytes:
    image = Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels)
    image.thumbnail((_THUMBNAIL_SIDE, _THUMBNAIL_SIDE))
    content = BytesIO()
    image.save(content, "PNG")
    return content.getvalue()


def read(path: Path) -> pl.DataFrame:
    """The table that stands there.

    Raises:
        DataError: there is none, or it is damaged.
    """
    try:
        return pl.read_parquet(path)
    except FileNotFoundError:
        raise DataError(f"{path}: not there: ingest the data first (`ratchet train`)") from None
    except (OSError, pl.exceptions.PolarsError) as error:
        raise DataError(f"{path}: damaged ({error}): ingest the data again") from error


def write(path: Path, table: pl.DataFrame) -> None:
    """Write the table as Parquet, whole or not at all; an empty one too."""
    content = BytesIO()
    table.sort("row", "rule").write_parquet(content, compression="zstd")
    files.write_bytes(path, content.getvalue())
