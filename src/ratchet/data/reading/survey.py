"""What reading the samples of a source tells: facts of every one of them, in a frame, and pixels, in a scratch file."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import polars as pl
from PIL import Image

from ratchet.data import contract
from ratchet.data.reading import pool
from ratchet.data.reading.images import Look, patient_pillow
from ratchet.data.reading.sample import spread
from ratchet.data.reading.scratch import Scratch
from ratchet.data.reading.worker import Reading, columns
from ratchet.data.sources import Source
from ratchet.settings.model import DataSettings

__all__ = ["Survey"]

_CHUNK = 256  # samples per piece of work
_CHUNK_BYTES = 4 << 20  # packed bytes per piece of work
_TOLD = 4_096  # samples whose facts are kept as lists before they become a frame
_GUESSED = 64  # samples that the packed shape is guessed from
_APART = 1_000  # files: fewer are read by threads before processes have begun
_NOTHING_KNOWN = pl.DataFrame(schema={"place": pl.UInt32, **contract.FACTS, "at": pl.Int64})
_NO_CONTENTS = pl.DataFrame(schema={"content": pl.String})


class Survey:
    """Reads samples, by one worker per core or as many as `data.workers` says.

    Args:
        source: where they come from.
        settings: the `data` section.
        released: digests of contents that a person wants decoded whatever they are.
        advance: called with the number of samples that are done, some at a time.
        whole: whether images are also digested at full size.
    """

    def __init__(
        self, source: Source, settings: DataSettings, *, released: Iterable[str], advance: Callable[[int], None],
        whole: bool = True,
    ) -> None:  # fmt: skip
        self.workers = pool.threads(settings.workers)
        self._source, self._advance = source, advance
        self._max_pixels, self._released = settings.max_pixels, frozenset(released)
        self._heif, self._whole = "heif" in settings.formats, whole

    def some(self, names: pl.Series) -> pl.DataFrame:
        """What a few samples from all over the source tell without their pixels, but for the depth of 16-bit ones.

        What cannot be read is left out.
        """
        chosen = [names[at] for at in spread(len(names), classes=1, of=1)[:_GUESSED]]
        seen, _ = Look(None, self._max_pixels, heif=self._heif).over(self._source.read, chosen)
        return contract.facts_frame(columns(seen)).filter("readable")

    def all(self, listing: pl.DataFrame, scratch: Scratch, known: pl.DataFrame) -> pl.DataFrame:
        """The listing with the facts of each sample, and `at`, its place in the scratch file if its pixels are there.

        Args:
            listing: as a source has it.
            scratch: takes the pixels of those that are decoded.
            known: what is remembered of samples (memo.Memo.facts): they are not read again if their stamps are the
                same, and not decoded again if their contents are.
        """
        unread = listing.select("id", "stamp").with_row_index("place")
        remembered = unread.filter(pl.col("stamp").is_not_null()).join(known, on=["id", "stamp"])
        unread = unread.join(remembered, on="place", how="anti", maintain_order="left")
        contents = known.join(remembered, on="id", how="anti").drop("id", "stamp")
        self._advance(remembered.height)
        read = self.read(unread, scratch, contents.unique("content", keep="first", maintain_order=True))
        remembered = remembered.drop("id", "stamp").with_columns(permitted=True)
        facts = pl.concat([_NOTHING_KNOWN, remembered, read], how="diagonal").sort("place")
        label = pl.coalesce(facts["label"], listing["label"])
        return listing.drop("label").hstack(facts.drop("place", "label")).with_columns(label=label)

    def read(self, unread: pl.DataFrame, scratch: Scratch, contents: pl.DataFrame = _NO_CONTENTS) -> pl.DataFrame:
        """What reading samples tells, and `at`.

        Args:
            unread: `place`, which comes back, and `id`.
            scratch: takes the pixels.
            contents: the facts of contents that are not decoded again, by `content`.
        """
        shape = scratch.shape[0], scratch.shape[2]
        decoded = frozenset(contents["content"])
        look = Look(
            shape, self._max_pixels, decoded, self._released, depth=scratch.depth, heif=self._heif, whole=self._whole
        )
        first, step = scratch.reserve(unread.height), max(1, min(_CHUNK, _CHUNK_BYTES // (shape[0] ** 2 * shape[1])))
        chunks = (
            (first + start, unread["id"][start : start + step].to_list()) for start in range(0, unread.height, step)
        )
        frames = [_NOTHING_KNOWN]
        told: dict[str, list[Any]] = {}
        for some in self._by_workers(Reading(self._source.read, look, scratch), chunks, count=unread.height):
            told = {name: told.get(name, []) + values for name, values in some.items()}
            if len(told["bytes"]) >= _TOLD:
                frames.append(contract.facts_frame(told))
                told = {}
            self._advance(len(some["bytes"]))
        frames += [contract.facts_frame(told)] if told else []
        read = pl.concat(frames, how="diagonal").with_columns(place=unread["place"])
        read = read.with_columns(at=pl.when(pl.col("pixels").is_not_null()).then(pl.int_range(pl.len()) + first))
        known = read.select("content").join(contents, on="content", how="left", maintain_order="left")
        return read.with_columns(pl.coalesce(read[name], known[name]) for name in known.columns)

    def _by_workers(
        self, reading: Reading, chunks: Iterable[tuple[int, list[str]]], *, count: int
    ) -> Iterator[dict[str, list[Any]]]:
        if self._source.near and self.workers > 1 and count >= _APART:
            return pool.in_order_apart(reading, chunks, workers=self.workers, within=patient_pillow)
        Image.init()  # not safe to leave to the first of many threads
        return pool.in_order(reading, chunks, workers=self.workers)
