"""Processes on this machine, one for each shard."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ratchet.errors import PlatformError

__all__ = ["ShardCall", "map_here"]

_TICK = 0.25  # seconds between two looks at the processes
_SHORT_LIFE, _MAX_SHORT_LIVES = 10.0, 3  # a process that ends so soon, so many times in a row, is not started again
_PATIENCE = 300.0  # seconds for a process to write its checkpoints after SIGTERM


@dataclass(frozen=True)
class ShardCall:
    """One call of the function.

    Attributes:
        content: its argument.
        environment: variables of its process, beside those of this one.
        cores: processors on which it runs; empty: all.
    """

    content: Mapping[str, Any]
    environment: Mapping[str, str] = field(default_factory=dict)
    cores: Sequence[int] = ()


def map_here(
    function: str,
    shards: Sequence[ShardCall],
    *,
    logs: Path,
    tick: Callable[[], None] = lambda: None,
    on_loss: Callable[[int], bool] = lambda place: False,
) -> list[Any]:
    """Call the function once for each shard, all at the same time, and return the results in the order of the shards.

    A process that a signal ends is started again. SIGTERM and Ctrl-C go to all processes, which then return what they
    have; so does an exception of `tick`. When this process dies, they end as after SIGTERM.

    Args:
        function: package.module:function.
        logs: folder for the output of each process.
        tick: called a few times a second.
        on_loss: called with the place of a shard whose process was lost, before it is started again. It returns
            whether the loss is recorded elsewhere, and limited there.

    Raises:
        PlatformError: a process failed, or was lost several times right after its start; the message has its output.
    """
    logs.mkdir(parents=True, exist_ok=True)
    running = [_Process(function, shard, logs / f"worker-{place}.log") for place, shard in enumerate(shards)]
    try:
        while any(process.is_open for process in running):
            for place, process in enumerate(running):
                if process.was_lost():
                    process.start_again(counts=not on_loss(place))
            tick()
            time.sleep(_TICK)
    except BaseException:
        _end(running)
        raise
    return [process.result for process in running]


class _Process:
    """The process of one shard."""

    def __init__(self, function: str, shard: ShardCall, log: Path) -> None:
        self.function, self.shard, self.log = function, shard, log
        self.result: Any = None
        self.is_open = True
        self._answer = log.with_suffix(".json")
        self._short_lives = 0
        log.unlink(missing_ok=True)
        self.start()

    def start(self) -> None:
        """Start the process. It ends when its standard input is closed, so it does not outlive this one."""
        self._answer.unlink(missing_ok=True)
        self._began = time.monotonic()
        command = [sys.executable, "-m", "ratchet.scale.child", self.function, str(self._answer)]
        with self.log.open("ab") as output:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                bufsize=0,
                stdout=output,
                stderr=output,
                env={**os.environ, **self.shard.environment},
                start_new_session=True,
            )
        assert self._process.stdin
        content = {"shard": self.shard.content, "cores": list(self.shard.cores)}
        with contextlib.suppress(BrokenPipeError):  # it has ended already; `was_lost` finds out why
            self._process.stdin.write(json.dumps(content).encode() + b"\n")

    def was_lost(self) -> bool:
        """Return whether a signal has ended the process.

        Raises:
            PlatformError: it failed.
        """
        code = self._process.poll() if self.is_open else None
        if code is None:
            return False
        self._close()
        if code == 0:
            self.result, self.is_open = json.loads(self._answer.read_text(encoding="utf-8")), False
            return False
        if code > 0:
            self.is_open = False
            raise PlatformError(self._message(code))
        return True

    def start_again(self, *, counts: bool) -> None:
        """Start the process after a loss, which `counts` if it came right after the start.

        Raises:
            PlatformError: it is lost each time it is started.
        """
        is_short = time.monotonic() - self._began < _SHORT_LIFE
        self._short_lives = self._short_lives + 1 if is_short and counts else 0
        if self._short_lives >= _MAX_SHORT_LIVES:
            self.is_open = False
            raise PlatformError(self._message(self._process.returncode))
        self.start()

    def _message(self, code: int) -> str:
        lines = self.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        if self._answer.exists():  # a user error, with its message
            return str(json.loads(self._answer.read_text(encoding="utf-8"))["error"])
        how = f"exit code {code}" if code > 0 else signal.Signals(-code).name
        return f"a worker ended with {how}: {lines[-1] if lines else 'no output'}. Its output is in {self.log}"

    def ask_to_end(self) -> None:
        """Send SIGTERM."""
        if self._process.poll() is None:
            self._process.terminate()

    def wait(self, until: float) -> None:
        """Wait for the end, and kill it after that time."""
        try:
            self._process.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._close()

    def _close(self) -> None:
        assert self._process.stdin
        self._process.stdin.close()


def _end(processes: Sequence[_Process]) -> None:
    for process in processes:
        process.ask_to_end()
    until = time.monotonic() + _PATIENCE
    for process in processes:
        process.wait(until)
