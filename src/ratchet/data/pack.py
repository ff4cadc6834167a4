"""Typed arrays in shards, written as a stream and read by memory map."""

import hashlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ratchet import files
from ratchet.data.manifest import PackedFile, Shard
from ratchet.data.reading import pool
from ratchet.errors import DataError

__all__ = ["check_shards", "own_columns", "write_array", "write_index", "write_shards"]

Seen = TypeVar("Seen")

_BLOCK = 4 << 20  # bytes moved at a time
_HEADER = 128  # bytes of a .npy header for these shapes
MIB = 1 << 20
_INDEX_COLUMNS = (
    "split", "row", "id", "source", "label", "class", "content", "pixels",
    "width", "height", "format", "brightness", "contrast",
)  # fmt: skip


def write_shards(
    folder: Path,
    read: Callable[[int, int], NDArray[np.uint8]],
    look: Callable[[NDArray[np.uint8]], Seen],
    *,
    rows: int,
    shape: tuple[int, int, int],
    shard_mib: int,
    workers: int,
) -> tuple[tuple[Shard, ...], list[Seen]]:
    """Write so many pictures to folder/images-NNNNN.npy, none above `shard_mib` unless one picture is.

    Args:
        folder: is made.
        read: the pictures from a row to before another, uint8 (k, *shape); asked for a few MiB at a time.
        look: is shown the same pictures, and its answers come back in their order.
        rows: how many pictures there are.
        shape: (height, width, channels) of a picture.
        shard_mib: MiB.
        workers: threads that read and look ahead.
    """
    folder.mkdir()
    each = int(np.prod(shape))
    per_shard, step = max(1, (shard_mib * MIB - _HEADER) // each), max(1, _BLOCK // each)

    def work(span: tuple[int, int]) -> tuple[NDArray[np.uint8], Seen]:
        block = np.ascontiguousarray(read(*span))
        return block, look(block)

    shards: list[Shard] = []
    answers: list[Seen] = []
    for number, start in enumerate(range(0, rows, per_shard)):
        end = min(start + per_shard, rows)
        path = folder / f"images-{number:05d}.npy"
        header = {"descr": "|u1", "fortran_order": False, "shape": (end - start, *shape)}
        opening = BytesIO()
        np.lib.format.write_array_header_1_0(opening, header)
        digest = hashlib.sha256(opening.getvalue())
        spans = ((first, min(first + step, end)) for first in range(start, end, step))
        with path.open("wb") as file, ThreadPoolExecutor(1) as beside:
            file.write(opening.getvalue())
            for block, seen in pool.in_order(work, spans, workers=workers):
                digested = beside.submit(digest.update, block.data)
                file.write(block.data)
                digested.result()
                answers.append(seen)
        shards.append(Shard(f"{folder.name}/{path.name}", end - start, digest.hexdigest()))
    return tuple(shards), answers


def write_array(folder: Path, name: str, values: NDArray[Any]) -> PackedFile:
    """Write a small array to folder/NAME.npy."""
    content = BytesIO()
    np.save(content, values, allow_pickle=False)
    files.write_bytes(folder / f"{name}.npy", content.getvalue())
    return PackedFile(f"{folder.name}/{name}.npy", hashlib.sha256(content.getvalue()).hexdigest())


def write_index(packed: Path, index: pl.DataFrame, *, own: Sequence[str] = ()) -> None:
    """Write the table of the packed rows, which come split by split, to index.parquet.

    Columns that only some sources have (`place`, `group`) and the source's `own` come last.
    """
    columns = [name for name in (*_INDEX_COLUMNS, "place", "group", *own) if name in index.columns]
    index = index.with_columns(row=pl.int_range(pl.len()).over("split"))
    index.select(columns).write_parquet(packed / "index.parquet", compression="zstd", row_group_size=1 << 14)


def own_columns(index: pl.DataFrame) -> list[str]:
    """The columns of an index that the source brought along: its groups, and what it calls them itself."""
    return [name for name in index.columns if name not in (*_INDEX_COLUMNS, "place")]


def check_shards(packed: Path, shards: Sequence[Shard], *, shape: tuple[int, int, int], pixels: pl.Series) -> None:
    """Read back what was written: type, shape, row counts, and each shard's first and last picture.

    Args:
        packed: the folder that the shards' paths are relative to.
        shards: of one split.
        shape: (height, width, channels) of a picture.
        pixels: SHA-256 (hex) of each picture's bytes, in order.

    Raises:
        DataError: the disk does not return what was written to it.
    """
    start = 0
    for shard in shards:
        stored = np.load(packed / shard.file, mmap_mode="r", allow_pickle=False)
        ends = {start: 0, start + shard.rows - 1: -1}
        whole = stored.dtype == np.uint8 and stored.shape == (shard.rows, *shape) and stored.flags.c_contiguous
        if not whole or any(
            hashlib.sha256(stored[at].tobytes()).hexdigest() != pixels[row] for row, at in ends.items()
        ):
            raise DataError(f"{shard.file}: does not read back as it was written: check the disk, then ingest again")
        start += shard.rows
    if start != len(pixels):
        raise DataError(
            f"{packed.name}: {start} pictures packed, {len(pixels)} expected: check the disk, then ingest again"
        )
