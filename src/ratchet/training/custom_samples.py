"""A user's own torch Dataset: opened by its factory function, and read sample by sample."""

import contextlib
import operator
import random
import re
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from ratchet import files
from ratchet.errors import TrainingError
from ratchet.training.models.factory import OwnCode
from ratchet.training.sample_timeout import TooSlow, interruptible, never

__all__ = [
    "LEAST_OPENING",
    "Factory",
    "Faulty",
    "Piece",
    "Sample",
    "SampleDataset",
    "SampleTimeout",
    "WorkerProgress",
    "id_of",
    "summarize",
]

_SPLITS = ("train", "validation", "test")
_OPENING = -1  # the place of a worker that opens the Dataset
LEAST_OPENING = 10.0  # seconds that opening may take at least: it imports the user's libraries


@dataclass(frozen=True)
class Factory:
    """The user's function, called with train, validation or test to get the Dataset of that split."""

    function: str  # package.module:function
    root: Path  # the project folder
    code: str  # file or folder in it that holds the function's code

    def digest(self) -> str:
        return files.digest_json(OwnCode(self.root, self.code, "data.factory").digests())

    def open(self, split: str) -> Any:
        """Open the Dataset of a split: map-style, with `.classes`, and optionally one name per sample in `.ids`.

        Raises:
            TrainingError: there is no such function, it raises an error, or it returns something else.
        """
        make = OwnCode(self.root, self.code, "data.factory").load(self.function)
        call = f"data.factory: {self.function}({split!r})"
        try:
            dataset: Any = make(split)
            if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__getitem__"):
                raise TrainingError(
                    f"{call} returns a {type(dataset).__name__}. Fix: return a map-style torch Dataset, with __len__ "
                    "and __getitem__: exact resume needs samples that can be read one by one"
                )
            self._check(dataset, call)
        except TrainingError:
            raise
        except (Exception, SystemExit) as error:  # the user's code may raise anything
            raise TrainingError(
                f"{call} fails with {summarize(error, self.root)}. Fix: correct the function"
            ) from error
        return dataset

    @staticmethod
    def _check(dataset: Any, call: str) -> None:
        if len(dataset) == 0:
            raise TrainingError(f"{call} has no samples. Each of the three splits needs some")
        classes: Any = getattr(dataset, "classes", None)
        is_list = isinstance(classes, Sequence) and not isinstance(classes, str)
        if (
            not is_list
            or not all(isinstance(name, str) for name in classes)
            or not 2 <= len(classes) == len({*classes})
        ):
            raise TrainingError(
                f"{call} has classes {classes!r}. Fix: give the Dataset an attribute classes, a list of two or more "
                "different names in the order of their labels"
            )
        ids = getattr(dataset, "ids", None)
        if ids is not None and len(ids) != len(dataset):
            raise TrainingError(
                f"{call} has {len(ids)} ids for {len(dataset)} samples. Fix: give one id for each, or no ids"
            )


class Piece(NamedTuple):
    """Samples of a split to read together: their indices in the Dataset, int64 (n,), and a seed for each, uint64."""

    split: str
    places: NDArray[np.int64]
    seeds: NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class Sample:
    """One sample: its name, image uint8 or float32 (channels, height, width), and label."""

    id: str
    image: torch.Tensor
    label: int

    @property
    def kind(self) -> str:
        """Type and shape of the image, for messages."""
        return f"{str(self.image.dtype).removeprefix('torch.')} {' x '.join(map(str, self.image.shape))}"


@dataclass(frozen=True, slots=True)
class Faulty:
    """A sample that cannot be used: its name, the rule that it breaks, and the problem."""

    id: str
    rule: str
    problem: str


