"""Ingest: list, read, check, split and pack a source. The packed set is replaced as a whole, or not at all.

Every sample is read once, or not at all if the cache knows it. Memory holds facts about all samples, but pixels of few.
"""

import hashlib
import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property, partial
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ratchet import files
from ratchet.data import image_rules, overrides, pack, quarantine, set_rules, split
from ratchet.data.checks import exact_duplicates
from ratchet.data.checks.near_duplicates import NearDuplicates, signatures
from ratchet.data.manifest import FORMAT, Manifest, SplitFiles
from ratchet.data.profile import profile
from ratchet.data.reading import cache as fact_cache
from ratchet.data.reading.cache import FactCache
from ratchet.data.reading.images import check_formats, pillow_settings
from ratchet.data.reading.pixel_store import PixelStore
from ratchet.data.reading.pixels import channel_statistics, histogram, packed_pixels
from ratchet.data.reading.subset import subset
from ratchet.data.reading.survey import Survey
from ratchet.data.reading.worker import Scratch
from ratchet.data.sources import LISTING, Source, open_source
from ratchet.data.system_files import Ignored
from ratchet.data.tables.targets import Labelling
from ratchet.errors import DataError
from ratchet.kinds import ImageInput
from ratchet.problems import Classes, Target
from ratchet.settings.model import DataSettings
from ratchet.workspace import disk_errors

__all__ = ["ingest"]

Report = Callable[[int, int], None]
Shape = tuple[int, int, int]  # side in pixels, channels, bits of the largest value of 16-bit images

AUTO_DEPTH = 16  # bits: for sets without 16-bit images
_SAMPLED_CLASSES = 10  # a trial run takes as many samples without classes as of this number of classes
AUTO_SIDE = 64  # pixels: packed side of images that differ in size or are larger
_FACTS_OF_READING = ("stamp", "bytes", "permitted", "readable", "problem", "frames", "grey", "depth", "full_pixels")


def ingest(
    settings: DataSettings, *, packed: Path, quarantine: Path, root: Path, report: Report, cache: Path | None = None,
    releases: Path | None = None, sample: bool = False, sample_timeout: float = 0.0,
    say_ignored: Callable[[Ignored], None] = lambda _: None,
) -> Manifest:  # fmt: skip
    """Read the source, quarantine bad samples, split the others, and pack them into folder `packed`.

    Equal input gives equal bytes, for any number of workers, machine, order of files and state of the cache.

    Args:
        settings: the `data` section; its path is relative to `root`.
        packed: folder of the packed set; it stays as it is after an error.
        quarantine: path of the quarantine table (Parquet). It is written even if it is empty or too much is bad.
        root: the project folder.
        report: called with (done, total) samples.
        cache: path of the cache for the next ingest; None: no cache.
        releases: path of the table of samples released by hand; None: no releases.
        sample: take only a few samples of each class, from all over the source.
        sample_timeout: seconds that a user's own Dataset or kind may take for one sample; 0: no limit.
        say_ignored: called with the files of a folder that are no samples.

    Raises:
        SettingsError: no source has this name.
        DataError: the source cannot be read, too many samples are bad, or the whole set breaks a rule.
        WorkspaceError: the disk is full or cannot be written.
    """
    if settings.kind != "image" or settings.source == "factory":
        with disk_errors(packed), files.draft_directory(packed) as draft:
            fill = _ingest_of(settings.kind, sample_timeout, releases, say_ignored)
            return fill(settings, draft=draft, packed=packed, table=quarantine, root=root, report=report, sample=sample)
    check_formats(settings.formats)
    with pillow_settings():
        source = open_source(settings, root=root)
        say_ignored(source.ignored)
        released = overrides.read(releases)
        work = _Ingest(settings, source, packed, quarantine, report, cache, released, sample=sample)
        with disk_errors(packed):
            return work.unchanged() or work.run()


