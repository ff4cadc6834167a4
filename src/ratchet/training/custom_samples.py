"""A user's own torch Dataset, opened and read: in this process, or by worker processes that end with it."""

import contextlib
import multiprocessing
import operator
import os
import random
import re
import signal
import threading
import time
import traceback
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import resource_tracker
from pathlib import Path
from types import FrameType
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

from ratchet import files
from ratchet.errors import TrainingError
from ratchet.training.interrupt import PATIENCE, Interrupted, TooSlow, interruptible, never
from ratchet.training.models.factory import OwnCode

__all__ = ["Factory", "Faulty", "Piece", "Reader", "Sample", "id_of", "told"]

Result = TypeVar("Result")
_SPLITS = ("train", "validation", "test")
_TICK = 0.5  # seconds between two looks at workers that have not answered
_LONG_WAIT = 10.0  # seconds without any result, after which a request to stop is answered whatever the workers do
_ASKING = (signal.SIGTERM, signal.SIGINT)  # by which a person, or a worker of Prefect, asks a run to leave


@dataclass(frozen=True)
class Factory:
    """The user's function, called with train, validation or test to get the Dataset of that split."""

    function: str  # package.module:function
    root: Path  # the project folder
    code: str  # file or folder in it that the function is made of

    def digest(self) -> str:
        """SHA-256 (hex) of the code."""
        return files.digest_json(OwnCode(self.root, self.code, "data").digests())

    def open(self, split: str) -> Any:
        """The Dataset of a split: map-style, with `.classes`, and with one name per sample in `.ids` if it has any.

        Raises:
            TrainingError: no such function, it raises, or what it returns is not such a Dataset.
        """
        make = OwnCode(self.root, self.code, "data").load(self.function)
        call = f"data.factory: {self.function}({split!r})"
        try:
            dataset: Any = make(split)
            if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__getitem__"):
                raise TrainingError(
                    f"{call} returns a {type(dataset).__name__}: return a map-style torch Dataset, with __len__ and "
                    "__getitem__, for exact resume needs samples that can be asked for one by one"
                )
            self._check(dataset, call)
        except TrainingError:
            raise
        except (Exception, SystemExit) as error:  # the user's code may raise anything
            raise TrainingError(f"{call} fails with {told(error, self.root)}: mend it") from error
        return dataset

    @staticmethod
    def _check(dataset: Any, call: str) -> None:
        if len(dataset) == 0:
            raise TrainingError(f"{call} has no samples: all three splits need some")
        classes: Any = getattr(dataset, "classes", None)
        is_list = isinstance(classes, Sequence) and not isinstance(classes, str)
        if (
            not is_list
            or not all(isinstance(name, str) for name in classes)
            or not 2 <= len(classes) == len({*classes})
        ):
            raise TrainingError(
                f"{call} has classes {classes!r}: give the Dataset an attribute classes, a list of two or more "
                "different names in the order of their labels"
            )
        ids = getattr(dataset, "ids", None)
        if ids is not None and len(ids) != len(dataset):
            raise TrainingError(
                f"{call} has {len(ids)} ids for {len(dataset)} samples: give one id for each, or no ids"
            )


class Piece(NamedTuple):
    """What is read at once: samples of a split by their index in the Dataset, int64 (n,), and a seed each, uint64."""

    split: str
    places: NDArray[np.int64]
    seeds: NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class Sample:
    """One sample as it was read: its name, image uint8 or float32 (channels, height, width), and label."""

    id: str
    image: torch.Tensor
    label: int

    @property
    def kind(self) -> str:
        """Type and shape of the image, in words."""
        return f"{str(self.image.dtype).removeprefix('torch.')} {' x '.join(map(str, self.image.shape))}"


@dataclass(frozen=True, slots=True)
class Faulty:
    """A sample that cannot be used: its name, the rule that it breaks, and what was found."""

    id: str
    rule: str
    problem: str