class SampleDataset(Dataset[Any]):
    """All splits of a factory. Each process opens a split when it first reads from it."""

    def __init__(self, factory: Factory, timeout: float) -> None:
        self.factory, self.timeout = factory, timeout
        self.stop: Callable[[], bool] = never
        self.progress: Any = None  # of each worker: since when, split, place; see WorkerProgress
        self._opened: dict[str, Any] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {"factory": self.factory, "timeout": self.timeout, "progress": self.progress, "_opened": {}}

    def open(self, split: str) -> Any:
        """Return the Dataset of a split, opened in this process."""
        if split not in self._opened:
            with _as_in_a_worker(), self._watched(split, _OPENING) as begin:
                begin(_OPENING)
                self._opened[split] = self.factory.open(split)
        return self._opened[split]

    def limit(self, place: int) -> float:
        """Return the seconds that reading this sample, or opening the Dataset, may take; 0: no limit."""
        return max(self.timeout, LEAST_OPENING) if self.timeout and place == _OPENING else self.timeout

    def __getitems__(self, piece: Piece) -> list[Sample | Faulty]:
        """Return all samples of a piece. One that cannot be read is returned as `Faulty`, not raised."""
        with _as_in_a_worker():
            dataset = self.open(piece.split)
            samples: list[Sample | Faulty] = []
            with self._watched(piece.split) as begin:
                for place, seed in zip(piece.places.tolist(), piece.seeds.tolist(), strict=True):
                    begin(place)
                    samples.append(self._read(dataset, place, seed, id_of(dataset, piece.split, place)))
        return samples

    def timeout_message(self, split: str, place: int, where: str) -> str:
        if place == _OPENING:
            return (
                f"data.factory: {self.factory.function}({split!r}) did not return within {self.limit(place):g} s "
                f"({where}). Fix: see what the module or the function waits for, or raise training.sample_timeout "
                "(0: no limit)"
            )
        return (
            f"data.factory: sample {id_of(self.open(split), split, place)} of split {split} was not read within "
            f"{self.timeout:g} s ({where}). Fix: see what its __getitem__ waits for, or raise training.sample_timeout "
            "(0: no limit)"
        )

    @contextlib.contextmanager
    def _watched(self, split: str, place: int = 0) -> Iterator[Callable[[int], None]]:
        """Open or read where code that hangs is noticed: by the parent of a worker, otherwise by a thread.

        Yields:
            A function to call with the place of a sample before it is read, or with -1 before the Dataset is opened.
        """
        if get_worker_info() is not None:
            with self._noted(split) as begin:
                yield begin
            return

        def message(where: str = "") -> str:
            return self.timeout_message(split, place, f"this process{where}")

        try:
            with interruptible(message, timeout=self.limit(place), stop=self.stop) as begin_here:

                def begin_at(at: int) -> None:
                    nonlocal place
                    place = at
                    begin_here()

                yield begin_at
        except TooSlow as error:
            raise SampleTimeout(message(line_of(error, self.factory.root))) from error

    @contextlib.contextmanager
    def _noted(self, split: str) -> Iterator[Callable[[int], None]]:
        """Record in shared memory what a worker reads. Do nothing in another process."""
        worker = get_worker_info()
        if worker is None:
            yield lambda place: None
            return
        progress, start = self.progress, 3 * worker.id
        progress[start + 1] = _SPLITS.index(split)

        def begin(place: int) -> None:
            progress[start + 2] = place
            progress[start] = time.monotonic()

        try:
            yield begin
        finally:
            progress[start] = 0.0

    def worker_progress(self) -> "list[WorkerProgress]":
        numbers = list(self.progress)
        return [
            WorkerProgress(worker, numbers[start], _SPLITS[int(numbers[start + 1])], int(numbers[start + 2]))
            for worker, start in enumerate(range(0, len(numbers), 3))
        ]

    def _read(self, dataset: Any, place: int, seed: int, name: str) -> Sample | Faulty:
        _seed(seed)
        try:
            pair = dataset[place]
        except (Exception, SystemExit) as error:  # the user's code may raise anything
            return Faulty(name, "raised", summarize(error, self.factory.root))
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            return Faulty(name, "not-a-sample", f"a {type(pair).__name__}, not (image, label)")
        image, label = pair
        if isinstance(image, torch.Tensor) and (problem := _without_pixels(image)):
            return Faulty(name, "not-a-sample", problem)
        if not isinstance(image, torch.Tensor) or image.ndim != 3 or not image.numel():
            shape = f" of shape {tuple(image.shape)}" if isinstance(image, torch.Tensor) else ""
            return Faulty(name, "not-a-sample", f"an image that is a {type(image).__name__}{shape}")
        if image.dtype != torch.uint8 and not image.is_floating_point():
            return Faulty(name, "not-a-sample", f"an image of {image.dtype}")
        try:
            label = operator.index(label)
        except (TypeError, ValueError, RuntimeError):
            return Faulty(name, "not-a-sample", f"a label that is {label!r}")
        # A copy, because the Dataset may reuse the memory for its next sample.
        return Sample(
            name, image.detach().to(torch.uint8 if image.dtype == torch.uint8 else torch.float32, copy=True), label
        )


def _without_pixels(image: torch.Tensor) -> str:
    """Return why a tensor is not a plain array of values; empty if it is one."""
    if image.is_nested:
        return "an image that is a nested tensor"
    if image.is_meta:
        return "an image without values (device meta)"
    return "" if image.layout is torch.strided else f"an image that is a {image.layout} tensor"


class WorkerProgress(NamedTuple):
    """The sample that a worker is reading."""

    worker: int
    since: float  # time.monotonic(), the same in all processes; 0: it reads none
    split: str
    place: int  # -1: the worker opens the Dataset


class SampleTimeout(TrainingError):
    """A sample was not read in time."""


@contextlib.contextmanager
def _as_in_a_worker() -> Iterator[None]:
    """Use one thread, because a sum over pixels depends on their number, and restore this process's random state."""
    python, numpy, own = random.getstate(), np.random.get_state(), torch.default_generator.get_state()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.inference_mode(mode=False):  # tensors that the Dataset keeps are ordinary ones
            yield
    finally:
        torch.set_num_threads(threads)
        random.setstate(python)
        np.random.set_state(numpy)
        torch.default_generator.set_state(own)


def id_of(dataset: Any, split: str, place: int) -> str:
    """Return the name of the sample at index `place`: from `.ids`, or made of the split and the index."""
    ids = getattr(dataset, "ids", None)
    return f"{split}/{place:08d}" if ids is None else str(ids[place])


def _seed(bits: int) -> None:
    random.seed(bits)
    np.random.seed([bits & 0xFFFFFFFF, bits >> 32])
    torch.default_generator.manual_seed(bits)


def line_of(error: BaseException, root: Path) -> str:
    """Return the line of the user's code that raised an error, in brackets; empty if it is unknown."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename).is_relative_to(root)]
    ours = str(Path(__file__).parent)  # the project folder holds this code too
    lines = [frame for frame in frames if "site-packages" not in frame.filename and not frame.filename.startswith(ours)]
    return f" (line {lines[-1].lineno} of {Path(lines[-1].filename).relative_to(root)})" if lines else ""


def summarize(error: BaseException, root: Path) -> str:
    """Return an error and its line of the user's code, as a text that is the same on every machine."""
    text = re.sub(r" at 0x[0-9a-fA-F]+", "", str(error)).replace(f"{root}/", "")
    where = line_of(error, root)
    return f"{type(error).__name__}: {text}{where}" if text else f"{type(error).__name__}{where}"
