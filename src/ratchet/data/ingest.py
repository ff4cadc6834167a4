"""From a source to a packed set: list, read, judge, split, pack. Whole, or not at all.

Every sample is read once, and not even once where it is known from before. Memory holds facts about all samples but
pixels of a few.
"""

import hashlib
import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import cast

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ratchet import files
from ratchet.data import contract, pack, quarantine, split
from ratchet.data import overrides as releasing
from ratchet.data.checks.near_duplicates import NearDuplicates, look
from ratchet.data.manifest import FORMAT, Manifest, SplitFiles
from ratchet.data.profile import channel_statistics, histogram, packed_pixels, profile
from ratchet.data.reading import cache
from ratchet.data.reading.cache import Earlier, Memo
from ratchet.data.reading.images import check_formats, patient_pillow
from ratchet.data.reading.sample import sampled
from ratchet.data.reading.scratch import Scratch
from ratchet.data.reading.survey import Survey
from ratchet.data.sources import LISTING, Source, open_source
from ratchet.errors import DataError
from ratchet.settings.model import DataSettings
from ratchet.workspace import disk_errors

__all__ = ["ingest"]

Report = Callable[[int, int], None]
Shape = tuple[int, int, int]  # side in pixels, channels, bits of the largest value of 16-bit pictures

AUTO_DEPTH = 16  # bits: where no picture has more than eight
AUTO_SIDE = 64  # pixels: the packed side where pictures differ in size or are larger


def ingest(
    settings: DataSettings,
    *,
    packed: Path,
    quarantine: Path,
    root: Path,
    report: Report,
    remember: Path | None = None,
    releases: Path | None = None,
    sample: bool = False,
    sample_timeout: float = 0.0,
) -> Manifest:
    """Read the source, keep out what is bad, split, and pack the rest into folder `packed`.

    Equal input gives equal bytes, whatever the number of workers, the machine, the order in a folder and what is known
    from before.

    Args:
        settings: the `data` section; its path is relative to `root`.
        packed: the folder to fill; on any error it stays as it was.
        quarantine: the Parquet table of what was kept out; written even if empty, and when too much is bad.
        root: the project folder.
        report: called with (done, total) as work goes on.
        remember: the file that one ingest leaves for the next one's sake; None: none.
        releases: the table of samples let in by hand; None: there are none.
        sample: take only a few samples of each class, from all over the source.
        sample_timeout: seconds that the user's own Dataset may take for one sample; 0: no limit.

    Raises:
        SettingsError: the source's name is not known.
        DataError: the source cannot be read, too many samples are bad, or the whole set breaks a rule.
        WorkspaceError: the disk is full or cannot be written.
    """
    if settings.source == "factory":
        from ratchet.data.custom_dataset import ingest_custom  # imports torch

        with disk_errors(packed), files.draft_directory(packed) as draft:
            return ingest_custom(
                settings, draft=draft, packed=packed, table=quarantine, root=root, report=report, sample=sample,
                sample_timeout=sample_timeout,
            )  # fmt: skip
    check_formats(settings.formats)
    with patient_pillow():
        source = open_source(settings, root=root)
        released = releasing.read(releases) if releases else releasing.none()
        work = _Ingest(settings, source, packed, quarantine, report, remember, released, sample=sample)
        with disk_errors(packed):
            return work.unchanged() or work.anew()


