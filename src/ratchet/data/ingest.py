"""From a source to a packed set: survey, judge, decode, judge, split, judge, pack. Whole, or not at all.

Every sample is read twice: once for its header and digest, which decide what may be decoded and, where the settings
say `auto`, the packed shape; once for its pixels. Memory holds facts about all samples but pixels of a few.
"""

import hashlib
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ratchet import files
from ratchet.data import contract, pack, pictures, pool, quarantine, split
from ratchet.data.manifest import FORMAT, Manifest, SplitFiles
from ratchet.data.profile import channel_statistics, packed_pixels, profile
from ratchet.data.sample import sampled
from ratchet.data.sources import Sample, Source, open_source
from ratchet.params import DataSettings
from ratchet.workspace import disk_errors

__all__ = ["ingest"]

Report = Callable[[int, int], None]

AUTO_SIDE = 64  # pixels: the packed side where pictures differ in size or are larger
_SURVEY_CHUNK = 128  # samples per piece of work
_DECODE_BYTES = 4 << 20  # packed bytes per piece of work


def ingest(
    settings: DataSettings, *, packed: Path, quarantine: Path, root: Path, report: Report, sample: bool = False
) -> Manifest:
    """Read the source, keep out what is bad, split, and pack the rest into folder `packed`.

    Equal input gives equal bytes, whatever the number of workers, the machine or the order in a folder.

    Args:
        settings: the `data` section; its path is relative to `root`.
        packed: the folder to fill; on any error it stays as it was.
        quarantine: the Parquet table of what was kept out; written even if empty, and when too much is bad.
        root: the project folder.
        report: called with (done, total) as work goes on.
        sample: take only a few samples of each class, from all over the source.

    Raises:
        SettingsError: the source's name is not known.
        DataError: the source cannot be read, too many samples are bad, or the whole set breaks a rule.
        WorkspaceError: the disk is full or cannot be written.
    """
    if settings.source == "factory":
        from ratchet.data.unpacked import ingest_own  # imports torch

        with disk_errors(packed), files.draft_directory(packed) as draft:
            return ingest_own(
                settings, draft=draft, packed=packed, table=quarantine, root=root, report=report, sample=sample
            )
    with pictures.patient_pillow():
        source = open_source(settings, root=root)
        with disk_errors(packed), files.draft_directory(packed) as draft:
            return _Ingest(settings, source, quarantine, report, sample=sample).into(draft)


