"""Ingest of images that are packed.

Every sample is read once, or not at all if the cache knows it. Memory holds facts about all samples, but pixels of few.
"""

import hashlib
import io
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO, cast

import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray

from ratchet import files
from ratchet.code.closure import closure
from ratchet.data import image_rules, overrides, pack, packed_set, quarantine, set_rules
from ratchet.data.checks import exact_duplicates
from ratchet.data.checks.near_duplicates import Signatures, near_duplicate_pairs, signatures
from ratchet.data.manifest import Manifest
from ratchet.data.packed_set import Arrays, IngestTask, PackedSet
from ratchet.data.profile import image_profile
from ratchet.data.reading import cache as fact_cache
from ratchet.data.reading.cache import FactCache
from ratchet.data.reading.images import check_formats, pillow_settings
from ratchet.data.reading.pixel_store import PixelStore
from ratchet.data.reading.pixels import channel_statistics, histogram, packed_pixels
from ratchet.data.reading.subset import subset
from ratchet.data.reading.survey import Survey
from ratchet.data.reading.worker import Scratch
from ratchet.data.sources import LISTING, Source, open_source
from ratchet.data.tables.targets import TargetTable
from ratchet.kinds import ImageInput
from ratchet.problems import Classes

__all__ = ["deciding_code", "ingest_images"]

Shape = tuple[int, int, int]  # side in pixels, channels, bits of the largest value of 16-bit images

AUTO_DEPTH = 16  # bits: for sets without 16-bit images
_SAMPLED_CLASSES = 10  # a trial run takes as many samples without classes as of this number of classes
AUTO_SIDE = 64  # pixels: packed side of images that differ in size or are larger
_FACTS_OF_READING = ("stamp", "bytes", "permitted", "readable", "problem", "frames", "grey")


def ingest_images(task: IngestTask) -> Manifest:
    """Ingest images; see `ratchet.data.ingest`."""
    check_formats(task.settings.formats)
    with pillow_settings():
        source = open_source(task.settings, root=task.root)
        task.say_ignored(source.ignored)
        work = _Ingest(task, source)
        return work.unchanged() or work.run()


def deciding_code() -> dict[str, str]:
    """Return the digest of each file of code that decides the packed set, by its path."""
    return closure(["ratchet.data.ingest"], stage="ingest", choice={"kind": "image"})


class _Digest(io.RawIOBase):
    """A file that keeps the SHA-256 of what is written to it, and nothing else."""

    def __init__(self) -> None:
        self.content = hashlib.sha256()

    def write(self, data: Any) -> int:
        self.content.update(data)
        return len(data)


def _mapped(frame: pl.DataFrame, path: Path) -> pl.DataFrame:
    """Return the frame as a memory map of a file: the kernel drops its pages when memory runs short."""
    path.unlink(missing_ok=True)  # an older map keeps its own content
    frame.write_ipc(path)
    with pa.memory_map(str(path)) as file:
        return cast("pl.DataFrame", pl.from_arrow(pa.ipc.open_file(file).read_all(), rechunk=False))


