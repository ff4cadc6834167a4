"""Ingest of a user's own Dataset: read every sample once, check it and describe it. Its pixels are not packed.

The packed set has no shards. It has labels, keys, each row's index in the Dataset, the index, the profile, and a
manifest with the user's function and the digest of its code.
"""

import os
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray
from pandera import polars as pa

from ratchet import files
from ratchet.data import overrides, pack, quarantine, set_rules
from ratchet.data.checks import exact_duplicates
from ratchet.data.checks.far_values import moments
from ratchet.data.manifest import CustomDataset, CustomRows, Manifest
from ratchet.data.packed_set import IngestTask, PackedSet, without_copies
from ratchet.data.profile import image_profile
from ratchet.data.reading.subset import evenly_spaced
from ratchet.data.sample_rules import failures, must, terms
from ratchet.data.sources.factory import CustomSource
from ratchet.data.split import SPLITS
from ratchet.data.tables.targets import TargetTable
from ratchet.errors import DataError
from ratchet.kinds import ImageInput
from ratchet.problems import Classes

__all__ = ["ingest_custom"]

Floats = NDArray[np.float64]
_STATISTICS = ("mean", "variance", "low", "high")
_FACTS: dict[str, Any] = {
    "returned": pl.Boolean, "proper": pl.Boolean, "problem": pl.String, "image": pl.String, "dtype": pl.String,
    "channels": pl.Int64, "height": pl.Int64, "width": pl.Int64, "finite": pl.Boolean, "label": pl.Int64,
    "pixels": pl.String, **dict.fromkeys(_STATISTICS, pl.List(pl.Float64)),
}  # fmt: skip


def ingest_custom(task: IngestTask) -> Manifest:
    """Ingest a user's own Dataset; see `ratchet.data.ingest`."""
    settings = task.settings
    source = CustomSource(settings, root=task.root, sample_timeout=task.sample_timeout)
    facts = _survey(source, task)
    good, bad = _check(facts, source, task)
    measured = _Measured(good.filter(pl.col("split") == "train"))
    index = measured.index(good, source.classes)
    set_rules.check_index(index, settings, classes=source.classes)
    labels = index["label"].to_numpy().astype(np.int64)
    packed = PackedSet(
        name=source.name, source=settings.source, index=index, bad=bad, released=overrides.read(None),
        labels=TargetTable(Classes, "", source.classes, labels, index["class"], {}),
    )  # fmt: skip
    request = terms(_rules(facts["image"], classes=1), ("image", "finite"))
    profile = image_profile(index, packed.labels, pixels=measured.pixel_statistics, request=request)
    lengths = {str(split): len(ids) for split, ids in source.ids.items()}
    with files.draft_directory(task.packed) as draft:
        return packed.write(
            draft, describe=lambda: (measured.input, profile | {"notes": measured.notes}),
            arrays=lambda folder, part: _write_rows(folder, index[part], lengths[folder.name]),
            factory=CustomDataset(
                settings.factory, os.path.relpath(task.root.absolute(), task.packed.absolute()), settings.code,
                source.factory.digest(), tuple(measured.low.tolist()), tuple(measured.high.tolist()),
            ),
        )  # fmt: skip


