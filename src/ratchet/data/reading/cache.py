"""What earlier ingests found out, so that the next one looks at what changed and at nothing else.

Two ways lead back to what is known: a file's name and stamp, which spare even reading it, and the digest of its
content, which spares decoding it, whatever it is called now. A memo belongs to one machine: stamps mean nothing on
another. Whoever loses it loses time and nothing else, for equal input gives equal output with and without.
"""

import hashlib
import io
import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ratchet import files
from ratchet.data import depth
from ratchet.data.contract import FACTS
from ratchet.data.manifest import Manifest
from ratchet.data.reading import identify, images
from ratchet.data.split import SPLITS
from ratchet.errors import DataError

__all__ = ["Earlier", "Memo", "write"]

_REMEMBERED = [name for name in FACTS if name not in ("label", "permitted")]
_COLUMNS = {"id": pl.String, "stamp": pl.String, **{name: FACTS[name] for name in _REMEMBERED}}


class Memo:
    """Facts of samples as they were when last read. `inputs` and `outputs`: what the last ingest read and wrote."""

    def __init__(self, path: Path | None) -> None:
        """What is remembered in `path`; nothing if it is damaged."""
        self._path = path
        self._told: dict[str, Any] = {}
        if path is not None:
            try:
                self._told = json.loads(pl.read_parquet_metadata(path)["ratchet"])
            except (OSError, ValueError, KeyError, pl.exceptions.PolarsError):
                self._path = None
        if self._told.get("decoders") != _decoders():
            self._path = None
        self.inputs, self.outputs = self._told.get("inputs"), self._told.get("outputs")
        self.shape: tuple[int, ...] | None = None if self._path is None else tuple(self._told.get("shape", ()))

    def facts(self, *, shape: tuple[int, ...], whole: bool) -> pl.DataFrame:
        """Id, stamp and facts of what need not be looked at again, the pictures among it decoded to `shape`.

        With `whole` also the digests at full size are needed.
        """
        if self._path is None or self._told["shape"] != list(shape):
            return pl.DataFrame(schema=_COLUMNS)
        if whole and not self._told["whole"]:
            return pl.DataFrame(schema=_COLUMNS)
        try:
            facts = pl.read_parquet(self._path)
        except (OSError, pl.exceptions.PolarsError):
            return pl.DataFrame(schema=_COLUMNS)
        if dict(facts.schema) != _COLUMNS:
            return pl.DataFrame(schema=_COLUMNS)
        # One row for each sample, whatever the file holds: rows are joined by id.
        facts = facts.unique("id", keep="first", maintain_order=True)
        return facts.filter(pl.col("pixels").is_not_null() | pl.col("readable").not_())


def write(
    path: Path, samples: pl.DataFrame, *, shape: tuple[int, ...], whole: bool, inputs: str, outputs: str
) -> None:  # fmt: skip
    """Remember what is known of `samples`: id, stamp and facts. `whole`: with their digests at full size."""
    told = {"decoders": _decoders(), "shape": list(shape), "whole": whole, "inputs": inputs, "outputs": outputs}
    content = io.BytesIO()
    kept = samples.filter(pl.col("content").is_not_null()).unique("id", keep="first", maintain_order=True)
    kept = kept.select(*_COLUMNS)
    kept.write_parquet(content, compression="lz4", metadata={"ratchet": json.dumps(told)})
    files.write_bytes(path, content.getvalue())


def _decoders() -> str:
    """What decodes: another decoder may give other pixels."""
    code = (images.__file__, depth.__file__, identify.__file__)
    return ", ".join([f"pillow {version('pillow')}", *(files.digest_file(Path(path)) for path in code)])


class Earlier:
    """The pictures of the packed set that stands in a folder now, to be had by the digests of their pixels."""

    def __init__(self, packed: Path, *, shape: tuple[int, ...]) -> None:
        self.places = pl.DataFrame(schema={"pixels": pl.String, "earlier": pl.Int64})
        self._shards: list[NDArray[np.uint8]] = []
        try:
            manifest = Manifest.read(packed)
            if (manifest.height, manifest.width, manifest.channels) != (shape[0], *shape[:2]) or manifest.factory:
                return
            shards = [shard for split in SPLITS for shard in manifest.splits[split].shards]
            self._shards = [np.load(packed / shard.file, mmap_mode="r") for shard in shards]
            digests = pl.read_parquet(packed / "index.parquet", columns=["pixels"])  # split by split, as the shards
        except (DataError, OSError, ValueError, pl.exceptions.PolarsError):
            return  # nothing there that could be used: it is worked out anew
        if digests.height == sum(map(len, self._shards)):
            self.places = digests.with_columns(earlier=pl.int_range(pl.len())).unique("pixels", keep="first")
        self._starts = np.cumsum([0, *map(len, self._shards)])

    def read(self, places: NDArray[np.int64], digests: list[str]) -> NDArray[np.uint8]:
        """The pictures at `places`, uint8 (k, side, side, channels), which have these digests.

        Raises:
            DataError: they do not: the packed set was altered.
        """
        shards = np.searchsorted(self._starts, places, side="right") - 1
        found = np.stack(
            [self._shards[shard][place - self._starts[shard]] for shard, place in zip(shards, places, strict=True)]
        )
        if [hashlib.sha256(np.ascontiguousarray(one).data).hexdigest() for one in found] != digests:
            raise DataError("data/packed was altered since it was made: remove the folder, then ingest again")
        return found
