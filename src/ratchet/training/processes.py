"""A training in several processes, as its first one runs it: the one that the user started.

It starts the others of its machine, and with `training.nodes` it is the first process of the first node.
"""

import contextlib
import shutil
import tempfile
import threading
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import distributed

from ratchet.combinations import pieces_fault, reduction_fault
from ratchet.errors import TrainingError
from ratchet.files import DRAFT
from ratchet.hardware import cores
from ratchet.training.checkpoint import CheckpointStore
from ratchet.training.device import choose_device
from ratchet.training.events import Event, Notice, Stopped, Trouble
from ratchet.training.inputs import TrainingInputs
from ratchet.training.loop import fit
from ratchet.training.model_shards import refuse_shards
from ratchet.training.nodes import FirstNode, node_range
from ratchet.training.rank_processes import END_SECONDS, RankJob, RankProcesses
from ratchet.training.ranks import LostRank, Meeting, Ranks
from ratchet.training.sample_timeout import PATIENCE, Interrupted, never

__all__ = ["count_processes", "fit_in_processes"]

NO_RESULT = "it starts processes; what they compute is decided elsewhere"

_MOST_LOSSES = 3
_LEAVE = 1.0  # seconds that the end of a group may take here
Stop = Callable[[], bool]


def fit_in_processes(
    inputs: TrainingInputs,
    *,
    packed: Path,
    store: CheckpointStore,
    stop: Stop = never,
    facts: Mapping[str, Any] | None = None,
    **more: Any,
) -> Iterator[Event]:
    """Train as `fit` does, in `plan.processes` processes. If one is lost, all continue at the newest checkpoint.

    Args:
        packed: folder of the packed set, which each process opens.
        facts: what must be equal on all of `plan.nodes`; None: train on this machine alone.
        stop, more: as those of `fit`.

    Raises:
        TrainingError: as `fit`; or there are fewer GPUs than processes, or processes are lost again and again.
    """
    plan = inputs.plan
    refuse_shards(plan)
    share = count_processes(plan.processes, pieces=plan.pieces, device=plan.device)
    if fault := reduction_fault(plan):
        raise TrainingError(fault)
    if facts is None or node_range(plan.nodes)[1] == 1:
        if share > 1:
            yield Notice(f"{share} processes share the {plan.pieces} pieces of each step")
        yield from _attempts(inputs, share, None, packed, store, stop, more)
        return
    with (
        FirstNode(plan, share=share, facts=facts, checkpoints=store.folder, stop=stop) as nodes,
        contextlib.closing(_attempts(inputs, share, nodes, packed, store, stop, more)) as events,
    ):
        for event in events:
            nodes.follow(event)
            yield event


def _attempts(
    inputs: TrainingInputs,
    share: int,
    nodes: FirstNode | None,
    packed: Path,
    store: CheckpointStore,
    stop: Stop,
    more: Any,
) -> Generator[Event]:
    """Train until the end, as often as processes are lost, or nodes come. `share` is the number of processes here."""
    losses, must_pause = 0, stop if nodes is None else lambda: stop() or nodes.can_grow()
    while True:
        others: _Others | None = None
        try:
            if nodes is not None:
                yield from nodes.gather(torch.get_num_threads())
            count = share * (1 if nodes is None else 1 + len(nodes.members))
            job = RankJob(inputs, packed, store.folder, count, torch.get_num_threads(), Meeting(""))
            others = _Others(job, share, nodes, stop)
            with (
                others as ranks,
                contextlib.closing(fit(inputs, store=store, ranks=ranks, stop=must_pause, **more)) as events,
            ):
                for event in events:
                    if not isinstance(event, Stopped) or nodes is None or stop():
                        yield event
            if nodes is None or stop() or not isinstance(event, Stopped):
                return
            yield Notice(f"more nodes have come: all continue at step {event.step:,}")
        except Interrupted:  # before they have begun
            yield Stopped(store.newest_step())
            return
        except LostRank as lost:
            if stop():  # it has ended as it was asked to
                yield Stopped(store.newest_step())
                return
            assert others is not None
            others.raise_error()
            losses += 1
            if losses > _MOST_LOSSES:
                fix = "fewer training.processes" if nodes is None else "leave out that node"
                raise TrainingError(f"{others.describe(lost)}, {losses} times. Fix: {fix}") from lost
            text = f"{others.describe(lost)}: all continue at the newest checkpoint"
            yield Trouble(store.newest_step(), "lost process", text)
        store = replace(store)  # its thread cannot start twice


