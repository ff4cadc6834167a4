"""The samples of a user's own kind, read one by one, in this process or in a worker.

Before every read Python, NumPy and PyTorch are seeded from (seed, epoch, place of the sample). So a sample does not
depend on the process that reads it, on its batch or on the samples before it.
"""

import contextlib
import os
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset, get_worker_info

from ratchet.errors import TrainingError
from ratchet.training.augment import sample_bits
from ratchet.training.custom_class import Arrays, BadSample, CustomClass, line_of, summarize
from ratchet.training.sample_timeout import TooSlow, interruptible, never
from ratchet.training.stored_arrays import COLUMNS, StoredArrays

__all__ = ["CustomSamples", "Faulty", "Piece", "Sample", "SampleTimeout", "WorkerProgress"]

CHOSEN_BY = {"kind": ("arrays",)}

_OPENING = -1  # the place of a worker that opens the data
LEAST_OPENING = 10.0  # seconds that opening may take at least: it imports the user's libraries


class Piece(NamedTuple):
    """Samples to read together: their places, int64 (n,), and what their random states are seeded from.

    `contents`, uint8 (n, 32), are the SHA-256 of their arrays at ingest, if the seed and epoch are those of ingest.
    """

    places: NDArray[np.int64]
    seed: int = 0
    epoch: int = 0
    contents: NDArray[np.uint8] | None = None


@dataclass(frozen=True, slots=True)
class Sample:
    """One sample: its id, its other entries, its raw value, the arrays made of it, and their expected SHA-256 (hex)."""

    id: str
    cells: dict[str, Any]
    value: Any
    arrays: Arrays
    expected: str | None


@dataclass(frozen=True, slots=True)
class Faulty:
    """A sample that cannot be used: its id, the rule that it breaks, and the problem."""

    id: str
    rule: str
    problem: str


class WorkerProgress(NamedTuple):
    """The sample that a worker is reading."""

    worker: int
    since: float  # time.monotonic(), the same in all processes; 0: it reads none
    place: int  # -1: the worker opens the data


class SampleTimeout(TrainingError):
    """A sample was not read in time."""


