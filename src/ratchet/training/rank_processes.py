"""The other processes of a training on this machine: `main` is what each of them runs.

They write nothing and end with the process that started them: the kernel kills them when it is killed (Linux), and the
end of their standard input ends them, too.
"""

import contextlib
import os
import pickle
import select
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import distributed

from ratchet.errors import RatchetError
from ratchet.training.checkpoint import OthersCheckpoints
from ratchet.training.device import choose_device
from ratchet.training.inputs import TrainingInputs, open_split
from ratchet.training.loop import fit
from ratchet.training.ranks import LostRank, Meeting, Ranks
from ratchet.training.sample_timeout import PATIENCE, Interrupted

__all__ = ["END_SECONDS", "RankJob", "RankProcesses"]

NO_RESULT = "it starts processes; what they compute is decided elsewhere"

END_SECONDS = 10.0  # that another process may take to end after the training
_GO = b"go\n"  # to the processes when all are ready to connect
_ERROR = "error of a process: "  # begin of the message of one that cannot train


@dataclass(frozen=True)
class RankJob:
    """Content of the message by which another process of a training starts."""

    inputs: TrainingInputs
    packed: Path
    checkpoints: Path
    count: int  # of all processes
    threads: int
    meeting: Meeting
    first: int = 0  # rank of the first process on this machine


class RankProcesses:
    """Processes of this machine, each of which is a rank. `logs` is a folder for what they write."""

    def __init__(self, job: RankJob, ranks: Sequence[int], logs: Path) -> None:
        self.job, self.ranks, self.logs = job, ranks, logs
        self.processes: list[subprocess.Popen[bytes]] = []
        self.error = ""  # by which one has ended, and would again
        self.signals: list[str] = []  # those that ended one of them

    def start(self, stop: Callable[[], bool]) -> None:
        """Start all, and wait until they are ready to connect.

        Raises:
            LostRank: one has ended.
            Interrupted: `stop` has returned True.
        """
        inputs = replace(self.job.inputs, train=None, validation=None)  # type: ignore[arg-type]  # each opens its own
        sent = pickle.dumps(replace(self.job, inputs=inputs))
        for rank in self.ranks:
            self.processes.append(self._start(rank, sent))
        for process in self.processes:
            self._wait_until_ready(process, stop)

    def connect(self) -> None:
        """Let all connect."""
        for process in self.processes:
            self._send(process, _GO)

    def require_all(self) -> None:
        """Check that no process has ended before the training.

        Raises:
            LostRank: one has.
        """
        if any(process.poll() for process in self.processes):
            raise LostRank("it has ended")

    @property
    def have_trained(self) -> bool:
        """Whether each has ended, with the training."""
        return all(process.poll() == 0 for process in self.processes)

    def abandon(self) -> None:
        """Let the kernel and their standard input end all of them."""
        for process in self.processes:
            assert process.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()

    def end(self, seconds: float = END_SECONDS) -> None:
        """Wait so long for their ends, then kill the rest, and read why they have ended."""
        deadline = time.monotonic() + seconds
        for rank, process in zip(self.ranks, self.processes, strict=False):  # all may not have been started
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))
            if process.poll() is None:
                process.kill()
            elif process.returncode < 0:
                name = signal.Signals(-process.returncode).name
                self.signals.append(f"{self.job.meeting.name(rank)} of {self.job.count} was ended by {name}")
            process.wait()
            for stream in (process.stdin, process.stdout):
                assert stream is not None
                with contextlib.suppress(BrokenPipeError):
                    stream.close()
            text = self._log(rank).read_text(encoding="utf-8", errors="replace").strip()
            self.error = self.error or text.rpartition(_ERROR)[2] * (_ERROR in text)

    @staticmethod
    def _wait_until_ready(process: "subprocess.Popen[bytes]", stop: Callable[[], bool]) -> None:
        assert process.stdout is not None
        while not select.select([process.stdout], [], [], PATIENCE)[0]:
            if stop():
                raise Interrupted
        if not process.stdout.readline():
            raise LostRank("it ended before the first step")

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
        return self.logs / f"errors-{rank}"


def main(rank: int) -> None:
    """Train as another rank. The exit code is 0 at the end of the training."""
    for number in (signal.SIGINT, signal.SIGTERM):  # rank 0 stops all of them, after the same step
        signal.signal(number, signal.SIG_IGN)
    job: RankJob = pickle.load(sys.stdin.buffer)
    try:
        _train(rank, job)
    except LostRank:
        sys.exit(1)  # another one has the reason
    except RatchetError as error:
        sys.exit(f"{_ERROR}{error}")
    except Exception as error:
        sys.exit(f"{_ERROR}{error!r} in {job.meeting.name(rank)} of {job.count}\n{traceback.format_exc()}")


def _train(rank: int, job: RankJob) -> None:
    inputs, plan, ranks = job.inputs, job.inputs.plan, Ranks(rank, job.count, rank - job.first)
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
    ranks.join(job.meeting, choose_device(plan.device, rank=ranks.local, ranks=job.count))
    for _ in fit(
        replace(inputs, train=train, validation=validation), store=OthersCheckpoints(job.checkpoints), ranks=ranks
    ):
        pass
    distributed.destroy_process_group()


def _end_with_input() -> None:
    while os.read(sys.stdin.fileno(), 1):  # not by Python's reader, which a thread may not hold when Python ends
        pass
    os._exit(1)
