"""The data card: one offline page about one version of a data set, with the changes since the previous one first."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ratchet import files
from ratchet.data.checks.class_shares import other_shares
from ratchet.data.difference import Difference
from ratchet.data.manifest import Manifest
from ratchet.data.split import SPLITS
from ratchet.kinds.image.depth import largest
from ratchet.reports.inline_images import InlineImage, inline, inline_png
from ratchet.reports.templating import render_html

__all__ = ["card", "shows"]

_CLASSES = 40  # shown with images; the others are in the table
_IMAGES = 13  # of a class
_LISTED = 24
_COLUMNS, _VALUES = 60, 12  # of a table that are drawn
_MOST_COLUMNS = 300  # of a table that are listed
_DIGITS = 12  # of a version
_IMBALANCE = 10  # times as many samples in the largest class as in the smallest


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
    profile: Mapping[str, Any]

    @classmethod
    def open(cls, folder: Path) -> "_PackedSet":
        return cls(folder, Manifest.read(folder), files.read_json(folder / "profile.json"))

    @cached_property
    def index(self) -> pl.DataFrame:
        """Split, row and class of each sample, by its id."""
        return pl.read_parquet(self.folder / "index.parquet", columns=["id", "split", "row", "class"])

    def image(self, split: str, row: int) -> InlineImage | None:
        """Return a packed image; None where images are not packed, or are not 8-bit."""
        for shard in self.manifest.splits[split].arrays.get("images", ()):
            if row < shard.rows:
                pixels: NDArray[np.uint8] = np.asarray(np.load(self.folder / shard.file, mmap_mode="r")[row])
                return inline(pixels) if pixels.dtype == np.uint8 else None
            row -= shard.rows
        return None

    def image_of(self, id: str) -> InlineImage | None:
        """Return the image of a sample; None also where there is no such sample."""
        sample = self.index.filter(pl.col("id") == id)
        return None if sample.is_empty() else self.image(sample["split"][0], sample["row"][0])


def shows(path: Path, manifest: Manifest) -> bool:
    """Return whether a card is that of this version."""
    return f"Data card, version {manifest.digest[:_DIGITS]}<" in path.read_text(encoding="utf-8")


def card(packed: Path, quarantine: Path, *, changed: Difference | None) -> str:
    """Return the page as HTML."""
    data = _PackedSet.open(packed)
    manifest, profile, quarantined = data.manifest, data.profile, pl.read_parquet(quarantine)
    classes = [(name, *(profile["classes"][split][name] for split in SPLITS)) for name in profile["classes"]["train"]]
    return render_html(
        "data_card.html.j2",
        manifest=manifest,
        profile=profile,
        columns=profile["telling"],
        inputs={column["name"] for column in profile.get("columns", ())},
        notes=[*profile.get("problem", {}).get("notes", []), *profile.get("notes", [])],
        changes=changed,
        listed=_LISTED,
        quarantined=quarantined.height,
        quarantined_by_rule=dict(quarantined.group_by("rule").len().sort("rule").rows()),
        first_quarantined=[_with_thumbnail(row) for row in quarantined.head(_LISTED).iter_rows(named=True)],
        released=[(row["source"], row["rule"], row["reason"], row["by"], row["at"]) for row in manifest.released],
        other_shares=other_shares(profile["classes"]),
        imbalance=_imbalance(profile["classes"]["train"]),
        splits=SPLITS,
        classes=classes,
        targets=profile.get("targets", {}),
        class_totals={name: sum(samples) for name, *samples in classes} if len(classes) <= _CLASSES else {},
        **_values(data),
    )


def _values(data: _PackedSet) -> dict[str, Any]:
    """Return what the card shows by what the profile has."""
    values: dict[str, Any] = {"first_near_duplicates": [], "spread": [], "facts": {}, "unit": "samples"}
    for part in (_image_values, _column_values, _array_values, _text_values):
        values |= part(data)
    return values


def _image_values(data: _PackedSet) -> dict[str, Any]:
    """Return what the card shows of images."""
    profile = data.profile
    if "pixels" not in profile:
        return {}
    near = profile["near_duplicates"]["first"][:_LISTED] if profile["near_duplicates"] else []
    spread = {"brightness": profile["brightness"], "contrast": profile["contrast"], **profile["sizes"]}
    return {
        "first_near_duplicates": [{**pair, "images": [data.image_of(id) for id in pair["ids"]]} for pair in near],
        "samples": _images(data),
        "depth": _depth(data),
        "mean": _numbers(profile["pixels"]["mean"]),
        "std": _numbers(profile["pixels"]["std"]),
        "quantiles": list(spread["brightness"]),
        "spread": [(name, *values.values()) for name, values in spread.items()],
    }


def _column_values(data: _PackedSet) -> dict[str, Any]:
    """Return what the card shows of tables: the facts and the distribution of each column."""
    if "columns" not in data.profile:
        return {"columns_listed": []}
    drift = data.profile["contract"]["drift"]
    listed = [
        (column["name"], column["type"], column["why"], column.get("missing"), column.get("distinct"))
        for column in data.profile["columns"]
    ]
    dates = {column["name"] for column in data.profile["columns"] if column["type"] == "datetime"}
    drawn = {name: _distribution(drift[name], dates=name in dates) for name in list(drift)[:_COLUMNS]}
    return {
        "columns_listed": listed[:_MOST_COLUMNS],
        "columns_total": len(listed),
        "distributions": drawn,
        "distributions_total": len(drift),
    }


def _array_values(data: _PackedSet) -> dict[str, Any]:
    """Return what the card shows of the arrays of a user's own kind."""
    keys = ("mean", "std", "min", "median", "max")
    listed = [
        (array["name"], array["type"], " x ".join(map(str, array["shape"])) or "1", *(array[key] for key in keys))
        for array in data.profile.get("arrays", ())
    ]
    return {"arrays": listed}