class CustomSamples(Dataset[Any]):
    """The samples of a user's class. Each process opens its own object of it when it first reads.

    Args:
        path: the setting data.path, relative to the project folder.
        timeout: seconds that one sample may take, or opening the data (ten at least); 0: no limit.
        count: number of samples at ingest; None: this is the ingest.
    """

    def __init__(self, custom: CustomClass, path: str, *, timeout: float = 0.0, count: int | None = None) -> None:
        self.custom, self.timeout, self.count = custom, timeout, count
        self.path = path if "://" in path else custom.root / os.path.expanduser(path)
        self.stop: Callable[[], bool] = never
        self.progress: Any = None  # of each worker: since when, place; see WorkerProgress
        self._opened: Any = None

    def __getstate__(self) -> dict[str, Any]:
        # Workers import the class themselves.
        return self.__dict__ | {"custom": replace(self.custom), "stop": never, "_opened": None}

    def open(self) -> Any:
        """Return the object of the user's class, opened in this process.

        Raises:
            TrainingError: it cannot be opened, or has another number of samples than at ingest.
        """
        if self._opened is None:
            if isinstance(self.path, Path) and not self.path.exists():
                raise TrainingError(
                    f"data.path: {self.path} does not exist. Fix: set it to the file or folder that {self.custom.name} "
                    "reads"
                )
            with _as_in_a_worker(), self._watched(_OPENING) as begin:
                begin(_OPENING)
                self._opened = self._open()
        return self._opened

    def limit(self, place: int) -> float:
        """Return the seconds that reading this sample, or opening the data, may take; 0: no limit."""
        return max(self.timeout, LEAST_OPENING) if self.timeout and place == _OPENING else self.timeout

    def __getitems__(self, piece: Piece) -> list[Sample | Faulty]:
        """Return all samples of a piece. One that cannot be used is returned as `Faulty`, not raised."""
        opened = self.open()
        with _as_in_a_worker(), self._watched() as begin:
            seeds = sample_bits(piece.places.astype(np.uint64), seed=piece.seed, epoch=piece.epoch).tolist()
            samples = []
            expected = (
                [None] * len(seeds) if piece.contents is None else [each.tobytes().hex() for each in piece.contents]
            )
            for place, seed, content in zip(piece.places.tolist(), seeds, expected, strict=True):
                begin(place)
                _seed(seed)
                samples.append(self._read(opened, place, content))
        return samples

    def timeout_message(self, place: int, where: str) -> str:
        limit, name = self.limit(place), self.custom.name
        problem, waits = f"sample {place} of {name} was not read", "class waits"
        if place == _OPENING:
            problem, waits = f"{name} did not open {self.path}", "module or the class waits"
        return (
            f"data.kind: {problem} within {limit:g} s{where}. Fix: see what the {waits} for, or raise "
            "training.sample_timeout (0: no limit)"
        )

    def worker_progress(self) -> list[WorkerProgress]:
        numbers = list(self.progress)
        return [
            WorkerProgress(worker, numbers[start], int(numbers[start + 1]))
            for worker, start in enumerate(range(0, len(numbers), 2))
        ]

    def _open(self) -> Any:
        name = self.custom.name
        try:
            if isinstance(self.path, Path) and (self.path / COLUMNS).is_file():
                return StoredArrays(self.path)
            opened = self.custom.loaded(self.path)
            count = len(opened)
        except TrainingError:
            raise  # the class cannot be imported, or lacks a method
        except (Exception, SystemExit) as error:  # the user's code may raise anything
            raise TrainingError(
                f"data.kind: {name} cannot open {self.path}: {summarize(error, self.custom.root)}. Fix: correct the "
                "class or data.path"
            ) from error
        if not count:
            raise TrainingError(
                f"data.kind: {name} finds no samples in {self.path}. Fix: correct the class or data.path"
            )
        if self.count not in (None, count):
            raise TrainingError(
                f"data.kind: {name} finds {count} samples in {self.path}, but found {self.count} at ingest. Fix: run "
                "`ratchet train`, which ingests the data again"
            )
        return opened

    def _read(self, opened: Any, place: int, expected: str | None) -> Sample | Faulty:
        name = f"{place:08d}"
        try:
            value, cells = self.custom.sample(opened, place)
            own = cells.pop("id", None)
            name = name if own is None else str(own)
            return Sample(name, cells, value, self.custom.arrays(value), expected)
        except BadSample as error:
            return Faulty(name, error.rule, str(error))

    @contextlib.contextmanager
    def _watched(self, place: int = 0) -> Iterator[Callable[[int], None]]:
        """Open or read where code that hangs is noticed: by the parent of a worker, otherwise by a thread.

        Yields:
            A function to call with the place of a sample before it is read, or with -1 before the data are opened.
        """
        worker = get_worker_info()
        if worker is not None:
            progress, start = self.progress, 2 * worker.id

            def begin(at: int) -> None:
                progress[start + 1] = at
                progress[start] = time.monotonic()

            try:
                yield begin
            finally:
                progress[start] = 0.0
            return

        def message(where: str = "") -> str:
            return self.timeout_message(place, where)

        try:
            with interruptible(message, timeout=self.limit(place), stop=self.stop) as begin_here:

                def begin_at(at: int) -> None:
                    nonlocal place
                    place = at
                    begin_here()

                yield begin_at
        except TooSlow as error:
            raise SampleTimeout(message(line_of(error, self.custom.root))) from error


@contextlib.contextmanager
def _as_in_a_worker() -> Iterator[None]:
    """Use one thread, because a sum over an array depends on their number, and restore this process's random state."""
    python, numpy, own = random.getstate(), np.random.get_state(), torch.default_generator.get_state()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.inference_mode(mode=False):  # tensors that the user's object keeps are ordinary ones
            yield
    finally:
        torch.set_num_threads(threads)
        random.setstate(python)
        np.random.set_state(numpy)
        torch.default_generator.set_state(own)


def _seed(bits: int) -> None:
    random.seed(bits)
    np.random.seed([bits & 0xFFFFFFFF, bits >> 32])
    torch.default_generator.manual_seed(bits)
