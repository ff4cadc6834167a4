"""Work of one process of an ingest: read samples, decode them, and store their pixels in a scratch file.

This module imports little, because each worker process imports it again.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ratchet.data.reading.images import Facts, ImageDecoder, facts_columns
from ratchet.data.reading.pixels import MAX_DEPTH

__all__ = ["ReadTask", "Scratch"]

_BLOCK_BYTES = 192 << 10  # of pixels that are decoded at once: they fit into the processor's cache


class Scratch:
    """A temporary file of decoded images of one shape, (side, side, channels), deleted when the context ends.

    It holds the images until ingest knows which of them are packed, and in which order. Places are reserved first and
    written later, by any process and in any order. The file is written with plain writes, not with a writable memory
    map: on a full disk a write raises an error, but a map kills the process.

    `depth` is the number of bits by which the values of 16-bit images were scaled to 0..255.
    """

    def __init__(self, path: Path, *, side: int, channels: int, depth: int = MAX_DEPTH) -> None:
        self.path = path
        self.shape = (side, side, channels)
        self.places, self.depth = 0, depth

    def __enter__(self) -> "Scratch":
        self.path.touch()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.path.unlink(missing_ok=True)

    def reserve(self, count: int) -> int:
        """Make room for `count` more images and return the place of the first."""
        first, self.places = self.places, self.places + count
        with self.path.open("r+b") as file:
            file.truncate(self.places * int(np.prod(self.shape)))
        return first

    def write(self, place: int, pixels: NDArray[np.uint8]) -> None:
        """Write images, uint8 (k, side, side, channels), to `place` and the places after it."""
        with self.path.open("r+b") as file:
            file.seek(place * int(np.prod(self.shape)))
            file.write(pixels.data)

    def read(self, places: NDArray[np.int64]) -> NDArray[np.uint8]:
        """Return the images in `places`, uint8 (k, side, side, channels)."""
        stored = np.memmap(self.path, dtype=np.uint8, mode="r", shape=(self.places, *self.shape))
        return np.asarray(stored[places])


@dataclass(frozen=True)
class ReadTask:
    """Read samples by `read` (a `sources.Reader`), decode them, and store their pixels in `scratch`."""

    read: Any
    decoder: ImageDecoder
    scratch: Scratch

    def __call__(self, chunk: tuple[int, Sequence[str]]) -> dict[str, list[Any]]:
        """Process a chunk, (place of its first image in the scratch file, sample ids). Return one list per fact."""
        place, names = chunk
        step = max(1, _BLOCK_BYTES // int(np.prod(self.scratch.shape)))
        samples: list[Facts] = []
        for start in range(0, len(names), step):
            facts, pixels = self.decoder.read_all(self.read, names[start : start + step])
            if any(sample.pixels is not None for sample in facts):
                self.scratch.write(place + start, pixels)
            samples += facts
        return facts_columns(samples)