def _ingest_of(
    kind: str, sample_timeout: float, releases: Path | None, say_ignored: Callable[[Ignored], None]
) -> Callable[..., Manifest]:
    """Return the function that fills the draft of a packed set of this kind, or of a user's own image Dataset."""
    match kind:
        case "table":
            from ratchet.data.tables.ingest import ingest_table

            return partial(ingest_table, released=overrides.read(releases))
        case "text":
            from ratchet.data.texts.ingest import ingest_texts

            return partial(ingest_texts, released=overrides.read(releases), say_ignored=say_ignored)
        case "tokens":
            from ratchet.data.token_streams import ingest_tokens

            return partial(ingest_tokens, say_ignored=say_ignored)
        case "image":
            from ratchet.data.custom_dataset import ingest_custom  # imports torch

            return partial(ingest_custom, sample_timeout=sample_timeout)
        case _:
            from ratchet.data.own_kind import ingest_own_kind  # imports torch

            return partial(ingest_own_kind, sample_timeout=sample_timeout, released=overrides.read(releases))


class _Ingest:
    """An ingest of packed images."""

    def __init__(
        self, settings: DataSettings, source: Source, packed: Path, table: Path, report: Report,
        cache: Path | None, released: pl.DataFrame, *, sample: bool,
    ) -> None:  # fmt: skip
        self.settings, self.source, self.released = settings, source, released
        self.packed, self.table, self.cache = packed, table, cache
        listing = source.listing
        self.labelling = source.labelling
        self.names = list(source.classes) if self.labelling is None else self.labelling.shown.to_list()  # by label
        self.listing = self._subset(listing) if sample else listing
        self.total = self.listing.height + source.refused.height
        self.survey = Survey(source, settings, released=released["content"], advance=self._advance)
        self._report = report
        self._done = self._reported = 0

    def _subset(self, listing: pl.DataFrame) -> pl.DataFrame:
        if self.labelling is None:
            return subset(listing, classes=len(self.source.classes))
        chosen = subset(listing.with_columns(label=pl.lit(None, pl.Int64)), classes=_SAMPLED_CLASSES)
        return listing.join(chosen.select("row"), on="row", how="semi", maintain_order="left")

    def unchanged(self) -> Manifest | None:
        """Return the current packed set if it was made of the same inputs and not altered since, else None."""
        if self.cache is None or self.listing["stamp"].null_count():
            return None
        known = FactCache(self.cache)
        if known.inputs != self._inputs or known.outputs != self._outputs():
            return None
        self._report(self.total, self.total)
        return Manifest.read(self.packed)

    def run(self) -> Manifest:
        """Write the packed set, the quarantine table and the cache."""
        with files.draft_directory(self.packed) as draft:
            manifest, bad, facts, shape = self._fill(draft)
        quarantine.write(self.table, bad)  # right after the set that it belongs to
        if self.cache is not None:
            fact_cache.write(self.cache, facts, shape=shape, inputs=self._inputs, outputs=self._outputs())
        return manifest

    def _fill(self, draft: Path) -> tuple[Manifest, pl.DataFrame, pl.DataFrame, Shape]:
        """Fill the draft. Return its manifest, the quarantine table, the facts of all samples and the packed shape."""
        shape = self._guess_shape()
        while True:
            with Scratch(draft / "scratch", side=shape[0], channels=shape[1], depth=shape[2]) as scratch:
                pixels = PixelStore(scratch, self.packed, partial(self._read_again, scratch))
                self._done = self.source.refused.height
                known = FactCache(self.cache).facts(shape=shape)
                facts = self.survey.read_all(self.listing, scratch, known)
                bad, used = overrides.apply(self._check(facts), self.released)
                good = quarantine.without(facts, bad)
                if good.is_empty():
                    self._check_bad_fraction(bad)
                if self._shape(good) == shape:
                    return *self._pack(draft, facts, bad, used, pixels), facts, shape
            shape = self._shape(good)  # rare: the guess was wrong, or came from samples that are bad

    def _check(self, facts: pl.DataFrame) -> pl.DataFrame:
        """Return the quarantine rows of the rules about single samples."""
        broken = image_rules.check_facts(facts, self.settings, classes=len(self.names))
        return pl.concat([self.source.refused, broken, exact_duplicates.duplicate_ids(facts)])

    def _guess_shape(self) -> Shape:
        """Return the packed shape that a few samples suggest."""
        side, channels, depth = self._shape(self.survey.preview(self.listing["id"]))
        before = FactCache(self.cache).shape
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

    def _pack(
        self, draft: Path, facts: pl.DataFrame, bad: pl.DataFrame, used: pl.DataFrame, pixels: PixelStore
    ) -> tuple[Manifest, pl.DataFrame]:
        """Pack the good samples into the draft. Return its manifest and the quarantine table."""
        index, bad = self._check_set(facts, bad, pixels)
        index = pixels.locate(index)
        near_duplicates = NearDuplicates()
        splits, values = {}, {}
        for name in split.SPLITS:
            rows = index.filter(pl.col("split") == name)
            splits[name], values[name] = self._pack_split(draft / name, rows, pixels, near_duplicates)
        has_depth = self._write_descriptions(draft, index, facts, bad, values["train"], near_duplicates, pixels)
        mean, std = channel_statistics(values["train"])
        size, _, channels = pixels.shape
        notes = {
            "source": self.settings.source, "quarantined": quarantine.samples(bad),
            "quarantined_by_rule": quarantine.by_rule(bad), "released": tuple(used.to_dicts()),
        }  # fmt: skip
        manifest = Manifest.sealed(
            notes, format=FORMAT, name=self.source.name, splits=splits,
            input=ImageInput(
                size, size, channels, mean, std, depth=pixels.depth if has_depth else None,
                min_side=self.settings.min_side, max_aspect=self.settings.max_aspect,
                max_pixels=self.settings.max_pixels,
            ),
            target=self._target(index),
        )  # fmt: skip
        manifest.write(draft)
        return manifest, bad

    def _targets(self, index: pl.DataFrame) -> Labelling | None:
        """Return the targets of these rows if they are no classes."""
        return None if self.labelling is None else self.labelling.take(index["label"].to_numpy())

    def _target(self, index: pl.DataFrame) -> Target:
        targets = self._targets(index)
        train = slice(0, int((index["split"] == "train").sum()))
        return Classes(tuple(self.source.classes)) if targets is None else targets.target(train)

    def _check_set(
        self, facts: pl.DataFrame, bad: pl.DataFrame, pixels: PixelStore
    ) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Check the rules about the whole set. Return the index and the quarantine table with thumbnails."""
        index = self._index(quarantine.without(facts, bad))
        duplicates = exact_duplicates.cross_split_duplicates(index)
        bad = pl.concat([bad, duplicates])
        self._check_bad_fraction(bad)
        index = quarantine.without(index, duplicates)
        shown = quarantine.shown(bad, facts)
        images = pixels.reader(pixels.locate(shown))(0, shown.height)
        bad = quarantine.with_thumbnails(bad, shown["row"], images)
        with self._keeping_table(bad):
            counts = set_rules.quarantined_by_class(facts, bad)
            set_rules.check_index(
                index, self.settings, classes=self.source.classes, quarantined=counts, table=self.table
            )
        return index, bad

    def _index(self, good: pl.DataFrame) -> pl.DataFrame:
        """Return one row per good sample with its split: split by split, each in the order of ids."""
        digest = pl.coalesce("full_pixels", "content")  # the content of an array is the digest of its pixels
        identity = pl.when(pl.col("group").is_null()).then(digest).otherwise("group " + pl.col("group"))
        names = pl.Series(self.names, dtype=pl.String).gather(good["label"])
        assigned = split.assign(
            good.select(identity).to_series(), good["split"], declared=self.source.given,
            validation_fraction=self.settings.validation_fraction, test_fraction=self.settings.test_fraction,
            folds=self.settings.folds, fold=self.settings.fold, classes=names if self.source.classes else None,
        )  # fmt: skip
        index = good.drop(_FACTS_OF_READING).with_columns(
            pl.Series("split", assigned, pl.String),
            names.alias("class"),
            source=pl.col("id"),
        )
        return pl.concat([index.filter(pl.col("split") == name) for name in split.SPLITS])

    def _read_again(self, scratch: Scratch, missing: pl.DataFrame) -> pl.DataFrame:
        """Decode samples whose facts are cached, but whose pixels are not in the packed set."""
        self._done -= missing.height
        return self.survey.read(missing, scratch)

    def _pack_split(
        self, folder: Path, index: pl.DataFrame, pixels: PixelStore, near_duplicates: NearDuplicates
    ) -> tuple[SplitFiles, NDArray[np.int64]]:
        """Pack a split. Return its files and its histogram, int64 (channels, 256)."""
        shards, results = pack.write_shards(
            folder, pixels.reader(index), lambda images: (histogram(images), signatures(images)),
            rows=index.height, shape=pixels.shape, shard_mib=self.settings.shard_mib, workers=self.survey.workers,
        )  # fmt: skip
        histograms = np.zeros((pixels.shape[-1], 256), np.int64)
        for counts, block in results:
            histograms += counts
            near_duplicates.add(block)
        pack.check_shards(folder.parent, shards, shape=pixels.shape, pixels=index["pixels"])
        known = self._targets(index)
        values = index["label"].to_numpy().astype(np.int64) if known is None else known.values
        targets = pack.write_array(folder, "targets", values)
        keys = pack.write_array(folder, "keys", split.keys(index["id"]))
        return SplitFiles(index.height, {"images": shards}, targets, keys), histograms

    def _write_descriptions(
        self, draft: Path, index: pl.DataFrame, facts: pl.DataFrame, bad: pl.DataFrame, values: NDArray[np.int64],
        near_duplicates: NearDuplicates, pixels: PixelStore,
    ) -> bool:  # fmt: skip
        """Write index.parquet and profile.json. Return whether the set has 16-bit images."""

        def images(rows: NDArray[np.int64]) -> NDArray[np.uint8]:
            return pixels.reader(index[rows])(0, len(rows))

        extra = [name for name in self.listing.columns if name not in LISTING]
        targets = self._targets(index)
        kept = index if targets is None else index.with_columns(label=pl.lit(None, pl.Int64))
        pack.write_index(draft, kept if index["group"].count() else kept.drop("group"), extra=extra)
        description = profile(
            index, classes=self.source.classes, pixels=packed_pixels(values), quarantined=quarantine.by_rule(bad),
            conflicts=exact_duplicates.label_conflicts(index) if targets is None else [], extra=extra,
            terms=image_rules.image_terms(self.settings), near_duplicates=near_duplicates.pairs(index, images),
            targets=targets,
        )  # fmt: skip
        depths = facts.join(index.select("row"), on="row", how="semi")["depth"].drop_nulls()
        if len(depths):
            description["depth"] = {"bits": pixels.depth, "samples": dict(depths.value_counts().sort("depth").rows())}
        files.write_json(draft / "profile.json", description)
        return bool(len(depths))

    def _check_bad_fraction(self, bad: pl.DataFrame) -> None:
        with self._keeping_table(bad):
            set_rules.check_bad_fraction(bad, total=self.total, limit=self.settings.max_bad_fraction, table=self.table)

    @contextmanager
    def _keeping_table(self, bad: pl.DataFrame) -> Iterator[None]:
        """Write the quarantine table even if the whole set breaks a rule, because the table has the reasons."""
        try:
            yield
        except DataError:
            quarantine.write(self.table, bad)
            raise

    @cached_property
    def _inputs(self) -> str:
        """Digest of everything that decides the packed set."""
        tables = io.BytesIO()
        self.listing.write_ipc(tables)
        self.source.refused.write_ipc(tables)
        self.released.write_ipc(tables)
        settings = self.settings.model_dump(mode="json", exclude={"workers"})
        code = files.digest_tree(Path(__file__).parent, ("**/*.py",))
        return files.digest_json([settings, self.names, code, hashlib.sha256(tables.getvalue()).hexdigest()])

    def _outputs(self) -> str:
        """Digest of the current outputs: the content of small files and the sizes of large ones; "" if one is missing.

        DVC digests the large files too.
        """
        small = [*(self.packed / name for name in ("manifest.json", "index.parquet", "profile.json")), self.table]
        if not all(path.is_file() for path in small):
            return ""
        arrays = sorted(self.packed.glob("*/*.npy"))
        sizes = [[path.relative_to(self.packed).as_posix(), path.stat().st_size] for path in arrays]
        return files.digest_json([[files.digest_file(path) for path in small], sizes])

    def _advance(self, samples: int) -> None:
        self._done += samples
        self._reported = max(self._reported, self._done)  # reading again must not move a progress bar back
        self._report(self._reported, self.total)