def _check(facts: pl.DataFrame, source: CustomSource, task: IngestTask) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the good samples and the quarantine table, which is written too."""
    broken = failures(facts, _rules(facts["image"], len(source.classes)))
    bad = pl.concat([broken, exact_duplicates.duplicate_ids(facts)])
    good, bad = without_copies(quarantine.without(facts, bad), bad, digest="pixels")
    task.check_quarantine(bad, total=facts.height)
    for split in SPLITS:
        if good.filter(pl.col("split") == split).is_empty():
            raise DataError(
                f"data.factory: every sample of split {split} is bad. {task.quarantine} lists each with a hint"
            )
    return good, bad


def _survey(source: CustomSource, task: IngestTask) -> pl.DataFrame:
    """Read the samples. Return one row per sample, split by split in the order of the Dataset."""
    classes = len(source.classes)
    chosen = {
        split: evenly_spaced(len(ids), classes=classes, of=classes) if task.sample else range(len(ids))
        for split, ids in source.ids.items()
    }
    total = sum(map(len, chosen.values()))
    frames, done = [], 0
    for split, places, facts in source.read(chosen):
        columns = {
            name: pl.Series([getattr(fact, name) for fact in facts], dtype=kind) for name, kind in _FACTS.items()
        }
        place = pl.Series(places, dtype=pl.Int64)
        ids = pl.Series([source.ids[split][at] for at in places], dtype=pl.String)
        row = pl.Series(range(done, done + len(places)), dtype=pl.Int64)
        frames.append(
            pl.DataFrame({"row": row, "id": ids, "place": place, **columns}).with_columns(split=pl.lit(split))
        )
        done += len(places)
        task.report(done, total)
    return pl.concat(frames)


def _rules(images: pl.Series, classes: int) -> dict[str, pa.Column]:
    """Return the rules about a sample, by column of its facts. `images`: a text with type and shape of each image."""
    common = images.drop_nulls().mode().sort().head(1).to_list()
    return {
        "id": pa.Column(pl.String),
        "row": pa.Column(pl.Int64),
        "returned": pa.Column(pl.Boolean, must("raised")),
        "proper": pa.Column(pl.Boolean, must("not-a-sample")),
        "problem": pa.Column(pl.String, nullable=True),
        "image": pa.Column(pl.String, pa.Check.isin(common, error="other-shape"), nullable=True),
        "finite": pa.Column(pl.Boolean, must("not-finite"), nullable=True),
        "label": pa.Column(pl.Int64, pa.Check.in_range(0, classes - 1, error="unknown-label"), nullable=True),
    }


class _Measured:
    """Statistics of the good training images.

    Attributes:
        shape: height, width, channels and dtype, which all images share.
        mean, std, low, high: per channel, over all pixels of the images without far pixels.
        far: ids of the other images.
        limits: lowest and highest pixel for a network, if there are such images; else empty.
    """

    def __init__(self, train: pl.DataFrame) -> None:
        self.shape = train.select("height", "width", "channels", "dtype").row(0, named=True)
        lowest, highest = (_per_channel(train, name) for name in ("low", "high"))
        ranges = [moments(lowest.min(1)), moments(highest.max(1))]
        is_far = np.zeros(train.height, bool)
        for scale, values in zip(ranges, (lowest.min(1), highest.max(1)), strict=True):
            if scale.range:
                is_far |= (values < scale.range[0]) | (values > scale.range[1])
        self.far, usual = train["id"].filter(pl.Series(is_far)).to_list(), train.filter(pl.Series(~is_far))
        mean, variance, low, high = (_per_channel(usual, name) for name in _STATISTICS)
        width = float(high.max() - low.min()) or 1.0
        self.limits: tuple[float, ...] = (float(low.min()) - width, float(high.max()) + width) if self.far else ()
        self.mean: Floats = mean.mean(0)
        # All images have the same number of pixels, so the total variance is the mean of their variances plus the
        # variance of their means.
        deviation: Floats = np.sqrt(variance.mean(0) + mean.var(0))
        self.std: Floats = np.where(deviation > 0, deviation, 1.0)
        is_float = self.shape["dtype"] != "uint8"
        self.low: Floats = low.min(0) if is_float else np.zeros_like(self.mean)
        self.high: Floats = high.max(0) if is_float else np.full_like(self.mean, 255)

    @property
    def input(self) -> ImageInput:
        usual = (float(self.low.min()), float(self.high.max())) if self.shape["dtype"] != "uint8" else ()
        return ImageInput(
            **self.shape, mean=tuple(self.mean.tolist()), std=tuple(self.std.tolist()), limits=self.limits, range=usual
        )

    @property
    def notes(self) -> list[str]:
        """A note about the images with far pixels."""
        if not self.far:
            return []
        lowest, highest = self.limits
        return [
            f"{len(self.far):,} training images have pixels far from those of the others ({self.low.min():g} to "
            f"{self.high.max():g}), such as {self.far[0]}. Networks get {lowest:g} or {highest:g} for "
            "them. If they mean missing, replace them in the Dataset"
        ]

    @property
    def pixel_statistics(self) -> dict[str, object]:
        """Statistics for the profile."""
        return {name: getattr(self, name).tolist() for name in ("mean", "std", "low", "high")}

    def index(self, good: pl.DataFrame, classes: tuple[str, ...]) -> pl.DataFrame:
        """Return the rows of index.parquet. Brightness and contrast are of the displayed image, 0..255."""
        scale = 255 / np.where(self.high > self.low, self.high - self.low, 1)
        shown = (_per_channel(good, "mean") - self.low) * scale
        brightness = shown.mean(1)
        contrast = np.sqrt((_per_channel(good, "variance") * scale**2).mean(1) + shown.var(1))
        return good.select("row", "place", "id", "split", "label", "pixels", "width", "height").with_columns(
            pl.Series("class", pl.Series(classes, dtype=pl.String).gather(good["label"])),
            pl.Series("brightness", np.clip(brightness, 0, 255)),
            pl.Series("contrast", np.clip(contrast, 0, 128)),
            content=pl.col("pixels"), source=pl.col("id"), format=pl.lit(self.shape["dtype"]),
        )  # fmt: skip


def _per_channel(frame: pl.DataFrame, name: str) -> Floats:
    """Return a statistic of every image: float64 (images, channels)."""
    return frame[name].explode().to_numpy().reshape(frame.height, -1)


def _write_rows(folder: Path, rows: pl.DataFrame, samples: int) -> CustomRows:
    pixels = np.frombuffer(bytes.fromhex("".join(rows["pixels"])), np.uint8).reshape(-1, 32)
    places = pack.write_array(folder, "places", rows["place"].to_numpy().astype(np.int64))
    return CustomRows(samples, places, pack.write_array(folder, "pixels", pixels))