class Reader(Generic[Result]):
    """Reads pieces; `combine` makes of a piece's samples what is handed over, in the process that reads them.

    Workers come with the first `read` and stay until `close`. They are forked from a server process without threads,
    so no lock of this process can be caught in them, and each calls the user's function itself, so open files are never
    shared. They end by themselves when this process is killed.

    Args:
        timeout: seconds that one sample may take; 0: no limit.
    """

    def __init__(
        self,
        factory: Factory,
        combine: Callable[[list[Sample | Faulty]], Result],
        *,
        workers: int,
        timeout: float = 0.0,
    ) -> None:
        self.combine = combine
        self.workers = workers
        self._pieces = _Pieces()
        self._samples = _Samples(factory, timeout)
        self._loader: DataLoader[Result] | None = None
        self._reading = 0
        self._looked = 0.0  # when workers were last looked at
        self._waited: dict[int, tuple[float, float]] = {}  # by worker: its sample's `since`, seconds waited for it

    def open(self, split: str) -> Any:
        """The Dataset of a split, as this process has it: see `Factory.open`."""
        return self._samples.open(split)

    def answer(self, stop: Callable[[], bool]) -> None:
        """From now on, raise `Interrupted` when `stop` says yes while a sample is waited for."""
        self._samples.stop = stop

    def read_here(self, piece: Piece) -> Result:
        """One piece, read by this process.

        Raises:
            TrainingError: a sample took too long.
        """
        return self.combine(self._samples.__getitems__(piece))

    def read(self, pieces: Iterable[Piece]) -> Iterator[Result]:
        """The result for each piece, in order, prefetched by the workers. A new call ends the one before it.

        Raises:
            TrainingError: a worker died, a sample took too long, or the user's function fails in it.
        """
        self._reading += 1
        mine, self._pieces.coming = self._reading, iter(pieces)
        results = self._begin()
        while True:
            assert mine == self._reading, "two are reading at once"
            try:
                result = next(results)
            except StopIteration:
                return
            except _Slow:
                raise
            except TrainingError as error:  # PyTorch puts the worker's traceback around it
                self.close()
                raise TrainingError(str(error).strip().rpartition("TrainingError: ")[2]) from error
            except (RuntimeError, EOFError, OSError) as error:  # PyTorch's words, or a connection that breaks first
                self.close()
                if self._samples.stop():
                    raise Interrupted from error  # what asked this process to leave may have ended the worker
                raise TrainingError(
                    f"a worker process of training.workers ended ({error}): the same command continues; if it happens "
                    "again lower training.workers, for memory or shared memory (/dev/shm) is short, or set it to 0 to "
                    "see what the Dataset does"
                ) from error
            yield result

    def close(self) -> None:
        """End the workers, if there are any."""
        if self._loader is not None:
            self._loader = None
            self._end_workers()

    def _begin(self) -> Iterator[Result]:
        """The loader's next pass."""
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="This DataLoader will create", category=UserWarning)
            if self._loader is None:
                self._loader = self._make_loader()
                # PyTorch ends the workers with the last reference, which a traceback may hold, and not at exit.
                self._end_workers = weakref.finalize(self, _end_workers, self._loader)
            with _started_without_signals() if self.workers else contextlib.nullcontext():
                results = iter(self._loader)
            self._watch(results)
            return results

    def _watch(self, results: Any) -> None:
        """Look at the clock while a worker's result is waited for."""
        if not self.workers or hasattr(results, "watched"):
            return
        take, since = results._try_get_data, time.monotonic()

        def watched(*_: object) -> tuple[bool, Any]:
            nonlocal since
            found: tuple[bool, Any] = take(_TICK)
            if found[0]:
                since = time.monotonic()
            else:
                self._look(results._workers, time.monotonic() - since)
            return found

        results._try_get_data, results.watched = watched, True  # PyTorch calls it again and again, for ever

    def _look(self, processes: Sequence[Any], waited: float) -> None:
        """No result for `waited` seconds: is a sample too slow, or is the run asked to stop?"""
        samples, busy = self._samples, [at for at in self._samples.under_way() if at.since]
        seconds = self._seconds(busy)
        slow = [at for at in busy if at.place >= 0 and 0 < samples.timeout < seconds[at.worker]]
        patient = waited < _LONG_WAIT and max(seconds.values(), default=0.0) < PATIENCE
        if not slow and (patient or not samples.stop()):
            return
        where = f"worker process {processes[slow[0].worker].pid}" if slow else ""
        for at in busy:
            processes[at.worker].kill()  # it hears nothing else, and PyTorch would wait five seconds for each
        self.close()
        if not slow:
            raise Interrupted
        raise _Slow(samples.too_slow(slow[0].split, slow[0].place, where))

    def _seconds(self, busy: "list[_UnderWay]") -> dict[int, float]:
        """How long each worker's sample has been waited for.

        Looks are added up: the clock goes on while all processes are stopped, as schedulers stop a run.
        """
        now = time.monotonic()
        passed, self._looked = min(now - self._looked, 2 * _TICK), now
        before, self._waited = self._waited, {}
        for at in busy:
            since, seconds = before.get(at.worker, (0.0, 0.0))
            self._waited[at.worker] = at.since, seconds + passed if since == at.since else 0.0
        return {worker: seconds for worker, (_, seconds) in self._waited.items()}

    def _make_loader(self) -> "DataLoader[Result]":
        if self.workers:
            module = self._samples.factory.function.partition(":")[0]
            # The server process imports these once, for all workers; it has no effect once the server runs.
            multiprocessing.set_forkserver_preload([__name__, module])
            # Memory that the workers write to and this process reads.
            self._samples.progress = multiprocessing.get_context("forkserver").RawArray("d", 3 * self.workers)
        return DataLoader(
            self._samples,
            batch_sampler=self._pieces,
            collate_fn=self.combine,
            num_workers=self.workers,
            multiprocessing_context="forkserver" if self.workers else None,
            persistent_workers=self.workers > 0,
            worker_init_fn=_answer_to_parent if self.workers else None,
            pin_memory=torch.cuda.is_available(),
            generator=torch.Generator(),  # or every pass would draw from the global one
        )