class _Ingest:
    """An ingest of packed images."""

    def __init__(self, task: IngestTask, source: Source) -> None:
        self.task, self.settings, self.source = task, task.settings, source
        self.targets, self.cache = source.targets, FactCache(task.cache)
        by_place = [] if self.targets is None or source.classes else self.targets.shown.to_list()
        self.names = [*source.classes, *by_place]  # by label
        self.listing = self._subset(source.listing) if task.sample else source.listing
        self.total = self.listing.height + source.refused.height
        released = task.released["content"]
        self.survey = Survey(source, self.settings, released=released, advance=self._advance)
        self._done = self._reported = 0

    def _subset(self, listing: pl.DataFrame) -> pl.DataFrame:
        if self.source.classes:
            return subset(listing, classes=len(self.source.classes))
        chosen = subset(listing.with_columns(label=pl.lit(None, pl.Int64)), classes=_SAMPLED_CLASSES)
        return listing.join(chosen.select("row"), on="row", how="semi", maintain_order="left")

    def unchanged(self) -> Manifest | None:
        """Return the current packed set if it was made of the same inputs and not altered since, else None."""
        if self.task.cache is None or self.listing["stamp"].null_count():
            return None
        if self.cache.inputs != self._inputs or self.cache.outputs != self._outputs(self.task.packed):
            return None
        self.task.report(self.total, self.total)
        return Manifest.read(self.task.packed)

    def run(self) -> Manifest:
        """Write the packed set, the quarantine table and the cache."""
        place = self.task.packed
        # A network's disk gives a deleted file that is still mapped another name, until this process ends. The next
        # ingest deletes what is left, as it does with drafts.
        temporary = partial(TemporaryDirectory, prefix=f"{files.DRAFT}{place.name}-", ignore_cleanup_errors=True)
        with files.draft_directory(place) as draft, temporary(dir=place.parent) as folder, files.locked(Path(folder)):
            manifest, shape, facts = self._fill(draft, Path(folder))
            if self.task.cache is not None:  # if this process is killed here, the next one decodes pixels again
                outputs = self._outputs(draft)
                fact_cache.write(self.task.cache, facts, shape=shape, inputs=self._inputs, outputs=outputs)
        return manifest

    def _fill(self, draft: Path, folder: Path) -> tuple[Manifest, Shape, pl.DataFrame]:
        """Fill the draft; `folder` is for temporary files. Return its manifest, the packed shape, and all facts."""
        shape = self._guess_shape()
        while True:
            with Scratch(draft / "scratch", side=shape[0], channels=shape[1], depth=shape[2]) as scratch:
                pixels = PixelStore(scratch, self.task.packed, partial(self._read_again, scratch))
                self._done = self.source.refused.height
                known = self.cache.facts(shape=shape)
                facts = _mapped(self.survey.read_all(self.listing, scratch, known), folder / "facts")
                bad, used = overrides.apply(self._check(facts), self.task.released)
                good = quarantine.without(facts, bad)
                if good.is_empty():
                    self._check_quarantine(bad)
                if self._shape(good) == shape:
                    packed = self._packed_set(facts, bad, used, pixels)
                    packed = replace(packed, index=_mapped(packed.index, folder / "index"))
                    del good, known
                    return self._pack(draft, packed, pixels), shape, facts
            shape = self._shape(good)  # rare: the guess was wrong, or came from samples that are bad

    def _check(self, facts: pl.DataFrame) -> pl.DataFrame:
        """Return the quarantine rows of the rules about single samples."""
        broken = image_rules.check_facts(facts, self.settings, classes=len(self.names))
        return pl.concat([self.source.refused, broken, exact_duplicates.duplicate_ids(facts)])

    def _guess_shape(self) -> Shape:
        """Return the packed shape that a few samples suggest."""
        side, channels, depth = self._shape(self.survey.preview(self.listing["id"]))
        before = self.cache.shape
        if before and before[:2] == (side, channels) and self.settings.depth == "auto":
            depth = max(depth, before[2])  # the deepest image need not be among those samples
        return side, channels, depth

    def _shape(self, facts: pl.DataFrame) -> Shape:
        """Return side and channels of the packed images, and the bits of the largest value of all 16-bit images."""
        size, channels, depth = self.settings.image_size, self.settings.channels, self.settings.depth
        if size == "auto":
            sides = set(facts["width"].unique()) | set(facts["height"].unique())
            side = min(sides, default=AUTO_SIDE)
            size = side if len(sides) == 1 and side <= AUTO_SIDE else AUTO_SIDE
        if channels == "auto":
            channels = 1 if facts["grey"].all() else 3
        # Bits instead of the largest value itself, so that one more image rarely changes the scale.
        bits = max(facts["depth"].drop_nulls(), default=AUTO_DEPTH)
        return size, channels, bits if depth == "auto" else depth

    def _packed_set(self, facts: pl.DataFrame, bad: pl.DataFrame, used: pl.DataFrame, pixels: PixelStore) -> PackedSet:
        """Divide the good samples, and check the rules about the whole set."""
        good = quarantine.without(facts, bad).drop(_FACTS_OF_READING)
        # the content of an array is the digest of its pixels
        good = good.with_columns(normal=pl.coalesce("full_pixels", "content")).drop("full_pixels")
        labels = self._labels(good)
        index = packed_set.divide(good, labels, self.settings, declared=self.source.given)
        index, bad = packed_set.without_copies(index, bad, digest="pixels")
        shown = quarantine.shown(bad, facts)
        images = pixels.reader(pixels.locate(shown))(0, shown.height)
        bad = quarantine.with_thumbnails(bad, shown["row"], images)
        self._check_quarantine(bad)
        counts = set_rules.quarantined_by_class(facts, bad) if labels.classes else {}
        set_rules.SetRules(self.settings, labels.classes, self.task.quarantine, counts).check_index(index)
        return PackedSet(
            name=self.source.name, source=self.settings.source, index=pixels.locate(index.drop("normal")),
            labels=labels.take(index[packed_set.LABEL_PLACE].to_numpy()), bad=bad, released=used,
            extra=[name for name in self.listing.columns if name not in LISTING],
        )  # fmt: skip

    def _check_quarantine(self, bad: pl.DataFrame) -> None:
        notes = () if self.targets is None else self.targets.fault_notes
        self.task.check_quarantine(bad, total=self.total, notes=notes)

    def _labels(self, good: pl.DataFrame) -> TargetTable:
        labels = good["label"].to_numpy().astype(np.int64)
        if self.targets is not None and not self.source.classes:
            return self.targets.take(labels)
        classes = tuple(self.source.classes)
        shown = pl.Series(classes, dtype=pl.String).gather(good["label"])
        return replace(self.targets or TargetTable(Classes, "", classes, labels, shown, {}), values=labels, shown=shown)

    def _pack(self, draft: Path, packed: PackedSet, pixels: PixelStore) -> Manifest:
        index, settings, blocks = packed.index, self.settings, list[Signatures]()
        values: dict[str, NDArray[np.int64]] = {}  # histograms of the splits, (channels, 256)

        def write(folder: Path, part: slice) -> Arrays:
            rows = index[part]
            shards, results = pack.write_shards(
                folder, pixels.reader(rows), lambda images: (histogram(images), signatures(images)),
                rows=rows.height, shape=pixels.shape, workers=self.survey.workers,
            )  # fmt: skip
            values[folder.name] = np.zeros((pixels.shape[-1], 256), np.int64)
            for counts, block in results:
                values[folder.name] += counts
                blocks.append(block)
            pack.check_shards(draft, shards, shape=pixels.shape, pixels=rows["pixels"])
            return {"images": shards}

        def describe() -> tuple[ImageInput, dict[str, object]]:
            profile = image_profile(
                index, packed.labels, pixels=packed_pixels(values["train"]), extra=packed.extra,
                request=image_rules.image_terms(settings), near_duplicates=near_duplicate_pairs(index, blocks),
            )  # fmt: skip
            depths = index["depth"].drop_nulls()
            if len(depths):
                samples = dict(depths.value_counts().sort("depth").rows())
                profile["depth"] = {"bits": pixels.depth, "samples": samples}
            mean, std = channel_statistics(values["train"])
            size, _, channels = pixels.shape
            images = ImageInput(
                size, size, channels, mean, std, depth=pixels.depth if len(depths) else None,
                min_side=settings.min_side, max_aspect=settings.max_aspect, max_pixels=settings.max_pixels,
            )  # fmt: skip
            return images, profile

        return packed.write(draft, arrays=write, describe=describe)

    def _read_again(self, scratch: Scratch, missing: pl.DataFrame) -> pl.DataFrame:
        """Decode samples whose facts are cached, but whose pixels are not in the packed set."""
        self._done -= missing.height
        return self.survey.read(missing, scratch)

    @cached_property
    def _inputs(self) -> str:
        """Digest of everything that decides the packed set."""
        tables = _Digest()
        for table in (self.listing, self.source.refused, self.task.released):
            table.write_ipc(cast("BinaryIO", tables))
        settings = self.settings.model_dump(mode="json", exclude={"workers"})
        notes = [] if self.targets is None else [self.targets.why, *self.targets.notes]
        return files.digest_json([settings, self.names, notes, deciding_code(), tables.content.hexdigest()])

    def _outputs(self, packed: Path) -> str:
        """Digest of a packed set and the quarantine table: the content of small files and the sizes of large ones.

        It is "" if a file is missing. DVC digests the large files too.
        """
        small = [packed / name for name in ("manifest.json", "index.parquet", "profile.json")] + [self.task.quarantine]
        if not all(path.is_file() for path in small):
            return ""
        arrays = sorted(packed.glob("*/*.npy"))
        sizes = [[path.relative_to(packed).as_posix(), path.stat().st_size] for path in arrays]
        return files.digest_json([[files.digest_file(path) for path in small], sizes])

    def _advance(self, samples: int) -> None:
        self._done += samples
        self._reported = max(self._reported, self._done)  # reading again must not move a progress bar back
        self.task.report(self._reported, self.total)
