"""The engine `here`: processes of this machine, each of which takes one shard after another."""

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ratchet.errors import PlatformError
from ratchet.scale.calls import ShardCall, answer, result_of
from ratchet.settings.model import ScaleSettings

__all__ = ["ShardWorker", "map_here", "run"]

_TICK = 0.25  # seconds between two looks at the processes
_MOST_LOSSES = 3  # of one shard's process in a row, unless they are recorded elsewhere


@dataclass(frozen=True)
class ShardWorker:
    """One process.

    Attributes:
        environment: variables of its process, beside those of this one.
        cores: processors on which it runs; empty: all.
    """

    environment: Mapping[str, str] = field(default_factory=dict)
    cores: Sequence[int] = ()


def run(calls: Sequence[ShardCall], settings: ScaleSettings, state: Path) -> Iterator[tuple[int, Any]]:
    """Carry out the calls by `settings.workers` processes; by this one if that is 1."""
    if settings.workers == 1:
        for place, call in enumerate(calls):
            yield place, result_of(answer(call.data))
        return
    logs = state / "scale" / calls[0].key[:16]
    yield from map_here(calls, [ShardWorker()] * settings.workers, logs=logs, patience=5.0)
    shutil.rmtree(logs)


def map_here(
    calls: Sequence[ShardCall],
    workers: Sequence[ShardWorker],
    *,
    logs: Path,
    patience: float,
    tick: Callable[[], None] = lambda: None,
    on_loss: Callable[[int], bool] = lambda place: False,
) -> Iterator[tuple[int, Any]]:
    """Carry out the calls by processes, whose output is in `logs`, and yield (place, result) as they end.

    A process that a signal ends is started again. SIGTERM and Ctrl-C go to all processes, which then have `patience`
    seconds to return what they have; so does an exception of `tick`, which is called a few times a second. When this
    process dies, they end as after SIGTERM. `on_loss` gets the place of a call whose process was lost, and returns
    whether the loss is recorded elsewhere, and limited there.

    Raises:
        RatchetError: of the function.
        PlatformError: a process failed, or was lost several times in a row; the message has its output.
    """
    logs.mkdir(parents=True, exist_ok=True)
    waiting, losses = deque(range(len(calls))), Counter[int]()
    processes = [_Process(worker, logs / f"worker-{number}.log") for number, worker in enumerate(workers[: len(calls)])]
    try:
        while waiting or any(process.place is not None for process in processes):
            for process in processes:
                if process.place is None and waiting:
                    process.begin(waiting.popleft(), calls)
            select.select([process.pipe for process in processes if process.pipe is not None], [], [], _TICK)
            for process in processes:
                if (place := process.place) is None:
                    continue
                if process.has_answer():
                    yield place, process.take()
                elif process.was_lost():
                    losses[place] = 0 if on_loss(place) else losses[place] + 1
                    process.begin_again(place, calls, losses=losses[place])
            tick()
    finally:
        _end(processes, patience)


class _Process:
    """A process, and the place of the call that it has; it is started for its first call."""

    def __init__(self, worker: ShardWorker, log: Path) -> None:
        self.place: int | None = None
        self.pipe: int | None = None  # readable when there is an answer, or the process has ended
        self.process: subprocess.Popen[bytes] | None = None
        self.code = 0  # of the last process that ended
        self._worker, self._log, self._answer = worker, log, log.with_suffix(".json")
        log.unlink(missing_ok=True)

    def begin(self, place: int, calls: Sequence[ShardCall]) -> None:
        """Hand a call to the process."""
        self.place = place
        self._answer.unlink(missing_ok=True)
        if self.process is None:
            self._start()
        self._write(calls[place].data)

    def begin_again(self, place: int, calls: Sequence[ShardCall], *, losses: int) -> None:
        """Hand over the call of a process that was lost."""
        if losses >= _MOST_LOSSES:
            raise PlatformError(self.message)
        self.begin(place, calls)

    def _start(self) -> None:
        """Start the process. It ends when its standard input is closed, so it does not outlive this one."""
        self.pipe, other_end = os.pipe()
        with self._log.open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "ratchet.scale.child", str(self._answer), str(other_end)],
                stdin=subprocess.PIPE,
                bufsize=0,
                stdout=output,
                stderr=output,
                env={**os.environ, **self._worker.environment},
                pass_fds=[other_end],
                start_new_session=True,
            )
        os.close(other_end)
        self._write(list(self._worker.cores))

    def _write(self, content: object) -> None:
        assert self.process
        assert self.process.stdin
        line = memoryview(json.dumps(content).encode() + b"\n")
        with contextlib.suppress(BrokenPipeError):  # it has ended already; `was_lost` finds out why
            while line:
                line = line[self.process.stdin.write(line) :]

    def say_no_more(self) -> None:
        """Let the process end after its call."""
        self._write(None)

    def has_answer(self) -> bool:
        """Return whether the answer is there."""
        assert self.pipe is not None
        return bool(select.select([self.pipe], [], [], 0)[0]) and bool(os.read(self.pipe, 1))

    def take(self) -> Any:
        """Return the result, and be free for another call.

        Raises:
            RatchetError: of the function.
        """
        self.place = None
        return result_of(json.loads(self._answer.read_text(encoding="utf-8")))

    def was_lost(self) -> bool:
        """Return whether a signal has ended the process.

        Raises:
            PlatformError: it failed.
        """
        assert self.process
        if (code := self.process.poll()) is None:
            return False
        self.code = code
        if code >= 0:
            raise PlatformError(self.message)
        self.close()
        return True

    @property
    def message(self) -> str:
        """The end of the process, and the last line of its output."""
        code = self.code
        lines = self._log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        how = f"exit code {code}" if code >= 0 else signal.Signals(-code).name
        return f"a worker ended with {how}: {lines[-1] if lines else 'no output'}. Its output is in {self._log}"

    def close(self) -> None:
        """Forget the process, which has ended."""
        assert self.process
        assert self.process.stdin
        assert self.pipe is not None
        self.process.stdin.close()
        os.close(self.pipe)
        self.pipe = None
        self.process = None


def _end(processes: Sequence[_Process], patience: float) -> None:
    started = [each for each in processes if each.process]
    for each in started:
        if each.process and each.process.poll() is None:
            each.say_no_more()  # one that returns what it has does not wait for another call
            each.process.terminate()
    until = time.monotonic() + patience
    for each in started:
        assert each.process
        try:
            each.process.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            each.process.kill()
            each.process.wait()
        each.close()
