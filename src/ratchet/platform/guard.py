"""One server's keeper: runs a command, and ends everything that descends from it when either of them must go.

Run as a script (`python -I guard.py [--tied] GRACE COMMAND...`), beside nothing but the standard library and psutil, so
that it starts in some tens of milliseconds and stays small. It is needed because Prefect's worker starts each flow run
in a session of its own: a signal to the worker's process group does not reach them, and a killed worker leaves them
running. What belongs together is known by a token in the environment (`MARK`), which children inherit.

Ends when the command ends, on SIGTERM, SIGINT or SIGHUP, or, if tied, when the starter's end of standard input closes,
which the system does however the starter dies.
"""

import os
import signal
import subprocess
import sys
import threading
import time

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


def _watch_input(ending: threading.Event) -> None:
    while os.read(0, 4096):
        pass
    ending.set()


def main(arguments: list[str]) -> int:
    """Run the command; the exit status is its own, or 143 if it was told to go."""
    tied = arguments[0] == "--tied"
    grace, command = float(arguments[tied]), arguments[tied + 1 :]
    ending = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        # An ignored SIGINT (a shell's background job has it) would be inherited, and Prefect's worker stops by SIGINT.
        signal.signal(number, lambda *_: ending.set())
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL)

    def watch_child() -> None:
        child.wait()
        ending.set()

    threading.Thread(target=watch_child, daemon=True).start()
    if tied:
        threading.Thread(target=_watch_input, args=(ending,), daemon=True).start()
    ending.wait()
    status = child.returncode
    end_marked(os.environ[MARK], grace=grace, session=os.getpid())
    return 143 if status is None else status if status >= 0 else 128 - status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