def count_processes(processes: int | str, *, pieces: int, device: str) -> int:
    """Return the number of processes of a training; the arguments are the settings.

    `auto` is one for each GPU or core, as far as the pieces of a step allow.

    Raises:
        TrainingError: the pieces cannot be shared equally, or there are too few GPUs.
    """
    chosen = choose_device(device)
    places = {"cuda": torch.cuda.device_count(), "cpu": len(cores())}.get(chosen.type, 1) if chosen.index is None else 1
    if processes == "auto":
        return 1 << (min(places, pieces).bit_length() - 1)
    count = int(processes)
    if fault := pieces_fault(processes, pieces):
        raise TrainingError(fault)
    if count > places and chosen.type != "cpu":
        raise TrainingError(
            f"training.processes: found {count}, and each of them needs a GPU of its own; training.device {device} has "
            f"{places}. Fix: `ratchet set training.processes=auto`"
        )
    return count


class _Others:
    """The processes of a training but the first. As a context it is the ranks that they are."""

    def __init__(self, job: RankJob, share: int, nodes: FirstNode | None, stop: Stop) -> None:
        self.job, self.share, self.nodes, self.stop = job, share, nodes, stop
        self.ranks = Ranks(0, job.count, watch=self._watch)
        self.errors: list[str] = []  # by which a process has ended, and would again
        self.signals: list[str] = []  # those that ended one of them

    def __enter__(self) -> Ranks:
        if self.job.count == 1:
            return self.ranks
        beside, prefix = self.job.checkpoints.parent, f"{DRAFT}{self.job.checkpoints.name}-ranks-"
        for left in beside.glob(f"{prefix}*"):  # by an attempt that was killed
            shutil.rmtree(left, ignore_errors=True)
        beside.mkdir(parents=True, exist_ok=True)
        self._folder = tempfile.TemporaryDirectory(prefix=prefix, dir=beside)
        folder = Path(self._folder.name)
        meeting = Meeting(str(folder / "meeting")) if self.nodes is None else self.nodes.meeting
        self.here = RankProcesses(replace(self.job, meeting=meeting), range(1, self.share), folder)
        try:
            self.here.start(self.stop)
            if self.nodes is not None:
                self.nodes.connect()
            self.here.connect()
            self.ranks.join(meeting, choose_device(self.job.inputs.plan.device, ranks=self.job.count))
        except BaseException as error:
            self.here.abandon()
            self._end(is_lost=isinstance(error, LostRank))
            _disconnect()
            raise
        return self.ranks

    def _watch(self, seconds: float) -> None:
        """Look after the other processes, for which this one has waited so many seconds."""
        self.here.require_all()
        if self.nodes is not None:
            self.nodes.require_all()
        if seconds > PATIENCE:
            self.ranks.is_asked_to_stop(self.stop)

    def __exit__(self, kind: object, *_: object) -> None:
        if self.job.count == 1:
            return
        if kind is not LostRank:
            _disconnect()
        self._end(is_lost=kind is LostRank)
        _disconnect()  # after a loss not before, because that waits for the others

    def _end(self, *, is_lost: bool) -> None:
        reports = self.nodes.end_attempt() if self.nodes is not None and is_lost else []
        self.here.end(END_SECONDS if self.nodes is None or not is_lost else 1.0)
        for error, signals in [(self.here.error, self.here.signals), *reports]:
            self.errors += [error] if error else []
            self.signals += signals
        self._folder.cleanup()

    def raise_error(self) -> None:
        """Raise the error by which a process has ended: it would come again."""
        for text in self.errors:
            raise TrainingError(text)

    def describe(self, lost: LostRank) -> str:
        """Describe how a process has ended."""
        return f"a process of the training was lost ({(*self.signals, str(lost))[0]})"


def _disconnect() -> None:
    """Leave the group of processes.

    PyTorch waits until its connections are closed, which may take many minutes when the network is cut. Then a thread
    waits for that.
    """
    if distributed.is_initialized():
        groups = [distributed.distributed_c10d._get_default_group()]
        distributed.destroy_process_group()
        thread = threading.Thread(target=groups.clear, name="old-group", daemon=True)
        thread.start()
        thread.join(_LEAVE)
