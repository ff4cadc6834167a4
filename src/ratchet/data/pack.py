"""Typed arrays in shards, written as a stream and read by memory map.

Pixels pass once through a scratch file, because which rows are packed, and into which split, is known only when all are
decoded. Plain writes, not a writable memory map: on a full disk they give an error, where a map gives a dead process.
"""

import hashlib
from collections.abc import Callable, Sequence
from io import BytesIO
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ratchet import files
from ratchet.data.manifest import PackedFile, Shard
from ratchet.data.split import SPLITS
from ratchet.errors import DataError

__all__ = ["Scratch", "check_shards", "write_array", "write_index", "write_shards"]

_BLOCK = 8 << 20  # bytes moved at a time
_HEADER = 128  # bytes of a .npy header for these shapes
MIB = 1 << 20
_INDEX_COLUMNS = (
    "split", "row", "id", "source", "label", "class", "content", "pixels",
    "width", "height", "format", "brightness", "contrast",
)  # fmt: skip


class Scratch:
    """Decoded pictures in the order they came, on disk; gone when the context ends."""

    def __init__(self, path: Path, *, size: int, channels: int) -> None:
        self.path = path
        self.shape = (size, size, channels)
        self.rows = 0
        self._file: BinaryIO | None = None

    def __enter__(self) -> "Scratch":
        self._file = self.path.open("wb")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self._file is not None:
                self._file.close()
        except OSError:
            if error is None:  # otherwise the disk's first complaint is on its way already
                raise
        finally:
            self.path.unlink(missing_ok=True)

    def append(self, pixels: NDArray[np.uint8]) -> int:
        """Add one picture, uint8 (size, size, channels); its row."""
        assert self._file is not None
        assert pixels.shape == self.shape
        assert pixels.dtype == np.uint8
        self._file.write(pixels.data)
        self.rows += 1
        return self.rows - 1

    def read(self, rows: NDArray[np.int64]) -> NDArray[np.uint8]:
        """The pictures at `rows`, uint8 (k, size, size, channels)."""
        assert self._file is not None
        self._file.flush()
        stored = np.memmap(self.path, dtype=np.uint8, mode="r", shape=(self.rows, *self.shape))
        return np.asarray(stored[rows])


def write_shards(
    folder: Path,
    read: Callable[[int, int], NDArray[np.uint8]],
    *,
    rows: int,
    shape: tuple[int, int, int],
    shard_mib: int,
) -> tuple[tuple[Shard, ...], NDArray[np.int64]]:
    """Write so many pictures to folder/images-NNNNN.npy, none above `shard_mib` unless one picture is.

    Args:
        folder: is made.
        read: the pictures from a row to before another, uint8 (k, *shape); asked for a few MiB at a time.
        rows: how many pictures there are.
        shape: (height, width, channels) of a picture.
        shard_mib: MiB.

    Returns:
        the shards, and how often each value occurs: int64 (channels, 256).
    """  # fmt: skip
    folder.mkdir()
    each = int(np.prod(shape))
    per_shard, step = max(1, (shard_mib * MIB - _HEADER) // each), max(1, _BLOCK // each)
    histogram = np.zeros((shape[-1], 256), np.int64)
    shards = []
    for number, start in enumerate(range(0, rows, per_shard)):
        end = min(start + per_shard, rows)
        path = folder / f"images-{number:05d}.npy"
        header = {"descr": "|u1", "fortran_order": False, "shape": (end - start, *shape)}
        opening = BytesIO()
        np.lib.format.write_array_header_1_0(opening, header)
        digest = hashlib.sha256(opening.getvalue())
        with path.open("wb") as file:
            file.write(opening.getvalue())
            for first in range(start, end, step):
                block = np.ascontiguousarray(read(first, min(first + step, end)))
                digest.update(block.data)
                file.write(block.data)
                for channel, counts in enumerate(histogram):
                    counts += np.bincount(block[..., channel].ravel(), minlength=256)
        shards.append(Shard(f"{folder.name}/{path.name}", end - start, digest.hexdigest()))
    return tuple(shards), histogram


def write_array(folder: Path, name: str, values: NDArray[Any]) -> PackedFile:
    """Write a small array to folder/NAME.npy."""
    content = BytesIO()
    np.save(content, values, allow_pickle=False)
    files.write_bytes(folder / f"{name}.npy", content.getvalue())
    return PackedFile(f"{folder.name}/{name}.npy", hashlib.sha256(content.getvalue()).hexdigest())


def write_index(packed: Path, index: pl.DataFrame, *, own: Sequence[str] = ()) -> None:
    """Write the table of the packed rows to index.parquet, split by split, each in the order of `index`.

    Columns that only some sources have (`place`, `group`) and the source's `own` come last.
    """
    ranked = index.with_columns(row=pl.int_range(pl.len()).over("split"))
    ordered = pl.concat([ranked.filter(pl.col("split") == name) for name in SPLITS])
    columns = [name for name in (*_INDEX_COLUMNS, "place", "group", *own) if name in index.columns]
    content = BytesIO()
    ordered.select(columns).write_parquet(content, compression="zstd", row_group_size=1 << 17)
    files.write_bytes(packed / "index.parquet", content.getvalue())


def check_shards(packed: Path, shards: Sequence[Shard], *, shape: tuple[int, int, int], pixels: Sequence[str]) -> None:
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
