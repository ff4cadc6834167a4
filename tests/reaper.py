"""End every process that a test session started, however the session ends.

Run as a script beside the session (`python -I reaper.py PID TOKEN`). Servers and their supervisors run in sessions of
their own, so neither a closed terminal nor the death of pytest reaches them. They are known by a token in their
environment, which processes inherit.
"""

import os
import signal
import sys
import time

import psutil

MARK = "RATCHET_TEST_SESSION"
GRACE = 30.0  # seconds between SIGTERM and SIGKILL: a supervisor gives a flow run 20 s


def marked(token: str) -> list[psutil.Process]:
    """The live processes of the session, except this one."""
    processes = []
    for process in psutil.process_iter():
        try:
            named = token in process.environ().get(MARK, "").split(":")
            if named and process.pid != os.getpid() and process.status() != psutil.STATUS_ZOMBIE:
                processes.append(process)
        except (psutil.Error, OSError):  # it has ended, or is another user's
            continue
    return processes


def end(token: str) -> None:
    """Send SIGTERM to supervisors, which end their services, and to all processes without one. SIGKILL follows."""
    deadline, signalled = time.monotonic() + GRACE, set[int]()
    while processes := marked(token):
        late = time.monotonic() > deadline
        for process in processes:
            if late or (process.pid not in signalled and not _supervised(process)):
                try:
                    process.send_signal(signal.SIGKILL if late else signal.SIGTERM)
                except psutil.NoSuchProcess:
                    continue
                signalled.add(process.pid)
        time.sleep(0.1)


def _supervised(process: psutil.Process) -> bool:
    """Return whether a supervisor ends it in order, runs before their worker."""
    try:
        return any(_is_supervisor(parent) for parent in process.parents())
    except psutil.Error:
        return False


def _is_supervisor(process: psutil.Process) -> bool:
    return any(argument.endswith("ratchet/servers/supervisor.py") for argument in process.cmdline())


def main(pid: int, token: str) -> None:
    """Wait until process `pid` has ended, then end what it left."""
    try:
        session = psutil.Process(pid)
        while session.is_running() and session.status() != psutil.STATUS_ZOMBIE:
            time.sleep(0.2)
    except psutil.NoSuchProcess:
        pass
    end(token)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