def _end_workers(loader: "DataLoader[Any]") -> None:
    workers = getattr(loader, "_iterator", None)
    if workers is not None:
        workers._shutdown_workers()


class _Pieces:
    """The loader's batch sampler: whatever is to be read next."""

    coming: Iterator[Piece] = iter(())

    def __iter__(self) -> Iterator[Any]:
        return self.coming


class _Samples(Dataset[Any]):
    """Every split of a factory, each opened in the process that first reads from it."""

    def __init__(self, factory: Factory, timeout: float) -> None:
        self.factory, self.timeout = factory, timeout
        self.stop: Callable[[], bool] = never
        self.progress: Any = None  # of each worker: since when, split, place; see _UnderWay
        self._opened: dict[str, Any] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {"factory": self.factory, "timeout": self.timeout, "progress": self.progress, "_opened": {}}

    def open(self, split: str) -> Any:
        if split not in self._opened:
            with _as_in_a_worker(), self._noted(split) as begin:
                begin(-1)
                self._opened[split] = self.factory.open(split)
        return self._opened[split]

    def __getitems__(self, piece: Piece) -> list[Sample | Faulty]:
        """All samples of a piece; one that cannot be had is told, not raised."""
        with _as_in_a_worker():
            dataset = self.open(piece.split)
            samples: list[Sample | Faulty] = []
            with self._watched(piece.split) as begin:
                for place, seed in zip(piece.places.tolist(), piece.seeds.tolist(), strict=True):
                    begin(place)
                    samples.append(self._read(dataset, place, seed, id_of(dataset, piece.split, place)))
        return samples

    def too_slow(self, split: str, place: int, where: str) -> str:
        """The error for a sample that took too long."""
        return (
            f"data.factory: sample {id_of(self.open(split), split, place)} of split {split} was not read within "
            f"{self.timeout:g} s ({where}): look what its __getitem__ waits for, or raise training.sample_timeout "
            "(0: no limit)"
        )

    @contextlib.contextmanager
    def _watched(self, split: str) -> Iterator[Callable[[int], None]]:
        """Read samples where a hang is noticed: by the parent of a worker, else by a thread.

        Yields:
            what is to be called with a sample's place before it is read.
        """
        if get_worker_info() is not None:
            with self._noted(split) as begin:
                yield begin
            return
        place = 0

        def described(where: str = "") -> str:
            return self.too_slow(split, place, f"this process{where}")

        try:
            with interruptible(described, timeout=self.timeout, stop=self.stop) as begin_here:

                def begin_at(at: int) -> None:
                    nonlocal place
                    place = at
                    begin_here()

                yield begin_at
        except TooSlow as error:
            raise _Slow(described(line_of(error, self.factory.root))) from error

    @contextlib.contextmanager
    def _noted(self, split: str) -> Iterator[Callable[[int], None]]:
        """Let the parent of a worker see what it is reading; nothing in another process."""
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

    def under_way(self) -> "list[_UnderWay]":
        """What each worker is reading."""
        numbers = list(self.progress)
        return [
            _UnderWay(worker, numbers[start], _SPLITS[int(numbers[start + 1])], int(numbers[start + 2]))
            for worker, start in enumerate(range(0, len(numbers), 3))
        ]

    def _read(self, dataset: Any, place: int, seed: int, name: str) -> Sample | Faulty:
        _seed(seed)
        try:
            found = dataset[place]
        except (Exception, SystemExit) as error:  # the user's code may raise anything; what it was is kept
            return Faulty(name, "raised", told(error, self.factory.root))
        if not isinstance(found, tuple | list) or len(found) != 2:
            return Faulty(name, "not-a-sample", f"a {type(found).__name__}, not (image, label)")
        image, label = found
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
        # A copy: the Dataset may fill the same memory again for its next sample.
        return Sample(
            name, image.detach().to(torch.uint8 if image.dtype == torch.uint8 else torch.float32, copy=True), label
        )


