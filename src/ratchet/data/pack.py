"""Writing the packed set: typed arrays in shards, written as a stream and later read by memory map."""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ratchet.data.manifest import PackedFile, Shard
from ratchet.data.reading import pool
from ratchet.errors import DataError

__all__ = [
    "INDEX_COLUMNS", "ReadRows", "check_shards", "extra_columns", "index_columns",
    "write_array", "write_index", "write_shards", "write_shards_of",
]  # fmt: skip

Result = TypeVar("Result")
ReadRows = Callable[[int, int], NDArray[np.uint8]]
"""From a start row and an end row to the images between them, uint8 (k, side, side, channels)."""

_BLOCK = 1 << 20  # bytes per block of images
_HEADER = 128  # bytes of a .npy header for these shapes
MIB = 1 << 20
_SHARD_MIB = 256  # largest packed file
INDEX_COLUMNS = (
    "split", "row", "id", "source", "label", "class", "content", "pixels",
    "width", "height", "format", "brightness", "contrast",
)  # fmt: skip


def write_shards(
    folder: Path, read: ReadRows, measure: Callable[[NDArray[np.uint8]], Result], *,
    rows: int, shape: tuple[int, int, int], workers: int,
) -> tuple[tuple[Shard, ...], list[Result]]:  # fmt: skip
    """Write images to folder/images-NNNNN.npy, in shards of at most 256 MiB if one image is not larger.

    Images of `shape`, (height, width, channels), are read and measured a few MiB at a time by `workers` threads.
    Return the shards, and the results of `measure` in the order of the rows.
    """
    image_bytes = int(np.prod(shape))
    per_shard, step = max(1, (_SHARD_MIB * MIB - _HEADER) // image_bytes), max(1, _BLOCK // image_bytes)

    def work(span: tuple[int, int]) -> tuple[NDArray[np.uint8], Result]:
        block = np.ascontiguousarray(read(*span))
        return block, measure(block)

    def blocks(start: int, end: int) -> Iterator[NDArray[np.uint8]]:
        spans = ((first, min(first + step, end)) for first in range(start, end, step))
        for block, result in pool.in_order(work, spans, workers=workers):
            results.append(result)
            yield block

    shards: list[Shard] = []
    results: list[Result] = []
    for number, start in enumerate(range(0, rows, per_shard)):
        end = min(start + per_shard, rows)
        path = folder / f"images-{number:05d}.npy"
        digest = _write_shard(path, blocks(start, end), (end - start, *shape))
        shards.append(Shard(f"{folder.name}/{path.name}", end - start, digest))
    return tuple(shards), results


def _write_shard(path: Path, blocks: Iterator[NDArray[np.uint8]], shape: tuple[int, ...]) -> str:
    """Write blocks of images to a .npy file of this shape. Return the SHA-256 (hex) of its bytes."""
    header = BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "|u1", "fortran_order": False, "shape": shape})
    digest = hashlib.sha256(header.getvalue())
    with path.open("wb") as file, ThreadPoolExecutor(1) as hasher:
        file.write(header.getvalue())
        for block in blocks:
            digested = hasher.submit(digest.update, block.data)
            file.write(block.data)
            digested.result()
    return digest.hexdigest()


def write_array(folder: Path, name: str, values: NDArray[Any]) -> PackedFile:
    """Write an array to folder/NAME.npy."""
    values, header = np.ascontiguousarray(values), BytesIO()
    np.lib.format.write_array_header_1_0(header, np.lib.format.header_data_from_array_1_0(values))
    digest = hashlib.sha256(header.getvalue())
    digest.update(values.data)
    with (folder / f"{name}.npy").open("wb") as file:
        file.write(header.getvalue())
        file.write(values.data)
    return PackedFile(f"{folder.name}/{name}.npy", digest.hexdigest())


def write_shards_of(folder: Path, name: str, values: NDArray[Any]) -> tuple[Shard, ...]:
    """Write an array to folder/NAME-NNNNN.npy, in files of at most 256 MiB if one row is not larger."""
    step = max(1, _SHARD_MIB * MIB // max(1, values[:1].nbytes))
    shards = []
    for number, start in enumerate(range(0, len(values), step)):
        part = values[start : start + step]
        stored = write_array(folder, f"{name}-{number:05d}", part)
        shards.append(Shard(stored.file, len(part), stored.sha256))
    return tuple(shards)


def write_index(packed: Path, index: pl.DataFrame, extra: Sequence[str]) -> None:
    """Write the table of the packed rows, split by split, to index.parquet.

    Columns that only some sources have (`place`, `group`) and the source's `extra` columns come last.
    """
    has_groups = "group" in index.columns and index["group"].count()
    columns = index_columns([name for name in index.columns if name != "group" or has_groups], extra)
    index = index.with_columns(row=pl.int_range(pl.len()).over("split"))
    index.select(columns).write_parquet(packed / "index.parquet", compression="zstd", row_group_size=1 << 14)


def index_columns(present: Sequence[str], extra: Sequence[str]) -> list[str]:
    """Return the columns of an index in order: its own, then those that only some sources have, then `extra`."""
    return [name for name in (*INDEX_COLUMNS, "place", "group", *extra) if name in present]


def extra_columns(index: pl.DataFrame) -> list[str]:
    """Return the columns of an index that come from the source: its groups and its extra columns."""
    return [name for name in index.columns if name not in (*INDEX_COLUMNS, "place")]


def check_shards(packed: Path, shards: Sequence[Shard], *, shape: tuple[int, int, int], pixels: pl.Series) -> None:
    """Read the shards of a split back and check type, shape, row counts, and the first and last image of each.

    `pixels` has the SHA-256 (hex) of each image's bytes, in order.

    Raises:
        DataError: the disk returns other content.
    """
    start = 0
    for shard in shards:
        stored = np.load(packed / shard.file, mmap_mode="r", allow_pickle=False)
        ends = {start: 0, start + shard.rows - 1: -1}
        is_complete = stored.dtype == np.uint8 and stored.shape == (shard.rows, *shape) and stored.flags.c_contiguous
        if not is_complete or any(
            hashlib.sha256(stored[at].tobytes()).hexdigest() != pixels[row] for row, at in ends.items()
        ):
            raise DataError(
                f"{shard.file}: the disk returns other content than was written. Fix: check the disk, then ingest again"
            )
        start += shard.rows
    if start != len(pixels):
        raise DataError(
            f"{packed.name}: {start} images packed, {len(pixels)} expected. Fix: check the disk, then ingest again"
        )
