"""How fast training goes, and how much of its time it waits for data."""

import time
from collections.abc import Generator
from typing import TypeVar

__all__ = ["Throughput", "waiting"]

Item = TypeVar("Item")


class Throughput:
    """Samples per second, and the share of time spent waiting for them, since the last lap."""

    def __init__(self) -> None:
        self.samples = 0
        self.waited = 0.0  # seconds
        self._start = time.perf_counter()

    @property
    def seconds(self) -> float:
        """Since the last lap."""
        return time.perf_counter() - self._start

    def lap(self) -> tuple[float, float]:
        """(samples per second, share of time waiting); the next lap begins."""
        seconds = max(self.seconds, 1e-9)
        figures = self.samples / seconds, self.waited / seconds
        self.samples, self.waited, self._start = 0, 0.0, time.perf_counter()
        return figures


def waiting(items: Generator[Item], *clocks: Throughput) -> Generator[Item]:
    """The same items; the time it took to get each is told to the clocks. Closing it closes them."""
    try:
        while True:
            began = time.perf_counter()
            try:
                item = next(items)
            except StopIteration:
                return
            for clock in clocks:
                clock.waited += time.perf_counter() - began
            yield item
    finally:
        items.close()
