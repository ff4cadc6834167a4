"""Which samples a model saw, by their content: names change, and the same image may have two.

A version keeps the digests of the samples that it was trained and selected on (`provenance/training_rows.parquet`), so
that later models are compared with it on rows that neither saw. Digests are cut to 64 bits: among a million samples
two differing ones are confused with a probability below one in a million.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from io import BytesIO
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ratchet import files

__all__ = ["SEEN", "Samples", "read_samples", "split_samples", "write_samples"]

SEEN = "training_rows.parquet"  # among a version's provenance
Digests = NDArray[np.uint64]

_NO_GROUP = 0
_SPLITS = ("train", "validation", "test")


@dataclass(frozen=True)
class Samples:
    """Digests of samples, uint64 (samples,) each; `groups` is 0 where a sample has none."""

    content: Digests  # of the source's bytes
    pixels: Digests  # of the packed image, so the same image in another file has the same
    groups: Digests

    def __len__(self) -> int:
        return len(self.content)

    def are_in(self, others: "Samples") -> NDArray[np.bool_]:
        """Return for each sample whether `others` has it, the same image in another file, or one of its group."""
        same = np.isin(self.content, others.content) | np.isin(self.pixels, others.pixels)
        found: NDArray[np.bool_] = same | ((self.groups != _NO_GROUP) & np.isin(self.groups, others.groups))
        return found

    @property
    def fingerprint(self) -> str:
        """SHA-256 (hex) of the contents, whatever their order."""
        return sha256(np.sort(self.content).astype("<u8").tobytes()).hexdigest()

    @property
    def uniform(self) -> NDArray[np.float64]:
        """A number in [0, 1) for each sample that depends on its content alone."""
        return self.content.astype(np.float64) / 2.0**64


def split_samples(packed: Path, *splits: str) -> Samples:
    """Return the samples of these splits of a packed set, each split in the order of its rows."""
    import polars

    index = polars.read_parquet(packed / "index.parquet").filter(polars.col("split").is_in(splits))
    order = polars.col("split").replace_strict(dict(zip(_SPLITS, range(len(_SPLITS)), strict=True)))
    index = index.sort(order, "row")
    groups = index["group"].to_list() if "group" in index.columns else [None] * len(index)
    return Samples(
        content=_cut(index["content"].to_list()),
        pixels=_cut(index["pixels"].to_list()),
        groups=_cut([None if group is None else sha256(str(group).encode()).hexdigest() for group in groups]),
    )


def write_samples(path: Path, samples: Samples) -> None:
    """Write a Parquet file; the same samples give the same bytes, whatever their order."""
    import polars

    columns = {name: getattr(samples, name) for name in ("content", "pixels", "groups")}
    table = polars.DataFrame(columns, schema=dict.fromkeys(columns, polars.UInt64)).sort(*columns)
    content = BytesIO()
    table.write_parquet(content, compression="zstd")
    files.write_bytes(path, content.getvalue())


def read_samples(path: Path) -> Samples:
    """Read the file that `write_samples` wrote."""
    import polars

    table = polars.read_parquet(path)
    return Samples(*(table[name].to_numpy() for name in ("content", "pixels", "groups")))


def _cut(digests: Sequence[str | None]) -> Digests:
    """The last 64 bits: the first ones may have decided the split, so among test rows they are not uniform."""
    return np.array([_NO_GROUP if one is None else int(one[-16:], 16) for one in digests], np.uint64)
