"""The samples that a model was trained on, by their content: names change, and the same image can have two.

A version keeps the digests of the samples that it was trained and selected on (`provenance/training_rows.parquet`).
Later models are compared with it on samples that neither was trained on. Digests are cut to 64 bits: among a million
samples, two different ones have the same digest with a probability below one in a million.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from io import BytesIO
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ratchet import files
from ratchet.data.manifest import Manifest
from ratchet.gate.units import Units
from ratchet.kinds.registry import kind_of

__all__ = ["TRAINING_SAMPLES", "Samples", "read_samples", "split_samples", "with_packed", "write_samples"]

TRAINING_SAMPLES = "training_rows.parquet"  # in the folder provenance of a version's run
Digests = NDArray[np.uint64]

_NO_GROUP = 0
_SPLITS = ("train", "validation", "test")


@dataclass(frozen=True)
class Samples:
    """Digests of samples, uint64 (samples,) each; `groups` is 0 where a sample has none."""

    content: Digests  # of the source's bytes
    pixels: Digests  # of the packed image, so that copies in other files are equal
    groups: Digests
    identity: str = ""  # digest of what else decides the digests of equal samples; empty: nothing
    are_copies: bool = False  # samples with equal `pixels` are copies of one

    def __len__(self) -> int:
        return len(self.content)

    def are_in(self, others: "Samples") -> NDArray[np.bool_]:
        """Return for each sample whether `others` has it, a copy of its image, or a sample of its group."""
        same = np.isin(self.content, others.content) | np.isin(self.pixels, others.pixels)
        related: NDArray[np.bool_] = same | ((self.groups != _NO_GROUP) & np.isin(self.groups, others.groups))
        return related

    def joined(self, others: "Samples") -> "Samples":
        """Return these samples and others."""
        content, pixels, groups = (
            np.concatenate([getattr(self, name), getattr(others, name)]) for name in ("content", "pixels", "groups")
        )
        return replace(self, content=content, pixels=pixels, groups=groups)

    @property
    def have_groups(self) -> bool:
        """Whether every sample has a group, which names it whatever its other columns are."""
        return len(self) > 0 and bool((self.groups != _NO_GROUP).all())

    @property
    def units(self) -> tuple[Units, ...]:
        """The samples by group, and images also with their copies; only where at least two samples share one."""
        single = self.groups == _NO_GROUP
        groups = np.where(single, np.arange(len(self)), len(self) + np.unique(self.groups, return_inverse=True)[1])
        copies = (Units.of("copies", self.pixels),) if self.are_copies else ()
        return tuple(units for units in (Units.of("groups", groups), *copies) if units)

    @property
    def fingerprint(self) -> str:
        """SHA-256 (hex) of the contents in any order."""
        return sha256(np.sort(self.content).astype("<u8").tobytes()).hexdigest()


def split_samples(packed: Path, *splits: str) -> Samples:
    """Return the samples of these splits of a packed data set, each split in the order of its rows."""
    import polars

    input = Manifest.read(packed).input
    identity = input.row_identity
    index = polars.read_parquet(packed / "index.parquet").filter(polars.col("split").is_in(splits))
    order = polars.col("split").replace_strict(dict(zip(_SPLITS, range(len(_SPLITS)), strict=True)))
    index = index.sort(order, "row")
    groups = index["group"].to_list() if "group" in index.columns else [None] * len(index)
    return Samples(
        content=_cut(index["content"].to_list()),
        pixels=_cut(index["pixels" if "pixels" in index.columns else "content"].to_list()),
        groups=_cut([None if group is None else sha256(str(group).encode()).hexdigest() for group in groups]),
        identity=files.digest_json(identity)[:16] if identity else "",
        are_copies=kind_of(input).has_pixels,
    )


def with_packed(samples: Samples, digests: NDArray[np.uint64]) -> Samples:
    """Return samples with other digests `pixels`, uint64 (samples, 2): of the rows as another set has packed them."""
    from ratchet.data.tables.digests import hexadecimal

    return replace(samples, pixels=_cut(hexadecimal(digests).to_pylist()))


def write_samples(path: Path, samples: Samples) -> None:
    """Write a Parquet file. The same samples in any order give the same bytes."""
    import polars

    columns = {name: getattr(samples, name) for name in ("content", "pixels", "groups")}
    table = polars.DataFrame(columns, schema=dict.fromkeys(columns, polars.UInt64)).sort(*columns)
    content = BytesIO()
    table.write_parquet(content, compression="zstd")
    files.write_bytes(path, content.getvalue())


def read_samples(path: Path) -> Samples:
    """Read a file of `write_samples`."""
    import polars

    table = polars.read_parquet(path)
    content, pixels, groups = (table[name].to_numpy() for name in ("content", "pixels", "groups"))
    return Samples(content, pixels, groups)


def _cut(digests: Sequence[str | None]) -> Digests:
    """Return the last 64 bits: the first ones can have decided the split, so those of test samples are not uniform."""
    return np.array([_NO_GROUP if digest is None else int(digest[-16:], 16) for digest in digests], np.uint64)
