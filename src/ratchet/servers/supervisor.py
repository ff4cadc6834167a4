"""Supervisor of one service: runs a command, restarts it when it dies, and ends every process that descends from it.

Run as a script (`python -I supervisor.py [--tied] GRACE LOG COMMAND...`) that imports only the standard library and
psutil, so that it starts within some tens of milliseconds and stays small. Prefect's worker starts each flow run in a
session of its own. A signal to the worker's process group does not reach those runs, and they survive a killed worker.
So all processes of a service carry a token in their environment (`MARK`), which children inherit.

The supervisor ends on SIGTERM, SIGINT or SIGHUP. A tied one also ends when the starter's end of its standard input
closes, which the system does however the starter dies. At first it ends together with its command. After SIGUSR1 (the
command is up) it restarts a command that ends, with exponential backoff. The number of restarts is kept beside the log.
"""

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

KEEP = signal.SIGUSR1  # sent once the command is up: from then on it is restarted if it dies
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0  # seconds before a restart; doubled each time
STEADY = 300.0  # seconds after which a command counts as stable, and the pause is the first again
_LOG_LIMIT = 10_000_000  # bytes above which a log is rotated at the next start

MARK = "RATCHET_SERVICE"


def marked(token: str) -> list[int]:
    """Return the pids of this user's live processes that carry `token`, except this process."""
    import psutil

    pids = []
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and process.environ().get(MARK) == token:
                pids.append(process.pid)
        except (psutil.Error, OSError):  # it has ended, or belongs to another user
            continue
    return pids


def end_marked(token: str, *, grace: float, session: int) -> int:
    """End every process that carries `token`, including those started meanwhile.

    Flow runs (leaders of sessions other than `session`) get SIGTERM first, alone: they write a checkpoint, which fails
    if their worker or their helper processes vanish. Then the other processes get SIGTERM. SIGKILL follows after
    `grace` seconds.

    Returns: the number of processes that had to be killed.
    """
    deadline = time.monotonic() + grace
    signalled: set[int] = set()
    while runs := [pid for pid in marked(token) if _leads_session(pid, besides=session)]:
        if time.monotonic() >= deadline:
            break
        signalled |= _signal([pid for pid in runs if pid not in signalled], signal.SIGTERM)
        time.sleep(0.05)
    deadline, killed = max(deadline, time.monotonic() + 3.0) if not runs else deadline, set[int]()
    while pids := marked(token):
        late = time.monotonic() - deadline
        if late < 0:
            signalled |= _signal([pid for pid in pids if pid not in signalled], signal.SIGTERM)
        elif late < 10.0:
            killed |= _signal(pids, signal.SIGKILL)
        else:  # stuck in the kernel
            break
        time.sleep(0.05)
    return len(killed)


def _leads_session(pid: int, *, besides: int) -> bool:
    try:
        return os.getsid(pid) == pid != besides
    except ProcessLookupError:  # it has ended
        return False


def _signal(pids: list[int], number: int) -> set[int]:
    reached = set()
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):  # ended in the meantime
            os.kill(pid, number)
            reached.add(pid)
    return reached


def open_log(path: Path) -> int:
    """Return a descriptor that appends to the log, after rotating a large one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists() and path.stat().st_size > _LOG_LIMIT:
        os.replace(path, rotated(path))
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)


def rotated(log: Path) -> Path:
    """Return the path of the previous log, after rotation."""
    return log.with_suffix(".old.log")


def restarts_file(log: Path) -> Path:
    """Return the path of the file in which the supervisor that writes `log` counts restarts."""
    return log.with_suffix(".json")


@dataclass
class Supervisor:
    """Runs one command and restarts it.

    Attributes:
        events: wakes the main thread. A SimpleQueue, because signal handlers may put into no other queue.
        stopping: set by a signal: end the command and leave.
        restarting: the command has been up, so restart it when it dies.
    """

    command: list[str]
    grace: float
    log: Path
    events: "queue.SimpleQueue[None]" = field(default_factory=queue.SimpleQueue)
    stopping: bool = False
    restarting: bool = False

    def stop(self, *_: object) -> None:
        self.stopping = True
        self.events.put(None)

    def keep(self, *_: object) -> None:
        self.restarting = True

    def run(self) -> int:
        """Return the command's exit status, or 143 after a signal to stop."""
        restarts, pause, token = 0, FIRST_PAUSE, os.environ[MARK]
        while True:
            _log("starts again" if restarts else "starts")
            began = time.monotonic()
            status = self._run_once(first=restarts == 0)
            end_marked(token, grace=self.grace, session=os.getpid())
            if self.stopping or not self.restarting:
                return 143 if status is None else status if status >= 0 else 128 - status
            if time.monotonic() - began > STEADY:
                pause = FIRST_PAUSE
            _log(f"{_describe(status)}: restart in {pause:.0f} s")
            if self._stopped_within(pause):
                return 143
            pause, restarts = min(2 * pause, LONGEST_PAUSE), restarts + 1
            self._prepare_restart(token, restarts)

    def _run_once(self, *, first: bool) -> int | None:
        """Run the command until it ends or the supervisor has to stop.

        Returns: its exit status; None if it is still running or could not be started.
        """
        try:
            child = subprocess.Popen(self.command, stdin=subprocess.DEVNULL)
        except OSError as error:  # out of memory or processes, which may pass
            if first:
                raise
            _log(f"{self.command[0]}: {error}")
            return None
        ended = threading.Event()

        def wait_for_child() -> None:
            child.wait()
            ended.set()
            self.events.put(None)

        threading.Thread(target=wait_for_child, daemon=True).start()
        while not (ended.is_set() or self.stopping):
            self.events.get()
        return child.returncode

    def _stopped_within(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while not self.stopping and (remaining := deadline - time.monotonic()) > 0:
            with contextlib.suppress(queue.Empty):
                self.events.get(timeout=remaining)
        return self.stopping

    def _prepare_restart(self, token: str, restarts: int) -> None:
        """Rotate a large log and write the number of restarts. A full disk must not prevent the restart."""
        with contextlib.suppress(OSError):
            log = open_log(self.log)
            os.dup2(log, 1)
            os.dup2(log, 2)
            os.close(log)
            draft = restarts_file(self.log).with_suffix(".draft")
            draft.write_text(json.dumps({"token": token, "restarts": restarts}))
            os.replace(draft, restarts_file(self.log))


def _describe(status: int | None) -> str:
    if status is None:
        return "could not be started"
    return f"ended by itself, exit status {status}" if status >= 0 else f"was killed by signal {-status}"


def _log(text: str) -> None:
    """Write a line into the log, which is this process's standard output."""
    with contextlib.suppress(OSError):  # a full disk
        os.write(1, f"{time.strftime('%Y-%m-%d %H:%M:%S')} | ratchet | {text}\n".encode())


def _stop_with_starter(supervisor: Supervisor) -> None:
    while os.read(0, 4096):
        pass
    supervisor.stop()


def main(arguments: list[str]) -> int:
    """Supervise the command. Return its exit status, or 143 after a signal to stop."""
    tied = arguments[0] == "--tied"
    grace, log, *command = arguments[tied:]
    supervisor = Supervisor(command, float(grace), Path(log))
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        # An ignored SIGINT (as in a shell's background job) would be inherited, and Prefect's worker stops by SIGINT.
        signal.signal(number, supervisor.stop)
    signal.signal(KEEP, supervisor.keep)
    if tied:
        threading.Thread(target=_stop_with_starter, args=(supervisor,), daemon=True).start()
    return supervisor.run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