def _distribution(bins: Mapping[str, Any], *, dates: bool) -> dict[str, int]:
    """Return the number of training rows by value, or by range of values."""
    if "values" in bins:
        largest = sorted(bins["values"].items(), key=lambda item: -item[1])
        return dict(largest[:_VALUES])
    edges = [_date(edge) if dates else f"{edge:.6g}" for edge in bins["edges"]]
    between = map(" to below ".join, itertools.pairwise(edges))
    names = [f"below {edges[0]}", *between, f"{edges[-1]} and more"] if edges else []
    return {name: count for name, count in zip(names, bins["counts"], strict=False) if count}


def _date(seconds: float) -> str:
    """Return seconds since 1970-01-01 UTC as a date."""
    return str(np.datetime64(round(seconds), "s"))[:10]


def _text_values(data: _PackedSet) -> dict[str, Any]:
    """Return what the card shows of texts, or of a token stream."""
    profile = data.profile
    if "texts" in profile:
        return {"first_near_duplicates": profile["near_duplicates"]["first"][:_LISTED], "facts": profile["texts"]}
    if "distinct_characters" not in profile:
        return {}
    facts = {f"{part}, {split}": profile[part][split] for part in ("characters", "lines", "files") for split in SPLITS}
    facts["different characters, train"] = profile["distinct_characters"]
    facts |= {
        f"characters only in {split}": " ".join(map(repr, texts[:_VALUES])) or "none"
        for split, texts in profile["unseen_characters"].items()
    }
    return {"facts": facts, "unit": "bytes"}


def _with_thumbnail(row: Mapping[str, Any]) -> dict[str, Any]:
    return {**row, "thumbnail": inline_png(row["thumbnail"]) if row["thumbnail"] else None}


def _imbalance(counts: Mapping[str, int]) -> tuple[str, str] | None:
    """Return the smallest and the largest class, where they differ much."""
    names = sorted((name for name, count in counts.items() if count), key=lambda name: counts[name])
    if not names or counts[names[-1]] <= _IMBALANCE * counts[names[0]]:
        return None
    return names[0], names[-1]


def _images(data: _PackedSet) -> list[tuple[str, list[InlineImage]]]:
    """Return training images, evenly spread: of each class, or from the smallest to the largest number."""
    train = data.index.filter(pl.col("split") == "train")
    groups = [(name, train.filter(pl.col("class") == name)) for name in data.profile["classes"]["train"]]
    target = data.manifest.target
    if not target.has_accuracy and target.outputs == 1:
        ordered = train.sort(pl.col("class").cast(pl.Float64, strict=False))
        groups = [(f"from the smallest to the largest {target.names[0]}", ordered)]
    elif not groups:
        groups = [("all", train)]
    return [(name, _spread(data, samples)) for name, samples in groups[:_CLASSES]]


def _spread(data: _PackedSet, samples: pl.DataFrame) -> list[InlineImage]:
    chosen = samples[:: max(1, samples.height // _IMAGES)].head(_IMAGES).select("split", "row").rows()
    return [image for split, row in chosen if (image := data.image(split, row))]


def _depth(data: _PackedSet) -> PixelDepth | None:
    if "depth" not in data.profile:
        return None
    bits = data.profile["depth"]["bits"]
    by_bits = {int(name): count for name, count in data.profile["depth"]["samples"].items()}
    clipped = sum(count for deepest, count in by_bits.items() if deepest > bits)
    return PixelDepth(bits, largest(bits), sum(by_bits.values()), clipped, by_bits)


def _numbers(values: Sequence[float]) -> str:
    return ", ".join(f"{value:.1f}" for value in values)
