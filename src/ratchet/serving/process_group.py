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
from ratchet.hardware import cores
from ratchet.references import canary_fault
from ratchet.servers.addresses import address
from ratchet.serving import log_lines
from ratchet.serving.shared_state import Member, read_block
from ratchet.settings.model import ServingSettings

__all__ = ["process_count", "run_group", "threads_each"]

_LOG = logging.getLogger("ratchet.serving.process")
_END = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_LOOK = 0.5  # seconds between two looks at the processes
_HANGS = 30.0  # seconds without a new state, after which a process is killed
_GRACE = 2.0  # seconds after the deadline of the last requests, until the processes are killed
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 30.0  # seconds before a restart; doubled each time
_STEADY = 60.0  # seconds after which a process counts as stable, and the pause is the first again


def process_count(settings: ServingSettings) -> int:
    """Return how many processes answer.

    Raises:
        PlatformError: a setting does not work with several processes, or this system does not.
    """
    count = len(cores()) if settings.processes == "auto" else settings.processes
    if count > 1 and sys.platform != "linux":
        raise PlatformError(f"serving.processes: found {count}; allowed beside Linux: 1. Fix: set it to 1")
    if fault := canary_fault(settings):
        raise PlatformError(fault)
    return count


def threads_each(settings: ServingSettings, count: int) -> int:
    """Return the threads with which each process computes a batch: at most its share of the cores."""
    return min(settings.threads, max(1, len(cores()) // count)) if count > 1 else settings.threads


@dataclass
class _Child:
    """A process of the group.

    Attributes:
        due: time of its next start, while it does not run.
        state_time, silence: time of its latest state, and seconds since then.
    """

    number: int
    process: "subprocess.Popen[bytes] | None" = None
    began: float = 0.0
    due: float = 0.0
    pause: float = _FIRST_PAUSE
    state_time: float = 0.0
    silence: float = 0.0


@dataclass
class _Group:
    """The processes, and what they share: the socket, the blocks of memory and the settings."""

    command: Sequence[str]
    listening: socket.socket
    blocks: tuple[int, ...]
    settings_file: int
    clock: Callable[[], float] = time.monotonic
    children: list[_Child] = field(init=False)
    ends: tuple[signal.Signals, ...] = field(init=False)  # signals that end the group; nohup ignores SIGHUP
    looked: float = field(init=False)

    def __post_init__(self) -> None:
        self.children = [_Child(number) for number in range(len(self.blocks))]
        self.ends = tuple(number for number in _END if signal.getsignal(number) is not signal.SIG_IGN)
        self.looked = self.clock()

    @property
    def running(self) -> list["subprocess.Popen[bytes]"]:
        """Processes that have not ended."""
        return [child.process for child in self.children if child.process and child.process.poll() is None]

    def start(self, child: _Child) -> None:
        """Start a process. It is in a process group of its own, so that Ctrl-C reaches it through the parent only.

        Raises:
            OSError: the system does not start it, for lack of memory or by a limit of processes.
        """
        child.began, child.silence = self.clock(), 0.0
        member = Member(child.number, self.listening.fileno(), self.blocks, os.getpid(), self.settings_file)
        each = str(max(1, len(cores()) // len(self.blocks)))
        child.process = subprocess.Popen(
            self.command,
            env={"OMP_NUM_THREADS": each, **os.environ, **member.environment},
            pass_fds=(member.listening, *self.blocks, self.settings_file),
            stdin=subprocess.DEVNULL,
            process_group=0,
        )

    def look(self) -> None:
        """Start what does not run, and kill what hangs."""
        now = self.clock()
        passed, self.looked = min(now - self.looked, 2 * _LOOK), now  # less, if all processes were paused with this one
        for child in self.children:
            if child.process is None:
                if now >= child.due:
                    try:
                        self.start(child)
                    except OSError as error:
                        self._start_later(child, f"does not start ({error})", now)
            elif (status := child.process.poll()) is not None:
                self._start_later(child, _outcome(status), now)
            elif self._hangs(child, child.process.pid, passed):
                _LOG.error("process %d has not answered for %g s: it is killed", child.number, _HANGS)
                child.process.kill()

    def _start_later(self, child: _Child, reason: str, now: float) -> None:
        child.pause = _FIRST_PAUSE if now > child.began + _STEADY else min(2 * child.pause, _LONGEST_PAUSE)
        child.process, child.due = None, now + child.pause
        _LOG.error("process %d %s: restart in %.1f s", child.number, reason, child.pause)

    def _hangs(self, child: _Child, pid: int, passed: float) -> bool:
        """Return whether a process that has answered is silent for too long. One that loads writes no state."""
        state = read_block(self.blocks[child.number])
        is_new = state.get("pid") != pid or state["time"] != child.state_time
        child.state_time, child.silence = state.get("time", 0.0), 0.0 if is_new else child.silence + passed
        return child.silence > _HANGS

    def wait(self, seconds: float = _LOOK) -> int:
        """Wait for a signal that ends the group, or until a process ends. Return the signal, or 0."""
        came = signal.sigtimedwait((*self.ends, signal.SIGCHLD), seconds)
        return came.si_signo if came and came.si_signo in self.ends else 0

    def end(self, number: int, seconds: float) -> None:
        """Pass on a signal, and further ones; kill what has not ended after so many seconds."""
        self.listening.close()
        deadline = time.monotonic() + seconds
        while running := self.running:
            for process in running:
                if number:  # SIGHUP would kill a process before its requests end
                    process.send_signal(signal.SIGTERM if number == signal.SIGHUP else number)
                if time.monotonic() > deadline:
                    process.kill()
            number = self.wait()


def _outcome(status: int) -> str:
    return f"ended with status {status}" if status >= 0 else f"was killed by signal {-status}"


def run_group(
    command: Sequence[str],
    count: int,
    *,
    settings: bytes,
    host: str,
    port: int,
    deadline: float,
    say: Callable[[str], None],
) -> None:
    """Run processes that answer at one address until a signal ends them. Then end by this signal.

    Args:
        command: starts one of them.
        count: of the processes.
        settings: of all of them, as `Member.settings`.
        host, port: the address.
        deadline: seconds that the last requests get.
        say: gets the line for the user, when the first process is ready.

    Raises:
        PlatformError: the first process does not start, or is killed before it is ready.
    """
    log_lines.set_up()
    blocks = tuple(os.memfd_create(f"process-{number}") for number in range(count))
    group = _Group(command, _bound(host, port), blocks, os.memfd_create("settings"))
    os.write(group.settings_file, settings)
    signal.pthread_sigmask(signal.SIG_BLOCK, (*group.ends, signal.SIGCHLD))
    number = _start_first(group, address(host, port), say)
    while not number:
        group.look()
        number = group.wait()
    group.end(number, deadline + _GRACE)
    signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, group.ends)
    os.kill(os.getpid(), number)
    sys.exit(128 + number)  # the first process of a container does not end by its own signal


def _start_first(group: _Group, place: str, say: Callable[[str], None]) -> int:
    """Start the first process, and wait until it is ready. Return the signal that came meanwhile, or 0.

    It reports a wrong setting or a missing model, and nothing else is started then.
    """
    first = group.children[0]
    try:
        group.start(first)
    except OSError as error:
        raise PlatformError(
            f"the first process does not start ({error}). Fix: free memory, or allow more processes"
        ) from error
    assert first.process
    while not (state := read_block(group.blocks[0])):
        if (status := first.process.poll()) is not None:
            if status > 0:
                sys.exit(status)
            raise PlatformError(
                f"the first process {_outcome(status)} before it was ready. Signal 9 often means that "
                "memory ran out. Fix: more memory, or a smaller model"
            )
        if number := group.wait(_LOOK / 10):
            return number
    served = state["state"]["version"] or f"no version yet ({state['state'].get('problem', '')})"
    say(f"{served} at {place}, by {len(group.children)} processes; Ctrl-C ends it")
    return 0


def _bound(host: str, port: int) -> socket.socket:
    listening = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    if ":" in host:
        listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)  # as one process alone, which asyncio binds
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listening.bind((host, port))
    return listening
