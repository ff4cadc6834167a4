"""Pieces of a step, and the processes that share them: the same bits for any number of processes.

A step is a fixed number of pieces. Each has random numbers of its own, and starts with the buffers of the step. What
the pieces add up (gradients, buffers, loss) is added in a fixed binary tree: piece 0 with 1, 2 with 3, then those sums.
A process, here called a rank as in PyTorch, has an aligned subtree. So the sum does not depend on the number of ranks,
which is a power of two. Between the ranks each adds up one part of all numbers and sends it to the others: all-to-all,
the upper tree, all-gather. That sends as few bytes as any all-reduce can.
"""

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import distributed
from torch.nn import functional

from ratchet.training.device import precise_type
from ratchet.training.sample_timeout import Interrupted, never

__all__ = ["AgreedMemoryError", "Board", "LostRank", "Meeting", "PieceSum", "Ranks", "lost_ranks", "raise_agreed"]

_TICK = timedelta(seconds=0.25)  # between two looks at the others
_JOIN = timedelta(seconds=60)  # for all to connect, which are ready; signals are not handled meanwhile


class LostRank(Exception):
    """Another process of the training has ended or does not answer."""


class AgreedMemoryError(MemoryError):
    """Memory ran out in one of the processes, and all of them know it."""


@contextmanager
def lost_ranks(ranks: "Ranks") -> Iterator[None]:
    """Raise LostRank where PyTorch reports by another error that another rank has ended."""
    try:
        yield
    except (RuntimeError, distributed.DistError) as error:
        if ranks.count > 1 and (isinstance(error, distributed.DistError) or "gloo" in str(error)):
            raise LostRank(str(error).splitlines()[0]) from error
        raise


def raise_agreed(lacks_memory: float, is_interrupted: float) -> None:
    """Raise the same error in all ranks, for the error of one of them."""
    if lacks_memory:
        raise AgreedMemoryError("out of memory in a process of the training")
    if is_interrupted:
        raise Interrupted


class PieceSum:
    """The sums of tensors of equal shapes, added in the order of a binary tree as they come.

    It holds those of at most log2(n) + 1 of n calls. The first of two is overwritten by their sum.
    """

    def __init__(self) -> None:
        self._subtrees: list[tuple[int, tuple[torch.Tensor, ...]]] = []  # (pieces, their sums)

    def add(self, *tensors: torch.Tensor) -> None:
        size = 1
        while self._subtrees and self._subtrees[-1][0] == size:
            tensors = tuple(left.add_(right) for left, right in zip(self._subtrees.pop()[1], tensors, strict=True))
            size *= 2
        self._subtrees.append((size, tensors))

    @property
    def total(self) -> tuple[torch.Tensor, ...]:
        """The sums; the number of calls must be a power of two."""
        [(_, total)] = self._subtrees
        return total


class Board:
    """Which rank was last seen to wait, and whether all are asked to stop: in memory that the ranks share."""

    def __init__(self, count: int, path: Path | None = None) -> None:
        self._seen = np.zeros(count + 1, np.float64)
        if path is not None:
            with path.open("ab") as file:
                file.truncate(self._seen.nbytes)
            self._seen = np.memmap(path, np.float64, "r+", shape=self._seen.shape)

    def see(self, rank: int) -> None:
        """Note that this rank waits now."""
        self._seen[rank] = time.monotonic()

    def missing(self, seconds: float) -> list[int]:
        """Return the ranks that were not seen for so long."""
        return [int(rank) for rank in np.flatnonzero(time.monotonic() - self._seen[:-1] > seconds)]

    def ask_to_stop(self) -> None:
        self._seen[-1] = 1

    def is_asked_to_stop(self) -> bool:
        return bool(self._seen[-1])


@dataclass(frozen=True)
class Meeting:
    """Meeting place of the ranks of one machine: a file, and the loopback interface."""

    path: str

    @property
    def interface(self) -> str:
        """The network interface on which the ranks listen."""
        return "lo0" if sys.platform == "darwin" else "lo"

    def store(self, count: int) -> Any:
        """Return the store of torch.distributed for so many ranks."""
        return distributed.FileStore(self.path, count)  # type: ignore[attr-defined]  # PyTorch has no stubs of it

    def board(self, count: int) -> Board:
        return Board(count, Path(f"{self.path}-board"))

    def name(self, rank: int) -> str:
        """Return a rank's name for people."""
        return f"process {rank + 1}"


