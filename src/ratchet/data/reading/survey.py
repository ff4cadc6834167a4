"""Reading all samples of a source: facts of every sample in a frame, and pixels in a scratch file."""

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import polars as pl
from PIL import Image

from ratchet.data import image_rules
from ratchet.data.reading import pool
from ratchet.data.reading.images import ImageDecoder, facts_columns, pillow_settings
from ratchet.data.reading.subset import evenly_spaced
from ratchet.data.reading.worker import ReadTask, Scratch
from ratchet.data.sources import Source
from ratchet.settings.model import DataSettings

__all__ = ["Survey"]

_CHUNK = 256  # samples per chunk of work
_CHUNK_BYTES = 3 << 20  # bytes of files, or of packed images, per chunk of work
_REMOTE_CHUNK = 64  # samples per chunk of a source that a thread waits for, one sample after the other
_CHUNKS = 4  # least chunks per worker, so that none waits long for the last
_FRAME_ROWS = 4_096  # samples whose facts are kept as lists before they become a frame
_PREVIEWED = 64  # samples that the packed shape is guessed from
_MIN_FOR_PROCESSES = 1_000  # files: fewer are read by threads before processes have started
_NO_FACTS = pl.DataFrame(schema={"place": pl.UInt32, **image_rules.FACTS, "at": pl.Int64})
_NO_CONTENTS = pl.DataFrame(schema={"content": pl.String})


class Survey:
    """Reads samples with one worker per core, or with `data.workers` workers.

    Args:
        source: source of the samples.
        settings: the `data` section.
        released: digests of contents that were released by hand. They are always decoded.
        advance: called with the number of samples that were completed since the last call.
    """

    def __init__(
        self, source: Source, settings: DataSettings, *, released: Iterable[str], advance: Callable[[int], None]
    ) -> None:
        self.workers = pool.threads(settings.workers)
        self._source, self._advance = source, advance
        self._max_pixels, self._released = settings.max_pixels, frozenset(released)
        self._heif = "heif" in settings.formats
        self._file_bytes = 0

    def preview(self, names: pl.Series) -> pl.DataFrame:
        """Return facts of a few samples from all over the source, without the unreadable ones.

        Only headers are read, except for the depth of 16-bit images.
        """
        chosen = [names[at] for at in evenly_spaced(len(names), classes=1, of=1)[:_PREVIEWED]]
        facts, _ = ImageDecoder(None, self._max_pixels, heif=self._heif).read_all(self._source.read, chosen)
        self._file_bytes = sum(sample.bytes or 0 for sample in facts) // max(1, len(facts))
        return image_rules.facts_frame(facts_columns(facts)).filter("readable")

    def read_all(self, listing: pl.DataFrame, scratch: Scratch, known: pl.DataFrame) -> pl.DataFrame:
        """Return the listing with the facts of each sample, and `at`, the place of its pixels in the scratch file.

        `known` has cached facts (FactCache.facts). Samples with an equal stamp are not read again. Samples with equal
        content are not decoded again, and have no `at`.
        """
        unread = listing.select("id", "stamp").with_row_index("place")
        cached = unread.filter(pl.col("stamp").is_not_null()).join(known, on=["id", "stamp"])
        unread = unread.join(cached, on="place", how="anti", maintain_order="left")
        contents = known.join(cached, on="id", how="anti").drop("id", "stamp")
        self._advance(cached.height)
        read = self.read(unread, scratch, contents.unique("content", keep="first", maintain_order=True))
        cached = cached.drop("id", "stamp").with_columns(permitted=True)
        facts = pl.concat([_NO_FACTS, cached, read], how="diagonal").sort("place")
        label = pl.coalesce(facts["label"], listing["label"])
        return listing.drop("label").hstack(facts.drop("place", "label")).with_columns(label=label)

    def read(self, unread: pl.DataFrame, scratch: Scratch, contents: pl.DataFrame = _NO_CONTENTS) -> pl.DataFrame:
        """Read samples, with columns `place` and `id`, and return their facts, with `place` and `at`.

        `contents` has the facts of contents that are not decoded again.
        """
        shape = scratch.shape[0], scratch.shape[2]
        decoder = ImageDecoder(
            shape, self._max_pixels, frozenset(contents["content"]), self._released, depth=scratch.depth,
            heif=self._heif,
        )  # fmt: skip
        first, step = scratch.reserve(unread.height), self._step(unread.height, shape[0] ** 2 * shape[1])
        chunks = (
            (first + start, unread["id"][start : start + step].to_list()) for start in range(0, unread.height, step)
        )
        frames, facts = [_NO_FACTS], dict[str, list[Any]]()
        with TemporaryDirectory(dir=scratch.path.parent) as folder:  # the workers take much memory until they end
            for columns in self._by_workers(ReadTask(self._source.read, decoder, scratch), chunks, count=unread.height):
                facts = {name: facts.get(name, []) + values for name, values in columns.items()}
                if len(facts["bytes"]) >= _FRAME_ROWS:
                    image_rules.facts_frame(facts).write_ipc(Path(folder, f"{len(os.listdir(folder)):08}"))
                    facts = {}
                self._advance(len(columns["bytes"]))
            frames += [pl.read_ipc(path) for path in sorted(Path(folder).iterdir())]
        frames += [image_rules.facts_frame(facts)] if facts else []
        read = pl.concat(frames, how="diagonal").with_columns(place=unread["place"])
        read = read.with_columns(at=pl.when(pl.col("pixels").is_not_null()).then(pl.int_range(pl.len()) + first))
        known = read.select("content").join(contents, on="content", how="left", maintain_order="left")
        return read.with_columns(pl.coalesce(read[name], known[name]) for name in known.columns)

    def _step(self, count: int, packed_bytes: int) -> int:
        """Return the number of samples per chunk for `count` samples."""
        most = _CHUNK if self._source.is_local else _REMOTE_CHUNK
        by_bytes = _CHUNK_BYTES // max(packed_bytes, self._file_bytes)
        return max(1, min(most, by_bytes, -(-count // (_CHUNKS * self.workers))))

    def _by_workers(
        self, task: ReadTask, chunks: Iterable[tuple[int, list[str]]], *, count: int
    ) -> Iterator[dict[str, list[Any]]]:
        if self._source.is_local and self.workers > 1 and count >= _MIN_FOR_PROCESSES:
            return pool.in_order_by_processes(task, chunks, workers=self.workers, within=pillow_settings)
        Image.init()  # not thread-safe, so it is done before the threads start
        return pool.in_order(task, chunks, workers=self.workers)
