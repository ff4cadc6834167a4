"""The model server in several processes: a parent that starts, watches and ends them, and answers nothing itself.

All processes accept connections from one socket, which the parent has bound. So a process that hangs gets no further
connections, and those that wait are not lost when one dies. A process that ends or hangs is started again. All of them
end with the parent, however it ends.
"""

import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ratchet.errors import PlatformError
from ratchet.references import canary_fault
from ratchet.servers.addresses import address
from ratchet.serving import log_lines
from ratchet.serving.shared_state import Member, read_block
from ratchet.settings.model import ServingSettings

__all__ = ["cores", "process_count", "run_group", "threads_each"]

_LOG = logging.getLogger("ratchet.serving.process")
_END = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_LOOK = 0.5  # seconds between two looks at the processes
_HANGS = 30.0  # seconds without a state, after which a process is killed
_GRACE = 2.0  # seconds after the deadline of the last requests, until the processes are killed
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 30.0  # seconds before a restart; doubled each time
_STEADY = 60.0  # seconds after which a process counts as stable, and the pause is the first again


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def process_count(settings: ServingSettings) -> int:
    """Return how many processes answer.

    Raises:
        PlatformError: a setting does not work with several processes, or this system does not.
    """
    count = cores() if settings.processes == "auto" else settings.processes
    if count > 1 and sys.platform != "linux":
        raise PlatformError(f"serving.processes: found {count}; allowed beside Linux: 1. Fix: set it to 1")
    if fault := canary_fault(settings):
        raise PlatformError(fault)
    return count


def threads_each(settings: ServingSettings, count: int) -> int:
    """Return the threads with which each process computes a batch: at most its share of the cores."""
    return min(settings.threads, max(1, cores() // count)) if count > 1 else settings.threads


@dataclass
class _Child:
    """A process of the group. `due`: time of its next start, while it does not run."""

    number: int
    process: "subprocess.Popen[bytes] | None" = None
    began: float = 0.0
    due: float = 0.0
    pause: float = _FIRST_PAUSE


@dataclass
class _Group:
    """The processes, and what they share: the socket and the blocks of memory."""

    command: Sequence[str]
    listening: socket.socket
    blocks: tuple[int, ...]
    children: list[_Child] = field(init=False)

    def __post_init__(self) -> None:
        self.children = [_Child(number) for number in range(len(self.blocks))]

    @property
    def running(self) -> list["subprocess.Popen[bytes]"]:
        """Processes that have not ended."""
        return [child.process for child in self.children if child.process and child.process.poll() is None]

    def start(self, child: _Child) -> None:
        """Start a process. It is in a process group of its own, so that Ctrl-C reaches it through the parent only."""
        member = Member(child.number, self.listening.fileno(), self.blocks, os.getpid())
        each = str(max(1, cores() // len(self.blocks)))
        child.process = subprocess.Popen(
            self.command,
            env={"OMP_NUM_THREADS": each, **os.environ, **member.environment},
            pass_fds=(member.listening, *self.blocks),
            stdin=subprocess.DEVNULL,
            process_group=0,
        )
        child.began = time.monotonic()

    def look(self) -> None:
        """Start again what has ended, and kill what hangs."""
        now = time.monotonic()
        for child in self.children:
            if child.process is None:
                if now >= child.due:
                    self.start(child)
            elif (status := child.process.poll()) is not None:
                child.pause = _FIRST_PAUSE if now > child.began + _STEADY else min(2 * child.pause, _LONGEST_PAUSE)
                child.process, child.due = None, now + child.pause
                ended = f"ended with status {status}" if status >= 0 else f"was killed by signal {-status}"
                _LOG.error("process %d %s: restart in %.1f s", child.number, ended, child.pause)
            elif self._hangs(child, now):
                _LOG.error("process %d has not answered for %g s: it is killed", child.number, _HANGS)
                child.process.kill()

    def _hangs(self, child: _Child, now: float) -> bool:
        state = read_block(self.blocks[child.number])
        return bool(child.process and state.get("pid") == child.process.pid and now > state["time"] + _HANGS)

    def end(self, number: int, seconds: float) -> None:
        """Pass on a signal, and further ones; kill what has not ended after so many seconds."""
        self.listening.close()
        deadline, signals = time.monotonic() + seconds, [number]
        while running := self.running:
            for process in running:
                for each in signals:
                    process.send_signal(each)
                if time.monotonic() > deadline:
                    process.kill()
            came = signal.sigtimedwait((*_END, signal.SIGCHLD), _LOOK)
            signals = [came.si_signo] if came and came.si_signo in _END else []


def run_group(
    command: Sequence[str], count: int, *, host: str, port: int, deadline: float, say: Callable[[str], None]
) -> None:
    """Run processes that answer at one address until a signal ends them. Then end by this signal.

    Args:
        command: starts one of them.
        count: of the processes.
        host, port: the address.
        deadline: seconds that the last requests get.
        say: gets the line for the user, when the first process is ready.
    """
    log_lines.set_up()
    signal.pthread_sigmask(signal.SIG_BLOCK, (*_END, signal.SIGCHLD))
    blocks = tuple(os.memfd_create(f"process-{number}") for number in range(count))
    group = _Group(command, _bound(host, port), blocks)
    number = _start_all(group, address(host, port), say)
    while number not in _END:
        group.look()
        came = signal.sigtimedwait((*_END, signal.SIGCHLD), _LOOK)
        number = came.si_signo if came else 0
    group.end(number, deadline + _GRACE)
    signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _END)
    os.kill(os.getpid(), number)
    sys.exit(128 + number)  # the first process of a container does not end by its own signal


def _start_all(group: _Group, place: str, say: Callable[[str], None]) -> int:
    """Start the first process, and the others once it answers. Return the signal that came meanwhile, or 0.

    The first one reports a wrong setting or a missing model, and nothing else is started then.
    """
    first = group.children[0]
    group.start(first)
    assert first.process
    while not (state := read_block(group.blocks[0])):
        if (status := first.process.poll()) is not None:
            sys.exit(status if status > 0 else 128 - status)
        came = signal.sigtimedwait((*_END, signal.SIGCHLD), _LOOK / 10)
        if came and came.si_signo in _END:
            return int(came.si_signo)
    served = state["state"]["version"] or f"no version yet ({state['state'].get('problem', '')})"
    say(f"{served} at {place}, by {len(group.children)} processes; Ctrl-C ends it")
    for child in group.children[1:]:
        group.start(child)
    return 0


def _bound(host: str, port: int) -> socket.socket:
    listening = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listening.bind((host, port))
    return listening
