"""Decoded pictures on disk until it is known which of them are packed, and where to."""

from pathlib import Path
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

__all__ = ["Scratch"]


class Scratch:
    """A file of pictures of one shape, (side, side, channels), each in a place of its own; gone when the context ends.

    `depth` is by how many bits the values of 16-bit pictures were scaled to 0..255.

    Places are given out first and written to later, by any process and in any order. Plain writes, not a writable
    memory map: on a full disk they give an error, where a map gives a dead process.
    """

    def __init__(self, path: Path, *, side: int, channels: int, depth: int = 16) -> None:
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
        """Make room for so many pictures more; the first one's place."""
        first, self.places = self.places, self.places + count
        with self.path.open("r+b") as file:
            file.truncate(self.places * int(np.prod(self.shape)))
        return first

    def write(self, place: int, pixels: NDArray[np.uint8]) -> None:
        """Put pictures, uint8 (k, side, side, channels), into `place` and those after it."""
        with self.path.open("r+b") as file:
            file.seek(place * int(np.prod(self.shape)))
            file.write(pixels.data)

    def read(self, places: NDArray[np.int64]) -> NDArray[np.uint8]:
        """The pictures in `places`, uint8 (k, side, side, channels)."""
        stored = np.memmap(self.path, dtype=np.uint8, mode="r", shape=(self.places, *self.shape))
        return np.asarray(stored[places])
