"""Pixels of samples that were decoded now or are in the current packed set."""

import hashlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ratchet.data.manifest import Manifest
from ratchet.data.pack import ReadRows
from ratchet.data.reading.worker import Scratch
from ratchet.data.split import SPLITS
from ratchet.errors import DataError

__all__ = ["PixelStore"]


class PixelStore:
    """Pixels by sample.

    Args:
        scratch: pixels that were decoded in this ingest.
        packed: folder of the current packed set, if there is one; its images are found by the digests of their pixels.
        decode: decodes samples with columns `place` and `id` into the scratch file and returns their facts.
    """

    def __init__(self, scratch: Scratch, packed: Path, decode: Callable[[pl.DataFrame], pl.DataFrame]) -> None:
        self.shape, self.depth = scratch.shape, scratch.depth
        self._scratch, self._decode = scratch, decode
        self._shards: list[NDArray[np.uint8]] = []
        self._packed_at = pl.DataFrame(schema={"pixels": pl.String, "packed_at": pl.Int64})
        with suppress(DataError, OSError, ValueError, pl.exceptions.PolarsError):  # else everything is decoded again
            self._open(packed)
        self._starts = np.cumsum([0, *map(len, self._shards)])

    def _open(self, packed: Path) -> None:
        splits = Manifest.read(packed).splits
        files = [shard.file for split in SPLITS for shard in splits[split].arrays.get("images", ())]
        shards = [np.load(packed / file, mmap_mode="r") for file in files]
        if not shards or shards[0].shape[1:] != self.shape:
            return
        self._shards = shards
        digests = pl.read_parquet(packed / "index.parquet", columns=["pixels"])  # split by split, as the shards
        if digests.height == sum(map(len, self._shards)):
            numbered = digests.with_columns(packed_at=pl.int_range(pl.len()))
            self._packed_at = numbered.unique("pixels", keep="first")

    def locate(self, samples: pl.DataFrame) -> pl.DataFrame:
        """Return the samples with `packed_at`, their place in the current packed set; decode those in neither place.

        Raises:
            DataError: a file changed while it was read.
        """
        cached = samples.select("pixels").join(self._packed_at, on="pixels", how="left", maintain_order="left")
        samples = samples.with_columns(cached["packed_at"])
        missing = samples.select("id", "pixels", "at", "packed_at").with_row_index("place")
        missing = missing.filter(pl.col("at").is_null() & pl.col("packed_at").is_null())
        if missing.is_empty():
            return samples
        decoded = self._decode(missing.select("place", "id"))
        changed = missing["id"].filter(decoded["pixels"].ne_missing(missing["pixels"]))
        if len(changed):
            raise DataError(f"{changed[0]}: changed while it was read. Fix: wait until all is written, then run again")
        return samples.with_columns(at=samples["at"].scatter(missing["place"], decoded["at"]))

    def reader(self, samples: pl.DataFrame) -> ReadRows:
        """Return a function that reads rows of located samples."""
        at, packed_at = (samples[name].fill_null(-1).to_numpy() for name in ("at", "packed_at"))

        def read(start: int, end: int) -> NDArray[np.uint8]:
            rows = at[start:end]
            decoded = rows >= 0
            pixels = np.empty((end - start, *self.shape), np.uint8)
            if decoded.any():
                pixels[decoded] = self._scratch.read(rows[decoded])
            if not decoded.all():
                digests = samples["pixels"][start:end].filter(pl.Series(~decoded)).to_list()
                pixels[~decoded] = self._read_packed(packed_at[start:end][~decoded], digests)
            return pixels

        return read

    def _read_packed(self, places: NDArray[np.int64], digests: list[str]) -> NDArray[np.uint8]:
        shards = np.searchsorted(self._starts, places, side="right") - 1
        images = np.stack(
            [self._shards[shard][place - self._starts[shard]] for shard, place in zip(shards, places, strict=True)]
        )
        if [hashlib.sha256(np.ascontiguousarray(image).data).hexdigest() for image in images] != digests:
            raise DataError("data/packed was altered after it was written. Fix: remove the folder, then ingest again")
        return images