def _without_pixels(image: torch.Tensor) -> str:
    """Say why a tensor is no plain array of values; empty where it is one."""
    if image.is_nested:
        return "an image that is a nested tensor"
    if image.is_meta:
        return "an image without values (device meta)"
    return "" if image.layout is torch.strided else f"an image that is a {image.layout} tensor"


class _UnderWay(NamedTuple):
    """The sample that a worker is reading."""

    worker: int
    since: float  # time.monotonic(), which all processes share; 0: it reads none
    split: str
    place: int  # -1: it opens the Dataset


class _Slow(TrainingError):
    """A sample was not read in time."""


@contextlib.contextmanager
def _as_in_a_worker() -> Iterator[None]:
    """One thread, for a sum over pixels depends on how many share it; what this process draws from stays as it is."""
    python, numpy, own = random.getstate(), np.random.get_state(), torch.default_generator.get_state()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.inference_mode(mode=False):  # a tensor that the Dataset keeps is an ordinary one
            yield
    finally:
        torch.set_num_threads(threads)
        random.setstate(python)
        np.random.set_state(numpy)
        torch.default_generator.set_state(own)


def id_of(dataset: Any, split: str, place: int) -> str:
    """The name of the sample at index `place`: the Dataset's own where it has names, else the split and the index."""
    ids = getattr(dataset, "ids", None)
    return f"{split}/{place:08d}" if ids is None else str(ids[place])


def _seed(bits: int) -> None:
    random.seed(bits)
    np.random.seed([bits & 0xFFFFFFFF, bits >> 32])
    torch.default_generator.manual_seed(bits)


@contextlib.contextmanager
def _started_without_signals() -> Iterator[None]:
    """What is started meanwhile cannot be ended by a signal to the whole process group, until it takes them itself."""
    resource_tracker.ensure_running()  # which, when it starts, unblocks them
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _ASKING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _answer_to_parent(_worker: int) -> None:
    """End when the parent does, and not before.

    PyTorch's own watch is on the process that forked this one, which here is the server; and the server waits for us.
    Ctrl-C, and a SIGTERM to the whole process group, ask the parent to leave in good order: it still needs us.
    """
    threading.Thread(target=_end_with_parent, name="parent-watch", daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _pass_over_once)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _ASKING)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _pass_over_once(number: int, _frame: FrameType | None) -> None:
    signal.signal(number, signal.SIG_DFL)  # at exit the parent ends a worker that hangs by SIGTERM too, twice


def line_of(error: BaseException, root: Path) -> str:
    """The line of the user's code that an error came from, in brackets; empty where none is known."""
    own = [one for one in traceback.extract_tb(error.__traceback__) if Path(one.filename).is_relative_to(root)]
    ours = str(Path(__file__).parent)  # the project folder holds this code too
    lines = [one for one in own if "site-packages" not in one.filename and not one.filename.startswith(ours)]
    return f" (line {lines[-1].lineno} of {Path(lines[-1].filename).relative_to(root)})" if lines else ""


def told(error: BaseException, root: Path) -> str:
    """An error and the line of the user's code it came from, in words that are the same on every machine."""
    words = re.sub(r" at 0x[0-9a-fA-F]+", "", str(error)).replace(f"{root}/", "")
    where = line_of(error, root)
    return f"{type(error).__name__}: {words}{where}" if words else f"{type(error).__name__}{where}"
