"""Ingest of a user's own Dataset: read every sample once, judge, describe. The pixels stay where they are.

What is written is a packed set without its shards: labels, keys, each row's index in the Dataset, index, profile and a
manifest that names the user's function and the digest of its code.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ratchet import files
from ratchet.data import contract, pack, quarantine
from ratchet.data.manifest import FORMAT, Manifest, OwnDataset, OwnRows, SplitFiles
from ratchet.data.profile import profile
from ratchet.data.reading.sample import spread
from ratchet.data.sources.factory import Measures, OwnSource
from ratchet.data.split import SPLITS, keys
from ratchet.errors import DataError
from ratchet.settings.model import DataSettings
from ratchet.training.custom_samples import Faulty

__all__ = ["ingest_custom"]

Floats = NDArray[np.float64]
_FIGURES = ("mean", "variance", "low", "high")
_FACTS: dict[str, Any] = {
    "returned": pl.Boolean, "proper": pl.Boolean, "problem": pl.String, "image": pl.String, "dtype": pl.String,
    "channels": pl.Int64, "height": pl.Int64, "width": pl.Int64, "finite": pl.Boolean, "label": pl.Int64,
    "pixels": pl.String, **dict.fromkeys(_FIGURES, pl.List(pl.Float64)),
}  # fmt: skip


def ingest_custom(
    settings: DataSettings,
    *,
    draft: Path,
    packed: Path,
    table: Path,
    root: Path,
    report: Callable[[int, int], None],
    sample: bool = False,
    sample_timeout: float = 0.0,
) -> Manifest:
    """Fill the folder `draft`, which is to become `packed`, and the quarantine table; see `ratchet.data.ingest`."""
    source = OwnSource(settings, root=root, sample_timeout=sample_timeout)
    facts = _survey(source, report, sample=sample)
    total = facts.height
    bad = pl.concat([contract.check_samples(facts, classes=len(source.classes)), contract.duplicate_ids(facts)])
    good = quarantine.without(facts, bad)
    twins = contract.cross_split_duplicates(good)
    bad, good = pl.concat([bad, twins]), quarantine.without(good, twins)
    quarantine.write(table, bad)
    contract.check_bad_fraction(bad, total=total, limit=settings.max_bad_fraction, table=table)
    for split in SPLITS:
        if good.filter(pl.col("split") == split).is_empty():
            raise DataError(
                f"data.factory: every sample of split {split} is bad: each is listed, with a hint, in {table}"
            )

    seen = _Seen(good.filter(pl.col("split") == "train"))
    index = seen.index(good, source.classes)
    contract.check_index(index, settings, classes=source.classes)
    pack.write_index(draft, index)
    by_rule = quarantine.by_rule(bad)
    description = profile(
        index, classes=source.classes, pixels=seen.described,
        conflicts=contract.label_conflicts(index), quarantined=by_rule, terms=contract.sample_terms(facts["image"]),
    )  # fmt: skip
    files.write_json(draft / "profile.json", description)
    told = {"source": settings.source, "quarantined": quarantine.samples(bad), "quarantined_by_rule": by_rule}
    manifest = Manifest.sealed(
        told, format=FORMAT, kind="image", name=source.name, classes=source.classes, **seen.shape,
        mean=tuple(seen.mean.tolist()), std=tuple(seen.std.tolist()),
        splits={split: _write_split(draft / split, index, len(source.ids[split])) for split in SPLITS},
        factory=OwnDataset(
            settings.factory, os.path.relpath(root.absolute(), packed.absolute()), settings.code,
            source.factory.digest(), tuple(seen.low.tolist()), tuple(seen.high.tolist()),
        ),
    )  # fmt: skip
    manifest.write(draft)
    return manifest


def _survey(source: OwnSource, report: Callable[[int, int], None], *, sample: bool) -> pl.DataFrame:
    """One row per sample, in the order of the splits and of the Dataset in each."""
    classes = len(source.classes)
    chosen = {
        split: spread(len(ids), classes=classes, of=classes) if sample else range(len(ids))
        for split, ids in source.ids.items()
    }
    total = sum(map(len, chosen.values()))
    frames, done = [], 0
    for split, places, found in source.read(chosen):
        facts = [_facts(one) for one in found]
        columns = {name: pl.Series([fact.get(name) for fact in facts], dtype=kind) for name, kind in _FACTS.items()}
        place = pl.Series(places, dtype=pl.Int64)
        ids = pl.Series([source.ids[split][one] for one in places], dtype=pl.String)
        row = pl.Series(range(done, done + len(places)), dtype=pl.Int64)
        frames.append(
            pl.DataFrame({"row": row, "id": ids, "place": place, **columns}).with_columns(split=pl.lit(split))
        )
        done += len(places)
        report(done, total)
    return pl.concat(frames)


def _facts(one: Measures | Faulty) -> dict[str, Any]:
    if isinstance(one, Faulty):
        return {"returned": one.rule != "raised", "proper": one.rule != "not-a-sample", "problem": one.problem}
    channels, height, width = one.shape
    named = {name: getattr(one, name) for name in ("label", "image", "dtype", "finite", "pixels", *_FIGURES)}
    return {"returned": True, "proper": True, "channels": channels, "height": height, "width": width, **named}


class _Seen:
    """What the good training images have in common, and how every image looks beside them."""

    def __init__(self, train: pl.DataFrame) -> None:
        self.shape = train.select("height", "width", "channels", "dtype").row(0, named=True)
        mean, variance, low, high = (_figures(train, name) for name in _FIGURES)
        self.mean: Floats = mean.mean(0)
        # All images have as many pixels, so the variance of all is the mean of theirs and the variance of their means.
        deviation: Floats = np.sqrt(variance.mean(0) + mean.var(0))
        self.std: Floats = np.where(deviation > 0, deviation, 1.0)
        is_float = self.shape["dtype"] != "uint8"
        self.low: Floats = low.min(0) if is_float else np.zeros_like(self.mean)
        self.high: Floats = high.max(0) if is_float else np.full_like(self.mean, 255)

    @property
    def described(self) -> dict[str, object]:
        """For the profile."""
        return {name: getattr(self, name).tolist() for name in ("mean", "std", "low", "high")}

    def index(self, good: pl.DataFrame, classes: tuple[str, ...]) -> pl.DataFrame:
        """The rows of index.parquet; brightness and contrast are of the image as it is shown, on the scale 0..255."""
        scale = 255 / np.where(self.high > self.low, self.high - self.low, 1)
        shown = (_figures(good, "mean") - self.low) * scale
        brightness = shown.mean(1)
        contrast = np.sqrt((_figures(good, "variance") * scale**2).mean(1) + shown.var(1))
        return good.select("row", "place", "id", "split", "label", "pixels", "width", "height").with_columns(
            pl.Series("class", pl.Series(classes, dtype=pl.String).gather(good["label"])),
            pl.Series("brightness", np.clip(brightness, 0, 255)),
            pl.Series("contrast", np.clip(contrast, 0, 128)),
            content=pl.col("pixels"), source=pl.col("id"), format=pl.lit(self.shape["dtype"]),
        )  # fmt: skip


def _figures(frame: pl.DataFrame, name: str) -> Floats:
    """A figure of every image: float64 (images, channels)."""
    return frame[name].explode().to_numpy().reshape(frame.height, -1)


def _write_split(folder: Path, index: pl.DataFrame, samples: int) -> SplitFiles:
    mine = index.filter(pl.col("split") == folder.name)
    folder.mkdir()
    pixels = np.frombuffer(bytes.fromhex("".join(mine["pixels"])), np.uint8).reshape(-1, 32)
    labels = pack.write_array(folder, "labels", mine["label"].to_numpy().astype(np.int64))
    named = pack.write_array(folder, "keys", keys(mine["id"].to_list()))
    places = pack.write_array(folder, "places", mine["place"].to_numpy().astype(np.int64))
    own = OwnRows(samples, places, pack.write_array(folder, "pixels", pixels))
    return SplitFiles(mine.height, (), labels, named, own)
