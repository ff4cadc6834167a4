"""The data card: one offline page about one version of a data set, with the changes since the previous one first."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ratchet import files
from ratchet.data.depth import largest
from ratchet.data.difference import Difference
from ratchet.data.manifest import Manifest
from ratchet.data.split import SPLITS
from ratchet.reports.changed_samples import sample_tables
from ratchet.reports.images import InlineImage, inline, inline_png
from ratchet.reports.templating import render_html

__all__ = ["card"]

Rows = Sequence[Sequence[object]]

_CLASSES = 40  # shown with images; the others are in the table
_IMAGES = 13  # of a class
_LISTED = 24
_IMBALANCE = 10  # times as many samples in the largest class as in the smallest


@dataclass(frozen=True)
class QuarantinedSample:
    """A sample that was kept out of the data."""

    source: str
    thumbnail: InlineImage | None
    rule: str
    value: str
    fix: str


@dataclass(frozen=True)
class NearDuplicates:
    """Two samples with images that look the same."""

    ids: Sequence[str]
    images: Sequence[InlineImage | None]
    splits: Sequence[str]  # each split once
    change: str  # mirrored, turned ...; "": none


@dataclass(frozen=True)
class Imbalance:
    """The smallest and the largest class, with their training samples."""

    smallest: str
    fewest: int
    largest: str
    most: int


@dataclass(frozen=True)
class Issues:
    """All that a person should look at."""

    quarantined: int
    quarantined_by_rule: Mapping[str, int]
    first_quarantined: Sequence[QuarantinedSample]
    released: Rows  # sample, rule, reason, by, at
    conflicts: int  # groups of identical images with different labels
    first_conflicts: Rows  # ids, labels
    near_duplicates: int  # pairs
    across_splits: int
    first_near_duplicates: Sequence[NearDuplicates]
    constant_columns: Sequence[str]
    leaking_columns: Sequence[tuple[str, float, float]]  # name, accuracy by it alone, accuracy of the largest class
    imbalance: Imbalance | None


@dataclass(frozen=True)
class PixelDepth:
    """The scale by which 16-bit images became 8-bit images."""

    bits: int
    largest: int
    samples: int
    clipped: int  # samples with larger values
    by_bits: Mapping[int, int]  # bits of the largest value -> samples


@dataclass(frozen=True)
class _PackedSet:
    """A packed data set, opened."""

    folder: Path
    manifest: Manifest
    index: pl.DataFrame
    profile: Mapping[str, Any]

    @classmethod
    def open(cls, folder: Path) -> "_PackedSet":
        index, profile = pl.read_parquet(folder / "index.parquet"), files.read_json(folder / "profile.json")
        return cls(folder, Manifest.read(folder), index, profile)

    def image(self, split: str, row: int) -> InlineImage | None:
        """Return a packed image; None where images are not packed, or are not 8-bit."""
        for shard in self.manifest.splits[split].shards:
            if row < shard.rows:
                pixels: NDArray[np.uint8] = np.asarray(np.load(self.folder / shard.file, mmap_mode="r")[row])
                return inline(pixels) if pixels.dtype == np.uint8 else None
            row -= shard.rows
        return None

    def image_of(self, id: str) -> InlineImage | None:
        """Return the image of a sample; None also where there is no such sample."""
        sample = self.index.filter(pl.col("id") == id)
        return None if sample.is_empty() else self.image(sample["split"][0], sample["row"][0])


def card(packed: Path, quarantine: Path, *, changed: Difference | None) -> str:
    """Return the page as HTML.

    Args:
        packed: folder of a packed data set.
        quarantine: the table of samples that were kept out of it.
        changed: the difference to the previous version; None: there was none.
    """
    data = _PackedSet.open(packed)
    manifest, counts = data.manifest, data.profile["classes"]
    classes = [(name, *(counts[split][name] for split in SPLITS)) for name in manifest.classes]
    spread = {"brightness": data.profile["brightness"], "contrast": data.profile["contrast"], **data.profile["sizes"]}
    return render_html(
        "data_card.html.j2",
        name=manifest.name,
        version=manifest.digest[:12],
        rows=data.profile["rows"],
        changes=sample_tables(changed, _LISTED) if changed else None,
        changes_summary=changed.summary if changed else "",
        issues=_issues(data, pl.read_parquet(quarantine)),
        splits=SPLITS,
        classes=classes,
        class_totals={name: sum(samples) for name, *samples in classes} if len(classes) <= _CLASSES else {},
        packed_images=not manifest.factory,
        images=_images(data),
        shape=(manifest.width, manifest.height, manifest.channels, manifest.dtype),
        depth=_depth(data),
        mean=_numbers(manifest.mean),
        std=_numbers(manifest.std),
        copies=data.profile["copies_within_splits"],
        formats=data.profile["formats"],
        quantiles=list(spread["brightness"]),
        spread=[(name, *values.values()) for name, values in spread.items()],
    )


def _issues(data: _PackedSet, quarantine: pl.DataFrame) -> Issues:
    conflicts, near = data.profile["label_conflicts"], data.profile["near_duplicates"]
    columns = data.profile["telling"]
    by_rule = quarantine.group_by("rule").len().sort("rule").rows()
    return Issues(
        quarantined=quarantine.height,
        quarantined_by_rule=dict(by_rule),
        first_quarantined=[_quarantined(row) for row in quarantine.head(_LISTED).iter_rows(named=True)],
        released=[(row["source"], row["rule"], row["reason"], row["by"], row["at"]) for row in data.manifest.released],
        conflicts=conflicts["groups"],
        first_conflicts=[(group["ids"], group["classes"]) for group in conflicts["first"][:_LISTED]],
        near_duplicates=near["pairs"] if near else 0,
        across_splits=near["across_splits"] if near else 0,
        first_near_duplicates=[_near_duplicates(data, pair) for pair in near["first"][:_LISTED]] if near else [],
        constant_columns=columns["constant"],
        leaking_columns=[(leak["column"], leak["right"], leak["commonest"]) for leak in columns["class"]],
        imbalance=_imbalance(data.profile["classes"]["train"]),
    )


def _quarantined(row: Mapping[str, Any]) -> QuarantinedSample:
    thumbnail = inline_png(row["thumbnail"]) if row["thumbnail"] else None
    return QuarantinedSample(row["source"], thumbnail, row["rule"], row["value"], row["hint"])


def _near_duplicates(data: _PackedSet, pair: Mapping[str, Any]) -> NearDuplicates:
    change = {"none": "", "turned": "mirrored or turned"}.get(pair.get("change", "none"), pair.get("change", ""))
    images = [data.image_of(id) for id in pair["ids"]]
    return NearDuplicates(pair["ids"], images, list(dict.fromkeys(pair["splits"])), change)


def _imbalance(counts: Mapping[str, int]) -> Imbalance | None:
    names = sorted((name for name, count in counts.items() if count), key=lambda name: counts[name])
    if not names or counts[names[-1]] <= _IMBALANCE * counts[names[0]]:
        return None
    return Imbalance(names[0], counts[names[0]], names[-1], counts[names[-1]])


def _images(data: _PackedSet) -> list[tuple[str, list[InlineImage]]]:
    """Return training images of each class, evenly spread."""
    images = []
    for name in data.manifest.classes[:_CLASSES]:
        samples = data.index.filter((pl.col("class") == name) & (pl.col("split") == "train"))
        step = max(1, samples.height // _IMAGES)
        chosen = samples[::step].head(_IMAGES).select("split", "row").rows()
        images.append((name, [image for split, row in chosen if (image := data.image(split, row))]))
    return images


def _depth(data: _PackedSet) -> PixelDepth | None:
    bits = data.manifest.depth
    if bits is None:
        return None
    by_bits = {int(name): count for name, count in data.profile["depth"]["samples"].items()}
    clipped = sum(count for deepest, count in by_bits.items() if deepest > bits)
    return PixelDepth(bits, largest(bits), sum(by_bits.values()), clipped, by_bits)


def _numbers(values: Sequence[float]) -> str:
    return ", ".join(f"{value:.1f}" for value in values)