class _Ingest:
    """One ingest under way."""

    def __init__(self, settings: DataSettings, source: Source, table: Path, report: Report, *, sample: bool) -> None:
        self.settings = settings
        self.source = source
        self.table = table
        self.samples = sampled(source) if sample else list(source.samples())
        self.workers = pool.threads(settings.workers)
        self._report = report
        self._done = self._told = 0

    def into(self, draft: Path) -> Manifest:
        """Fill the draft of the packed folder."""
        surveyed = self._survey()
        bad = contract.check_facts(surveyed, self.settings, classes=len(self.source.classes))
        readable = quarantine.without(surveyed, bad)
        if readable.is_empty():
            self._stop_if_bad(bad)
        while True:
            size, channels = self._shape(readable)
            with pack.Scratch(draft / "scratch", size=size, channels=channels) as scratch:
                decoded, undecodable = self._decode(readable, scratch)
                good = quarantine.without(readable, undecodable)
                if good.is_empty():
                    self._stop_if_bad(pl.concat([bad, undecodable]))
                if self._shape(good) == (size, channels):
                    return self._pack(draft, good, decoded, pl.concat([bad, undecodable]), scratch)
            readable, bad = good, pl.concat([bad, undecodable])  # rare: only broken files asked for another shape

    def _survey(self) -> pl.DataFrame:
        """Facts about every sample, in id order."""
        frames, start = [], 0
        work = _each(pictures.survey)
        for part, facts in pool.in_order(work, self.samples, chunk=_SURVEY_CHUNK, workers=self.workers):
            rows = range(start, start + len(part))
            frames.append(contract.facts_frame(rows, [sample.id for sample in part], facts))
            start += len(part)
            self._advance(len(part))
        return contract.with_conclusions(pl.concat(frames))

    def _decode(self, readable: pl.DataFrame, scratch: pack.Scratch) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Fill the scratch file: (measures of what went in, in order; quarantine rows of what did not)."""
        size, _, channels = scratch.shape
        chosen = [self.samples[row] for row in readable["row"]]
        self._done = len(self.samples) * 2 - len(chosen)
        work = _each(partial(_decode_and_measure, size=size, channels=channels))
        chunk = max(1, min(_SURVEY_CHUNK, _DECODE_BYTES // (size * size * channels)))
        measured: list[_Measures] = []
        problems: list[str | None] = []
        for part, results in pool.in_order(work, chosen, chunk=chunk, workers=self.workers):
            for result in results:
                problems.append(result if isinstance(result, str) else None)
                if not isinstance(result, str):
                    scratch.append(result[0])
                    measured.append(result[1])
            self._advance(len(part))
        judged = readable.select("id", "row").with_columns(problem=pl.Series(problems, dtype=pl.String))
        judged = judged.with_columns(readable=pl.col("problem").is_null())
        return pl.DataFrame(measured, schema=_MEASURES, orient="row"), contract.check_decoded(judged)

    def _pack(
        self, draft: Path, good: pl.DataFrame, decoded: pl.DataFrame, bad: pl.DataFrame, scratch: pack.Scratch
    ) -> Manifest:
        index = self._index(good, decoded)
        twins = contract.cross_split_duplicates(index)
        bad = pl.concat([bad, twins])
        self._stop_if_bad(bad)
        index = quarantine.without(index, twins)
        quarantine.write(self.table, bad)
        contract.check_index(index, self.settings, classes=self.source.classes)
        splits, histogram = {}, np.zeros((scratch.shape[-1], 256), np.int64)
        for name in split.SPLITS:
            mine = index.filter(pl.col("split") == name)
            splits[name], counts = self._pack_split(draft / name, mine, scratch)
            if name == "train":
                histogram = counts
        mean, std = channel_statistics(histogram)
        by_rule = quarantine.by_rule(bad)
        pack.write_index(draft, index)
        description = profile(
            index, classes=self.source.classes, pixels=packed_pixels(histogram),
            conflicts=contract.label_conflicts(index), quarantined=by_rule,
        )  # fmt: skip
        files.write_json(draft / "profile.json", description)
        size, _, channels = scratch.shape
        manifest = Manifest.sealed(
            format=FORMAT, kind="image", name=self.source.name, classes=tuple(self.source.classes),
            height=size, width=size, channels=channels, mean=mean, std=std, splits=splits,
            source=self.settings.source, quarantined=quarantine.samples(bad), quarantined_by_rule=by_rule,
        )  # fmt: skip
        manifest.write(draft)
        return manifest

    def _index(self, good: pl.DataFrame, decoded: pl.DataFrame) -> pl.DataFrame:
        """One row per decoded sample, with its split and `at`, its place in the scratch file."""
        chosen = [self.samples[row] for row in good["row"]]
        identities = [
            content if sample.group is None else f"group {sample.group}"
            for sample, content in zip(chosen, good["content"], strict=True)
        ]
        assigned = split.assign(
            identities, [sample.split for sample in chosen], declared=self.source.given,
            validation_fraction=self.settings.validation_fraction, test_fraction=self.settings.test_fraction,
        )  # fmt: skip
        names = pl.Series(list(self.source.classes), dtype=pl.String)
        return good.select("row", "id", "label", "content", "width", "height", "format").with_columns(
            pl.Series("split", assigned, pl.String),
            pl.Series("class", names.gather(good["label"])),
            pl.Series("at", range(good.height), pl.Int64),
            *decoded.get_columns(),
            source=pl.col("id"),
        )

    def _pack_split(
        self, folder: Path, index: pl.DataFrame, scratch: pack.Scratch
    ) -> tuple[SplitFiles, NDArray[np.int64]]:
        shards, histogram = pack.write_shards(
            folder, scratch, index["at"].to_numpy(), shard_mib=self.settings.shard_mib
        )
        pack.check_shards(folder.parent, shards, shape=scratch.shape, pixels=index["pixels"].to_list())
        labels = pack.write_array(folder, "labels", index["label"].to_numpy().astype(np.int64))
        keys = pack.write_array(folder, "keys", split.keys(index["id"].to_list()))
        return SplitFiles(index.height, shards, labels, keys), histogram

    def _shape(self, frame: pl.DataFrame) -> tuple[int, int]:
        """(side, channels) of the packed pictures."""
        size, channels = self.settings.image_size, self.settings.channels
        if size == "auto":
            sides = set(frame["width"].unique()) | set(frame["height"].unique())
            side = min(sides)
            size = side if len(sides) == 1 and side <= AUTO_SIDE else AUTO_SIDE
        return size, (1 if frame["grey"].all() else 3) if channels == "auto" else channels

    def _stop_if_bad(self, bad: pl.DataFrame) -> None:
        try:
            contract.check_bad_fraction(
                bad, total=len(self.samples), limit=self.settings.max_bad_fraction, table=self.table
            )
        except Exception:
            quarantine.write(self.table, bad)  # the message names it
            raise

    def _advance(self, samples: int) -> None:
        self._done += samples
        self._told = max(self._told, self._done)  # a second decoding must not move a progress bar back
        self._report(self._told, 2 * len(self.samples))


_Measures = tuple[str, float, float]
_MEASURES = {"pixels": pl.String, "brightness": pl.Float64, "contrast": pl.Float64}


def _decode_and_measure(sample: Sample, *, size: int, channels: int) -> tuple[NDArray[np.uint8], _Measures] | str:
    pixels = pictures.decode(sample, size=size, channels=channels)
    return pixels if isinstance(pixels, str) else (pixels, _measure(pixels))


def _measure(pixels: NDArray[np.uint8]) -> _Measures:
    """Digest, mean and standard deviation of a picture's values, the last two on the scale 0..255."""
    values = pixels.astype(np.int64)
    number, total, squares = values.size, int(values.sum()), int((values * values).sum())
    variance = (number * squares - total * total) / (number * number)
    return hashlib.sha256(pixels.tobytes()).hexdigest(), total / number, variance**0.5


In = TypeVar("In")
Out = TypeVar("Out")


def _each(function: Callable[[In], Out]) -> Callable[[Sequence[In]], list[Out]]:
    return lambda items: [function(item) for item in items]