@dataclass
class Ranks:
    """The processes of a training, as one of them sees them.

    Attributes:
        rank: its number. Rank 0 reports events and writes checkpoints.
        count: of processes.
        local: its number among those of its machine.
        watch: called a few times a second while this rank waits for the others, with the seconds waited.
        stop: rank 0 has been asked to stop before this step.
        is_stopping: it was so at the last step; all ranks stop there.
    """

    LONGEST_WAIT: ClassVar[float] = (
        1800.0  # seconds for another: it may read a checkpoint, or be examined by the doctor
    )

    rank: int = 0
    count: int = 1
    local: int = 0
    watch: Callable[[float], None] = lambda seconds: None
    stop: bool = field(default=False, init=False)
    is_stopping: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self._board = Board(self.count)

    @property
    def is_first(self) -> bool:
        """Whether this process reports events and writes checkpoints."""
        return self.rank == 0

    def join(self, meeting: Meeting, device: torch.device) -> None:
        """Connect the processes."""
        self._meeting, self._board = meeting, meeting.board(self.count)
        has_gpu = device.type == "cuda"
        if has_gpu:
            torch.cuda.set_device(device)
        with _listening_on(meeting.interface):
            try:
                distributed.init_process_group(
                    "nccl" if has_gpu else "gloo",
                    store=meeting.store(self.count),
                    rank=self.rank,
                    world_size=self.count,
                    timeout=_JOIN,
                    device_id=device if has_gpu else None,  # connects now
                )
            except (RuntimeError, distributed.DistError) as error:
                raise LostRank(str(error).splitlines()[0]) from error
        # PyTorch 2.15 has another name for it.
        set_timeout = getattr(distributed, "set_timeout", None) or distributed.distributed_c10d._set_pg_timeout
        set_timeout(timedelta(seconds=self.LONGEST_WAIT))

    def pieces(self, count: int) -> range:
        """Return the numbers of this rank's pieces of `count`."""
        share = count // self.count
        return range(self.rank * share, (self.rank + 1) * share)

    def add(self, vector: torch.Tensor) -> torch.Tensor:
        """Return the sum of the ranks' vectors, float (n,), added in the tree."""
        if self.count == 1:
            return vector
        size = -(-len(vector) // self.count)
        mine = functional.pad(vector, (0, size * self.count - len(vector)))
        part = self.scatter(mine)
        self.wait(lambda: distributed.all_gather_into_tensor(mine, part, async_op=True))
        return mine[: len(vector)]

    def scatter(self, vector: torch.Tensor) -> torch.Tensor:
        """Return this rank's part of the sum that `add` returns; the length is divisible by the number of ranks."""
        received = torch.empty_like(vector)
        self.wait(lambda: distributed.all_to_all_single(received, vector, async_op=True))
        parts = list(received.view(self.count, -1))
        while len(parts) > 1:
            parts = [left + right for left, right in zip(parts[::2], parts[1::2], strict=True)]
        part: torch.Tensor = parts[0]
        return part

    def in_turn(self, items: torch.Tensor) -> torch.Tensor:
        """Return the items (n, ...) of all ranks in turn: the first of each rank, then the second, and so on."""
        if self.count == 1:
            return items
        gathered = items.new_empty((self.count * len(items), *items.shape[1:]))
        self.wait(lambda: distributed.all_gather_into_tensor(gathered, items, async_op=True))
        return gathered.view(self.count, *items.shape).transpose(0, 1).flatten(0, 1)

    def agree(self, device: torch.device, *, lacks_memory: bool, is_interrupted: bool) -> None:
        """Raise the error of one rank on every rank.

        Raises:
            AgreedMemoryError: memory ran out on one of them.
            Interrupted: the run was asked to stop while one of them read a sample.
        """
        if self.count > 1:
            flags = torch.tensor([lacks_memory, is_interrupted], dtype=torch.int64, device=device)
            raise_agreed(*self.add(flags).tolist())

    def from_first(self, values: Sequence[float], device: torch.device) -> list[float]:
        """Return the values that rank 0 has; every rank has as many."""
        if self.count == 1:
            return list(values)
        sent = torch.tensor(values, dtype=precise_type(device), device=device)
        self.wait(lambda: distributed.broadcast(sent, 0, async_op=True))
        return [float(value) for value in sent.tolist()]

    def wait(self, begin: Callable[[], Any]) -> None:
        """Do with the other ranks what `begin` begins. On a CPU signals are handled meanwhile."""
        began = time.monotonic()
        try:
            work = begin()
            while not _is_done(work):
                self._board.see(self.rank)
                seconds = time.monotonic() - began
                self.watch(seconds)
                if seconds > self.LONGEST_WAIT:
                    names = ", ".join(map(self._meeting.name, self._board.missing(seconds / 2)))
                    raise LostRank(f"{names} of {self.count} has not answered for {seconds:.0f} s")
        except (RuntimeError, distributed.DistError) as error:
            raise LostRank(str(error).splitlines()[0]) from error

    def is_asked_to_stop(self, stop: Callable[[], bool] = never) -> bool:
        """Return whether `stop` has returned True in one of the processes."""
        if stop():
            self._board.ask_to_stop()
        return self._board.is_asked_to_stop()


def _is_done(work: Any) -> bool:
    """Wait a moment for a collective operation."""
    if distributed.get_backend() == "nccl":
        work.wait()  # does not wait for the GPU; with a time-out it would end the training
        return True
    try:
        work.wait(_TICK)
    except RuntimeError:
        if not work.is_completed():
            return False
        work.wait()  # it may have ended just after the moment; this raises what it failed by
    return True


@contextmanager
def _listening_on(interface: str) -> Iterator[None]:
    """Let what connects inside listen on this network interface only."""
    names = {f"{backend}_SOCKET_IFNAME": interface for backend in ("GLOO", "NCCL")}
    before = {name: os.environ.get(name) for name in names}
    os.environ.update(names)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