class _Ingest:
    """One ingest under way."""

    def __init__(
        self, settings: DataSettings, source: Source, packed: Path, table: Path, report: Report,
        remember: Path | None, released: pl.DataFrame, *, sample: bool,
    ) -> None:  # fmt: skip
        self.settings, self.source, self.released = settings, source, released
        self.packed, self.table, self.remember = packed, table, remember
        listing = source.listing
        self.listing = sampled(listing, classes=len(source.classes)) if sample else listing
        self.total = self.listing.height + source.refused.height
        # Only a split that is drawn depends on an image at full size, which is slow to decode.
        self.whole = not {"validation", "test"} <= source.given and self.listing["group"].has_nulls()
        self.survey = Survey(source, settings, released=released["content"], advance=self._advance, whole=self.whole)
        self._report = report
        self._done = self._told = 0

    def unchanged(self) -> Manifest | None:
        """The packed set that stands there, if it was made of just this and nothing has touched it since."""
        if self.remember is None or self.listing["stamp"].null_count():
            return None
        known = Memo(self.remember)
        if known.inputs != self._inputs or known.outputs != self._outputs():
            return None
        self._report(self.total, self.total)
        return Manifest.read(self.packed)

    def anew(self) -> Manifest:
        """Make the packed set."""
        with files.draft_directory(self.packed) as draft:
            manifest, bad, facts, shape = self._into(draft)
        quarantine.write(self.table, bad)  # at once after the set that it belongs to
        if self.remember is not None:
            cache.write(
                self.remember, facts, shape=shape, whole=self.whole, inputs=self._inputs, outputs=self._outputs()
            )
        return manifest

    def _into(self, draft: Path) -> tuple[Manifest, pl.DataFrame, pl.DataFrame, Shape]:
        """Fill the draft: its manifest, the quarantine table, what is known of all samples, and their packed shape."""
        shape = self._guess()
        while True:
            earlier = Earlier(self.packed, shape=shape)
            with Scratch(draft / "scratch", side=shape[0], channels=shape[1], depth=shape[2]) as scratch:
                self._done = self.source.refused.height
                facts = self.survey.all(self.listing, scratch, Memo(self.remember).facts(shape=shape, whole=self.whole))
                bad = pl.concat(
                    [
                        self.source.refused,
                        contract.check_facts(facts, self.settings, classes=len(self.source.classes)),
                        contract.duplicate_ids(facts),
                    ]
                )
                bad, used = releasing.apply(bad, self.released)
                good = quarantine.without(facts, bad)
                if good.is_empty():
                    self._stop_if_bad(bad)
                if self._shape(good) == shape:
                    return *self._pack(draft, facts, bad, used, scratch, earlier), facts, shape
            shape = self._shape(good)  # rare: the guess was wrong, or only broken files asked for another shape

    def _guess(self) -> Shape:
        """The packed shape as a few samples have it."""
        side, channels, depth = self._shape(self.survey.some(self.listing["id"]))
        match Memo(self.remember).shape:
            case (before_side, before_channels, before_depth) if (before_side, before_channels) == (side, channels):
                # The deepest picture need not be among those that were looked at.
                depth = max(depth, before_depth) if self.settings.depth == "auto" else depth
        return side, channels, depth

    def _shape(self, facts: pl.DataFrame) -> Shape:
        """Side and channels of the packed pictures, and the bits of the largest value of all 16-bit ones."""
        size, channels, depth = self.settings.image_size, self.settings.channels, self.settings.depth
        if size == "auto":
            sides = set(facts["width"].unique()) | set(facts["height"].unique())
            side = min(sides, default=AUTO_SIDE)
            size = side if len(sides) == 1 and side <= AUTO_SIDE else AUTO_SIDE
        if channels == "auto":
            channels = 1 if facts["grey"].all() else 3
        # A number of bits, not the largest value itself, so that another picture hardly ever changes the scale.
        return size, channels, _depth(facts) if depth == "auto" else depth

    def _pack(
        self, draft: Path, facts: pl.DataFrame, bad: pl.DataFrame, used: pl.DataFrame, scratch: Scratch,
        earlier: Earlier,
    ) -> tuple[Manifest, pl.DataFrame]:  # fmt: skip
        index = self._index(quarantine.without(facts, bad))
        twins = contract.cross_split_duplicates(index)
        bad = pl.concat([bad, twins])
        self._stop_if_bad(bad)
        index = quarantine.without(index, twins)
        seen = quarantine.shown(bad, facts)
        shown = self._reader(self._placed(seen, scratch, earlier), scratch, earlier)
        bad = quarantine.with_thumbnails(bad, seen["row"], shown(0, seen.height))
        with self._telling(bad):
            out = contract.kept_out(facts, bad)
            contract.check_index(index, self.settings, classes=self.source.classes, kept_out=out, table=self.table)
        index = self._placed(index, scratch, earlier)
        alike = NearDuplicates()
        splits, values, start = {}, {}, 0
        counts = dict(index.group_by("split").len().rows())
        for name in split.SPLITS:
            mine = index.slice(start, counts.get(name, 0))
            splits[name], values[name] = self._pack_split(draft / name, mine, scratch, earlier, alike)
            start += mine.height

        def some(rows: NDArray[np.int64]) -> NDArray[np.uint8]:
            return self._reader(index[rows], scratch, earlier)(0, len(rows))

        mean, std = channel_statistics(values["train"])
        by_rule = quarantine.by_rule(bad)
        own = [name for name in self.listing.columns if name not in LISTING]
        pack.write_index(draft, index if index["group"].count() else index.drop("group"), own=own)
        description = profile(
            index, classes=self.source.classes, pixels=packed_pixels(values["train"]),
            conflicts=contract.label_conflicts(index), quarantined=by_rule, own=own,
            terms=contract.picture_terms(self.settings), alike=alike.pairs(index, some),
        )  # fmt: skip
        deep = facts.join(index.select("row"), on="row", how="semi")["depth"].drop_nulls()
        if len(deep):
            description["depth"] = {"bits": scratch.depth, "samples": dict(deep.value_counts().sort("depth").rows())}
        files.write_json(draft / "profile.json", description)
        size, _, channels = scratch.shape
        told = {
            "source": self.settings.source, "quarantined": quarantine.samples(bad), "quarantined_by_rule": by_rule,
            "released": tuple(used.to_dicts()),
        }  # fmt: skip
        manifest = Manifest.sealed(
            told, format=FORMAT, kind="image", name=self.source.name, classes=tuple(self.source.classes),
            height=size, width=size, channels=channels, mean=mean, std=std, splits=splits,
            **({"depth": scratch.depth} if len(deep) else {}),
        )  # fmt: skip
        manifest.write(draft)
        return manifest, bad

    def _index(self, good: pl.DataFrame) -> pl.DataFrame:
        """One row per good sample with its split: split by split, each in the order of ids."""
        own = pl.coalesce("full_pixels", "content")  # what comes as an array has its pixels for its content
        identity = pl.when(pl.col("group").is_null()).then(own).otherwise("group " + pl.col("group"))
        assigned = split.assign(
            good.select(identity).to_series(), good["split"], declared=self.source.given,
            validation_fraction=self.settings.validation_fraction, test_fraction=self.settings.test_fraction,
            folds=self.settings.folds, fold=self.settings.fold,
        )  # fmt: skip
        names = pl.Series(list(self.source.classes), dtype=pl.String)
        done_with = (
            "stamp", "bytes", "permitted", "readable", "problem", "frames", "grey", "depth", "full_pixels",
        )  # fmt: skip
        index = good.drop(done_with).with_columns(
            pl.Series("split", assigned, pl.String),
            pl.Series("class", names.gather(good["label"])),
            source=pl.col("id"),
        )
        return pl.concat([index.filter(pl.col("split") == name) for name in split.SPLITS])

    def _placed(self, index: pl.DataFrame, scratch: Scratch, earlier: Earlier) -> pl.DataFrame:
        """With `earlier`, the place in the packed set of before; pixels in neither place are read after all."""
        found = index.select("pixels").join(earlier.places, on="pixels", how="left", maintain_order="left")
        index = index.with_columns(found["earlier"])
        nowhere = index.select("id", "pixels", "at", "earlier").with_row_index("place")
        nowhere = nowhere.filter(pl.col("at").is_null() & pl.col("earlier").is_null())
        if nowhere.is_empty():
            return index
        self._done -= nowhere.height
        read = self.survey.read(nowhere.select("place", "id"), scratch)
        changed = nowhere["id"].filter(read["pixels"].ne_missing(nowhere["pixels"]))
        if len(changed):
            raise DataError(f"{changed[0]}: changed while it was being read: wait until all is written, then run again")
        return index.with_columns(at=index["at"].scatter(nowhere["place"], read["at"]))

    @staticmethod
    def _reader(placed: pl.DataFrame, scratch: Scratch, earlier: Earlier) -> Callable[[int, int], NDArray[np.uint8]]:
        """From a row of `placed` to before another: the pictures, uint8 (k, side, side, channels)."""
        at, before = (placed[name].fill_null(-1).to_numpy() for name in ("at", "earlier"))

        def read(start: int, end: int) -> NDArray[np.uint8]:
            rows = at[start:end]
            fresh = rows >= 0
            pixels = np.empty((end - start, *scratch.shape), np.uint8)
            if fresh.any():
                pixels[fresh] = scratch.read(rows[fresh])
            if not fresh.all():
                digests = placed["pixels"][start:end].filter(pl.Series(~fresh)).to_list()
                pixels[~fresh] = earlier.read(before[start:end][~fresh], digests)
            return pixels

        return read

    def _pack_split(
        self, folder: Path, index: pl.DataFrame, scratch: Scratch, earlier: Earlier, alike: NearDuplicates
    ) -> tuple[SplitFiles, NDArray[np.int64]]:
        shards, seen = pack.write_shards(
            folder, self._reader(index, scratch, earlier), lambda pixels: (histogram(pixels), look(pixels)),
            rows=index.height, shape=scratch.shape, shard_mib=self.settings.shard_mib, workers=self.survey.workers,
        )  # fmt: skip
        values = np.zeros((scratch.shape[-1], 256), np.int64)
        for counts, looks in seen:
            values += counts
            alike.add(looks)
        pack.check_shards(folder.parent, shards, shape=scratch.shape, pixels=index["pixels"])
        labels = pack.write_array(folder, "labels", index["label"].to_numpy().astype(np.int64))
        keys = pack.write_array(folder, "keys", split.keys(index["id"]))
        return SplitFiles(index.height, shards, labels, keys), values

    def _stop_if_bad(self, bad: pl.DataFrame) -> None:
        with self._telling(bad):
            contract.check_bad_fraction(bad, total=self.total, limit=self.settings.max_bad_fraction, table=self.table)

    @contextmanager
    def _telling(self, bad: pl.DataFrame) -> Iterator[None]:
        """Where the set as a whole breaks a rule, leave the table of what was kept out: it says why."""
        try:
            yield
        except DataError:
            quarantine.write(self.table, bad)
            raise

    @cached_property
    def _inputs(self) -> str:
        """What decides the packed set, in short."""
        listed = io.BytesIO()
        self.listing.write_ipc(listed)
        self.source.refused.write_ipc(listed)
        self.released.write_ipc(listed)
        settings = self.settings.model_dump(mode="json", exclude={"workers"})
        code = files.digest_tree(Path(__file__).parent, ("**/*.py",))
        return files.digest_json(
            [settings, list(self.source.classes), code, hashlib.sha256(listed.getvalue()).hexdigest()]
        )

    def _outputs(self) -> str:
        """What stands there, in short: the small files' digests and the large ones' sizes. DVC looks closer."""
        small = [self.packed / "manifest.json", self.packed / "index.parquet", self.packed / "profile.json", self.table]
        shards = sorted(self.packed.glob("*/*.npy"))
        if not all(path.is_file() for path in small):
            return ""
        sizes = [[path.relative_to(self.packed).as_posix(), path.stat().st_size] for path in shards]
        return files.digest_json([[files.digest_file(path) for path in small], sizes])

    def _advance(self, samples: int) -> None:
        self._done += samples
        self._told = max(self._told, self._done)  # a second reading must not move a progress bar back
        self._report(self._told, self.total)


def _depth(facts: pl.DataFrame) -> int:
    """The bits that the largest value of all 16-bit pictures needs."""
    deepest = facts["depth"].max()
    return AUTO_DEPTH if deepest is None else int(cast("int", deepest))
