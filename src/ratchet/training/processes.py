"""The other processes of a training: `main` is what each of them runs.

Rank 0 is the process that the user started. It starts the others, which write nothing and end with it: the kernel kills
them when it is killed (Linux), and the end of their standard input ends them, too.
"""

import contextlib
import os
import pickle
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import distributed

from ratchet.combinations import pieces_fault, reduction_fault
from ratchet.errors import RatchetError, TrainingError
from ratchet.files import DRAFT
from ratchet.hardware import cores
from ratchet.training.checkpoint import CheckpointStore, OthersCheckpoints
from ratchet.training.device import choose_device
from ratchet.training.events import Event, Notice, Stopped, Trouble
from ratchet.training.inputs import TrainingInputs, open_split
from ratchet.training.loop import fit
from ratchet.training.model_shards import refuse_shards
from ratchet.training.ranks import LostRank, Ranks
from ratchet.training.sample_timeout import PATIENCE, Interrupted, never

__all__ = ["count_processes", "fit_in_processes"]

NO_RESULT = "it starts processes; what they compute is decided elsewhere"

_MOST_LOSSES = 3
_END_SECONDS = 10.0  # that another process may take to end after the training
_GO = b"go\n"  # to the processes when all are ready to connect
_ERROR = "error of a process: "  # begin of the message of one that cannot train


@dataclass(frozen=True)
class _Job:
    """Content of the message by which another process of a training starts."""

    inputs: TrainingInputs
    packed: Path
    checkpoints: Path
    count: int
    threads: int
    meeting: str


def fit_in_processes(
    inputs: TrainingInputs, *, packed: Path, store: CheckpointStore, stop: Callable[[], bool] = never, **more: Any
) -> Iterator[Event]:
    """Train as `fit` does, in `plan.processes` processes. If one is lost, all continue at the newest checkpoint.

    Args:
        packed: folder of the packed set, which each process opens.
        stop, more: as those of `fit`.

    Raises:
        TrainingError: as `fit`; or there are fewer GPUs than processes, or processes are lost again and again.
    """
    plan, losses = inputs.plan, 0
    refuse_shards(plan)
    if fault := reduction_fault(plan):
        raise TrainingError(fault)
    count = count_processes(plan.processes, pieces=plan.pieces, device=plan.device)
    if count > 1:
        yield Notice(f"{count} processes share the {plan.pieces} pieces of each step")
    while count > 1:
        others = _Others(_Job(inputs, packed, store.folder, count, torch.get_num_threads(), ""), stop)
        try:
            with others as ranks:
                yield from fit(inputs, store=store, ranks=ranks, stop=stop, **more)
            return
        except Interrupted:  # before they have begun
            yield Stopped(store.newest_step())
            return
        except LostRank as lost:
            if stop():  # it has ended as it was asked to
                yield Stopped(store.newest_step())
                return
            others.raise_error()
            losses += 1
            if losses > _MOST_LOSSES:
                raise TrainingError(f"{others.describe(lost)}, {losses} times. Fix: fewer training.processes") from lost
            text = f"{others.describe(lost)}: all continue at the newest checkpoint"
            yield Trouble(store.newest_step(), "lost process", text)
        store = replace(store)  # its thread cannot start twice
    yield from fit(inputs, store=store, stop=stop, **more)


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

    def __init__(self, job: _Job, stop: Callable[[], bool]) -> None:
        self.job, self.stop = job, stop
        self.processes: list[subprocess.Popen[bytes]] = []
        self.errors: list[str] = []  # what each has written, after its end
        self.signals: list[str] = []  # those that ended one of them

    def __enter__(self) -> Ranks:
        job = self.job
        beside, prefix = job.checkpoints.parent, f"{DRAFT}{job.checkpoints.name}-ranks-"
        for left in beside.glob(f"{prefix}*"):  # by an attempt that was killed
            shutil.rmtree(left, ignore_errors=True)
        beside.mkdir(parents=True, exist_ok=True)
        self._folder = tempfile.TemporaryDirectory(prefix=prefix, dir=beside)
        meeting = str(Path(self._folder.name, "meeting"))
        inputs = replace(job.inputs, train=None, validation=None)  # type: ignore[arg-type]  # each opens its own
        sent = pickle.dumps(replace(job, inputs=inputs, meeting=meeting))
        try:
            for rank in range(1, job.count):
                self.processes.append(self._start(rank, sent))
            for process in self.processes:
                self._wait_until_ready(process)
            self._watch(0.0)
            for process in self.processes:
                self._send(process, _GO)
            self.ranks = ranks = Ranks(0, job.count, watch=self._watch)
            ranks.join(meeting, choose_device(job.inputs.plan.device, ranks=job.count))
        except BaseException:
            for process in self.processes:
                assert process.stdin is not None
                process.stdin.close()  # ends it
            self._end()
            _disconnect()
            raise
        return ranks

    def _wait_until_ready(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        while not select.select([process.stdout], [], [], PATIENCE)[0]:
            if self.stop():
                raise Interrupted
        if not process.stdout.readline():
            raise LostRank("it ended before the first step")

    def _watch(self, seconds: float) -> None:
        """Look after the other processes, for which this one has waited so many seconds."""
        if any(process.poll() is not None for process in self.processes):
            raise LostRank("it has ended")
        if seconds > PATIENCE:
            self.ranks.is_asked_to_stop(self.stop)

    def _start(self, rank: int, sent: bytes) -> subprocess.Popen[bytes]:
        with self._log(rank).open("wb") as log:
            process = subprocess.Popen(
                [
                    sys.executable,
                    "-c",
                    # First what takes no time: the imports of the training take seconds.
                    f"from ratchet.parent_process import end_with_parent; end_with_parent({os.getpid()}); "
                    f"from {__name__} import main; main({rank})",
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
            )
        self._send(process, sent)
        return process

    @staticmethod
    def _send(process: subprocess.Popen[bytes], content: bytes) -> None:
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended, which the next look notices
            process.stdin.write(content)
            process.stdin.flush()

    def _log(self, rank: int) -> Path:
        return Path(self._folder.name, f"errors-{rank}")

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not LostRank:
            _disconnect()
        self._end()
        _disconnect()  # after a loss not before, because that waits for the others

    def _end(self) -> None:
        deadline = time.monotonic() + _END_SECONDS
        for rank, process in enumerate(self.processes, 1):
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))
            if process.poll() is None:
                process.kill()
            elif process.returncode < 0:
                name = signal.Signals(-process.returncode).name
                self.signals.append(f"process {rank + 1} of {self.job.count} was ended by {name}")
            process.wait()
            for stream in (process.stdin, process.stdout):
                assert stream is not None
                with contextlib.suppress(BrokenPipeError):
                    stream.close()
            self.errors.append(self._log(rank).read_text(encoding="utf-8", errors="replace").strip())
        self._folder.cleanup()

    def raise_error(self) -> None:
        """Raise the error by which a process has ended: it would come again."""
        for text in self.errors:
            _, is_error, message = text.rpartition(_ERROR)
            if is_error:
                raise TrainingError(message)

    def describe(self, lost: LostRank) -> str:
        """Describe how a process has ended."""
        return f"a process of the training was lost ({(*self.signals, str(lost))[0]})"


