"""Pixels of samples that were decoded now or are in the current packed set."""

from collections.abc import Callable

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ratchet.data.pack import ReadRows
from ratchet.data.reading.cache import PackedCache
from ratchet.data.reading.worker import Scratch
from ratchet.errors import DataError

__all__ = ["PixelStore"]


class PixelStore:
    """Pixels by sample.

    Args:
        scratch: pixels that were decoded in this ingest.
        cached: pixels of the current packed set.
        decode: decodes samples with columns `place` and `id` into the scratch file and returns their facts.
    """

    def __init__(self, scratch: Scratch, cached: PackedCache, decode: Callable[[pl.DataFrame], pl.DataFrame]) -> None:
        self.shape, self.depth = scratch.shape, scratch.depth
        self._scratch, self._cached, self._decode = scratch, cached, decode

    def locate(self, samples: pl.DataFrame) -> pl.DataFrame:
        """Return the samples with `packed_at`, their place in the current packed set; decode those in neither place.

        Raises:
            DataError: a file changed while it was read.
        """
        cached = samples.select("pixels").join(self._cached.places, on="pixels", how="left", maintain_order="left")
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
                pixels[~decoded] = self._cached.read(packed_at[start:end][~decoded], digests)
            return pixels

        return read
