"""One server's keeper: runs a command, starts it again when it dies, and ends everything that descends from it.

Run as a script (`python -I guard.py [--tied] GRACE LOG COMMAND...`), beside nothing but the standard library and
psutil, so that it starts in some tens of milliseconds and stays small. It is needed because Prefect's worker starts
each flow run in a session of its own: a signal to the worker's process group does not reach them, and a killed worker
leaves them running. What belongs together is known by a token in the environment (`MARK`), which children inherit.

Ends on SIGTERM, SIGINT or SIGHUP, or, if tied, when the starter's end of standard input closes, which the system does
however the starter dies. Ends with its command, too, until SIGUSR1 says that the command is up: from then on a command
that ends is started again, after a pause that grows as long as it does not last. How often stands beside the log.
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

KEEP = signal.SIGUSR1  # the command is up: start it again from now on, should it die
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0  # seconds before it is started again; doubled each time
STEADY = 300.0  # seconds that it must have lived for the pause to be the first again
_LOG_LIMIT = 10_000_000  # bytes after which a log starts anew; the old one is kept beside it

MARK = "RATCHET_PART"


def marked(token: str) -> list[int]:
    """The pids of this user's live processes that carry `token`, this process excepted."""
    import psutil

    found = []
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and process.environ().get(MARK) == token:
                found.append(process.pid)
        except (psutil.Error, OSError):  # it has ended, or is another user's: not one of ours
            continue
    return found


def end_marked(token: str, *, grace: float, session: int) -> int:
    """End every process that carries `token`; what they start meanwhile is found too.

    First the flow runs (leaders of sessions other than `session`) get SIGTERM, alone: a run that is told to go writes a
    checkpoint, but one whose worker or whose helpers vanish is cut off. Then the others get it. Whatever lives after
    `grace` seconds gets SIGKILL.

    Returns: how many had to be killed.
    """
    deadline = time.monotonic() + grace
    asked: set[int] = set()
    while runs := [pid for pid in marked(token) if _leads(pid, besides=session)]:
        if time.monotonic() >= deadline:
            break
        asked |= _signal([pid for pid in runs if pid not in asked], signal.SIGTERM)
        time.sleep(0.05)
    deadline, killed = max(deadline, time.monotonic() + 3.0) if not runs else deadline, set[int]()
    while pids := marked(token):
        late = time.monotonic() - deadline
        if late < 0:
            asked |= _signal([pid for pid in pids if pid not in asked], signal.SIGTERM)
        elif late < 10.0:
            killed |= _signal(pids, signal.SIGKILL)
        else:  # stuck in the kernel: not to be waited for
            break
        time.sleep(0.05)
    return len(killed)


def _leads(pid: int, *, besides: int) -> bool:
    try:
        return os.getsid(pid) == pid != besides
    except ProcessLookupError:  # it has ended
        return False


def _signal(pids: list[int], number: int) -> set[int]:
    reached = set()
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:  # gone in the meantime
            continue
        reached.add(pid)
    return reached


def open_log(path: Path) -> int:
    """A descriptor that appends to the log; one that has grown large is first put aside."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists() and path.stat().st_size > _LOG_LIMIT:
        os.replace(path, put_aside(path))
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)


def put_aside(log: Path) -> Path:
    """Where a log that has grown large is kept."""
    return log.with_suffix(".old.log")


def tally(log: Path) -> Path:
    """Where the keeper that writes `log` says how often it has started its command again."""
    return log.with_suffix(".json")


@dataclass
class Keeper:
    """A command that runs, or will again.

    Attributes:
        news: something to look at has happened; signal handlers may put here, as into no other queue.
        told: to go.
        kept: it is up, and is to be started again.
    """

    command: list[str]
    grace: float
    log: Path
    news: "queue.SimpleQueue[None]" = field(default_factory=queue.SimpleQueue)
    told: bool = False
    kept: bool = False

    def go(self, *_: object) -> None:
        self.told = True
        self.news.put(None)

    def keep(self, *_: object) -> None:
        self.kept = True

    def run(self) -> int:
        """Returns the command's exit status, or 143 if told to go."""
        restarts, pause, token = 0, FIRST_PAUSE, os.environ[MARK]
        while True:
            _say("starts again" if restarts else "starts")
            began = time.monotonic()
            status = self._live(first=restarts == 0)
            end_marked(token, grace=self.grace, session=os.getpid())
            if self.told or not self.kept:
                return 143 if status is None else status if status >= 0 else 128 - status
            if time.monotonic() - began > STEADY:
                pause = FIRST_PAUSE
            _say(f"{_how(status)}: started again in {pause:.0f} s")
            if self._told_within(pause):
                return 143
            pause, restarts = min(2 * pause, LONGEST_PAUSE), restarts + 1
            self._begin_again(token, restarts)

    def _live(self, *, first: bool) -> int | None:
        """One life of the command. Returns its exit status; None if it lives still, or could not be started."""
        try:
            child = subprocess.Popen(self.command, stdin=subprocess.DEVNULL)
        except OSError as error:  # no memory, no processes left: that may pass
            if first:
                raise
            _say(f"{self.command[0]}: {error}")
            return None
        ended = threading.Event()

        def watch() -> None:
            child.wait()
            ended.set()
            self.news.put(None)

        threading.Thread(target=watch, daemon=True).start()
        while not (ended.is_set() or self.told):
            self.news.get()
        return child.returncode

    def _told_within(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while not self.told and (left := deadline - time.monotonic()) > 0:
            with contextlib.suppress(queue.Empty):
                self.news.get(timeout=left)
        return self.told

    def _begin_again(self, token: str, restarts: int) -> None:
        """A log that is not too large, and the tally. A full disk is no reason to stay down."""
        with contextlib.suppress(OSError):
            log = open_log(self.log)
            os.dup2(log, 1)
            os.dup2(log, 2)
            os.close(log)
            draft = tally(self.log).with_suffix(".draft")
            draft.write_text(json.dumps({"token": token, "restarts": restarts}))
            os.replace(draft, tally(self.log))


def _how(status: int | None) -> str:
    if status is None:
        return "could not be started"
    return f"ended by itself, exit status {status}" if status >= 0 else f"was killed by signal {-status}"


def _say(text: str) -> None:
    """A line in the log, which is this process's standard output."""
    with contextlib.suppress(OSError):  # a full disk
        os.write(1, f"{time.strftime('%Y-%m-%d %H:%M:%S')} | ratchet | {text}\n".encode())


def _watch_input(keeper: Keeper) -> None:
    while os.read(0, 4096):
        pass
    keeper.go()


def main(arguments: list[str]) -> int:
    """Keep the command; the exit status is its own, or 143 if it was told to go."""
    tied = arguments[0] == "--tied"
    grace, log, *command = arguments[tied:]
    keeper = Keeper(command, float(grace), Path(log))
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        # An ignored SIGINT (a shell's background job has it) would be inherited, and Prefect's worker stops by SIGINT.
        signal.signal(number, keeper.go)
    signal.signal(KEEP, keeper.keep)
    if tied:
        threading.Thread(target=_watch_input, args=(keeper,), daemon=True).start()
    return keeper.run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