def _disconnect() -> None:
    if distributed.is_initialized():
        distributed.destroy_process_group()


def main(rank: int) -> None:
    """Train as another rank. The exit code is 0 at the end of the training."""
    for number in (signal.SIGINT, signal.SIGTERM):  # rank 0 stops all of them, after the same step
        signal.signal(number, signal.SIG_IGN)
    job: _Job = pickle.load(sys.stdin.buffer)
    try:
        _train(rank, job)
    except LostRank:
        sys.exit(1)  # another one has the reason
    except RatchetError as error:
        sys.exit(f"{_ERROR}{error}")
    except Exception as error:
        sys.exit(f"{_ERROR}{error!r} in process {rank + 1} of {job.count}\n{traceback.format_exc()}")


def _train(rank: int, job: _Job) -> None:
    inputs, plan, ranks = job.inputs, job.inputs.plan, Ranks(rank, job.count)
    torch.set_num_threads(job.threads)
    train, validation = (
        open_split(job.packed, name, inputs.spec.input, workers=plan.workers, sample_timeout=plan.sample_timeout)
        for name in ("train", "validation")
    )
    print("ready", flush=True)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # rank 0 reads no more of the pipe, which would fill
    if sys.stdin.buffer.readline() != _GO:
        raise LostRank("the first process has ended")
    threading.Thread(target=_end_with_input, daemon=True).start()
    ranks.join(job.meeting, choose_device(plan.device, rank=rank, ranks=job.count))
    for _ in fit(
        replace(inputs, train=train, validation=validation), store=OthersCheckpoints(job.checkpoints), ranks=ranks
    ):
        pass
    distributed.destroy_process_group()


def _end_with_input() -> None:
    while os.read(sys.stdin.fileno(), 1):  # not by Python's reader, which a thread may not hold when Python ends
        pass
    os._exit(1)
