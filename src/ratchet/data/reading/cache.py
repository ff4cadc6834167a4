"""Facts of the ingest before, so that the next ingest reads only what changed.

Known facts are found in two ways: by a file's name and stamp, so that the file is not even read, and by the digest of
its content, so that it is not decoded, even under another name. The cache belongs to one machine, because stamps mean
nothing on another. Without the cache an ingest takes longer and gives the same output.
"""

import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

import polars as pl

from ratchet import files
from ratchet.code.closure import closure
from ratchet.data.image_rules import FACTS

__all__ = ["FactCache", "write"]

_CACHED_FACTS = [name for name in FACTS if name not in ("label", "permitted")]
_GROUP = 1 << 14  # rows that are encoded in memory at once
_COLUMNS = {"id": pl.String, "stamp": pl.String, **{name: FACTS[name] for name in _CACHED_FACTS}}


class FactCache:
    """Facts of samples as they were when last read.

    Attributes:
        inputs: digest of the last ingest's inputs; None without a usable cache.
        outputs: digest of the last ingest's outputs; None without a usable cache.
        shape: packed shape that the samples were decoded to; None without a usable cache.
    """

    def __init__(self, path: Path | None) -> None:
        """Open the cache file `path`; the cache is empty if the file is missing, damaged or of other decoders."""
        self._path = path
        self._header: dict[str, Any] = {}
        if path is not None:
            try:
                self._header = json.loads(pl.read_parquet_metadata(path)["ratchet"])
            except (OSError, ValueError, KeyError, pl.exceptions.PolarsError):
                self._path = None
        if self._header.get("decoders") != _decoders():
            self._path, self._header = None, {}
        self.inputs, self.outputs = self._header.get("inputs"), self._header.get("outputs")
        self.shape: tuple[int, ...] | None = None if self._path is None else tuple(self._header.get("shape", ()))

    def facts(self, *, shape: tuple[int, ...]) -> pl.DataFrame:
        """Return id, stamp and facts of the samples that need not be read again, decoded to `shape`."""
        unknown = pl.DataFrame(schema=_COLUMNS)
        if self._path is None or self._header["shape"] != list(shape):
            return unknown
        try:
            facts = pl.read_parquet(self._path)
        except (OSError, pl.exceptions.PolarsError):
            return unknown
        if dict(facts.schema) != _COLUMNS:
            return unknown
        # Rows are joined by id, so each sample must occur once, whatever the file contains.
        facts = facts.unique("id", keep="first", maintain_order=True)
        return facts.filter(pl.col("pixels").is_not_null() | pl.col("readable").not_())


def write(path: Path, samples: pl.DataFrame, *, shape: tuple[int, ...], inputs: str, outputs: str) -> None:
    """Write id, stamp and facts of `samples`."""
    header = {"decoders": _decoders(), "shape": list(shape), "inputs": inputs, "outputs": outputs}
    known = samples.select(*_COLUMNS).filter(pl.col("content").is_not_null())
    known = known.filter(pl.col("id").is_first_distinct())
    # Pillow's message for a lack of memory, and for some damaged files: they are read again each time.
    known = known.filter(~pl.col("problem").fill_null("").str.contains("out of memory", literal=True))
    with files.draft_file(path) as draft:
        known.write_parquet(draft, compression="lz4", metadata={"ratchet": json.dumps(header)}, row_group_size=_GROUP)


def _decoders() -> str:
    """Return the versions of everything that decodes: another decoder may give other pixels."""
    code = closure(["ratchet.data.reading.worker"], stage="ingest", choice={"kind": "image"})
    return f"pillow {version('pillow')}, {files.digest_json(code)}"
