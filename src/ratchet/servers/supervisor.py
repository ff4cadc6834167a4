"""Supervisor of the services: starts them, restarts each that dies, and ends every process that descends from them.

Run as a script (`python -I supervisor.py`, with a plan as one line of JSON on its standard input) that imports only the
standard library and psutil, so that it starts within some tens of milliseconds and stays small. Prefect's worker starts
each flow run in a session of its own. A signal to the worker's process group does not reach those runs, and they
survive a killed worker. So all processes of a service carry a mark in their environment (`MARK`), which children
inherit.

SIGTERM, SIGINT or SIGHUP ends the services, the last one first, then the supervisor. A service that dies is restarted
with exponential backoff. A tied supervisor restarts nothing: it ends when a service does, or when the starter's end of
its standard input closes, which the system does however the starter dies.
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
from dataclasses import asdict, dataclass, field
from pathlib import Path

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0  # seconds before a restart; doubled each time
STEADY = 300.0  # seconds after which a service counts as stable, and the pause is the first again
_LOG_LIMIT = 10_000_000  # bytes above which a log is rotated at the next start
_LAST_TIMEOUT = 30.0  # seconds that the last command of a service may take

MARK = "RATCHET_SERVICE"
RESTARTS = "RATCHET_RESTARTS"  # environment variable with the number of restarts


@dataclass
class Service:
    """One service: Prefect's server, MLflow's server or the worker.

    Attributes:
        address: where it listens; for the worker, the API that it works for.
        mark: carried by all its processes in their environment.
        grace: seconds between SIGTERM and SIGKILL.
        health: address that answers when it is up; empty for the worker.
        public: address that browsers use; empty if it is the same.
        pid: None while it does not run.
        began: time of its start, in seconds since the epoch.
        restarts: number of times that it died.
    """

    name: str
    address: str
    log: str
    mark: str
    grace: float
    health: str = ""
    public: str = ""
    pid: int | None = None
    began: float = 0.0
    restarts: int = 0

    @property
    def shown(self) -> str:
        """Return the address for people."""
        return self.public or self.address


@dataclass(frozen=True)
class Launch:
    """Commands and environment of a service.

    Attributes:
        last: command that runs when the service has ended for good; empty: none.
    """

    service: Service
    command: list[str]
    environment: dict[str, str]
    last: list[str] = field(default_factory=list)


def marked(mark: str) -> list[int]:
    """Return the pids of this user's live processes that carry `mark`, except this process."""
    import psutil

    pids = []
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and process.environ().get(MARK) == mark:
                pids.append(process.pid)
        except (psutil.Error, OSError):  # it has ended, or belongs to another user
            continue
    return pids


def end_marked(mark: str, *, grace: float) -> int:
    """End every process that carries `mark`, including those started meanwhile.

    Flow runs (leaders of sessions) get SIGTERM first, alone: they write a checkpoint, which fails if their worker or
    their helper processes vanish. Then the other processes get SIGTERM. SIGKILL follows after `grace` seconds.

    Returns: the number of processes that had to be killed.
    """
    deadline = time.monotonic() + grace
    signalled: set[int] = set()
    while runs := [pid for pid in marked(mark) if _leads_session(pid)]:
        if time.monotonic() >= deadline:
            break
        signalled |= _signal([pid for pid in runs if pid not in signalled], signal.SIGTERM)
        time.sleep(0.05)
    deadline, killed = max(deadline, time.monotonic() + 3.0) if not runs else deadline, set[int]()
    while pids := marked(mark) or _just_started(mark):
        late = time.monotonic() - deadline
        if late < 0:
            signalled |= _signal([pid for pid in pids if pid not in signalled], signal.SIGTERM)
        elif late < 10.0:
            killed |= _signal(pids, signal.SIGKILL)
        else:  # stuck in the kernel
            break
        time.sleep(0.05)
    return len(killed)


def _just_started(mark: str) -> list[int]:
    """Look again a moment later: between fork and exec a process shows no environment."""
    time.sleep(0.05)
    return marked(mark)


def _leads_session(pid: int) -> bool:
    try:
        return os.getsid(pid) == pid
    except ProcessLookupError:  # it has ended
        return False


def _signal(pids: list[int], number: int) -> set[int]:
    reached = set()
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):  # ended in the meantime
            os.kill(pid, number)
            reached.add(pid)
    return reached


def is_same(pid: int, started: float) -> bool:
    """Return whether a process with this number runs, and started then: a number is used again."""
    import psutil

    try:
        return abs(started_at(pid) - started) < 0.1 and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def started_at(pid: int) -> float:
    """Return when a process started, in seconds after the boot: its time changes when the clock is set.

    Raises:
        psutil.NoSuchProcess: it has ended.
    """
    import psutil

    return float(psutil.Process(pid).create_time() - psutil.boot_time())


def rotated(log: Path) -> Path:
    """Return the path of the previous log, after rotation."""
    return log.with_suffix(".old.log")


class Supervisor:
    """Runs services, each watched by a thread.

    Attributes:
        record: file that says how the services are; None: written nowhere.
        tied: ends with its first service that ends, instead of restarting it.
    """

    def __init__(self, launches: list[Launch], record: Path | None, *, tied: bool) -> None:
        self.launches, self.record, self.tied = launches, record, tied
        self._events: queue.SimpleQueue[None] = queue.SimpleQueue()  # signal handlers may put into no other queue
        self._stopping = threading.Event()
        self._lock = threading.Lock()  # of the record, and of every start
        self._services = [launch.service for launch in launches]
        self._status = 143

    def stop(self, *_: object) -> None:
        self._events.put(None)

    def run(self) -> int:
        """Return the exit status of the service that ended a tied supervisor, or 143 after a signal to stop."""
        self._write()
        watched = [(each, threading.Thread(target=self._watch, args=(each,), daemon=True)) for each in self.launches]
        for _, thread in watched:
            thread.start()
        self._events.get()
        with self._lock:
            self._stopping.set()
        for launch, thread in reversed(watched):
            self._end(launch)
            thread.join()
        return self._status

    def _watch(self, launch: Launch) -> None:
        """Run a service until the supervisor stops."""
        service, pause = launch.service, FIRST_PAUSE
        while not self._stopping.is_set():
            began = time.monotonic()
            status = self._run_once(launch)
            if self._stopping.is_set():
                return  # the main thread ends what is left of it
            end_marked(service.mark, grace=service.grace)
            if self.tied:
                self._status = 1 if status is None else status if status >= 0 else 128 - status
                self.stop()
                return
            if time.monotonic() - began > STEADY:
                pause = FIRST_PAUSE
            _log(service, f"{_describe(status)}: restart in {pause:.0f} s")
            with self._lock:
                service.restarts += 1
                self._write()
            self._stopping.wait(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    def _run_once(self, launch: Launch) -> int | None:
        """Run the command until it ends. Return its exit status; None if it was not started."""
        service = launch.service
        with self._lock:
            if self._stopping.is_set():
                return None
            try:
                child = self._start(launch)
            except OSError as error:  # out of memory or processes, which may pass
                _log(service, f"{launch.command[0]}: {error}")
                return None
            service.pid, service.began = child.pid, time.time()
            self._write()
        status = child.wait()
        with self._lock:
            service.pid = None
            self._write()
        return status

    def _start(self, launch: Launch) -> "subprocess.Popen[bytes]":
        service, log = launch.service, Path(launch.service.log)
        with contextlib.suppress(OSError):  # a full disk must not prevent the start
            log.parent.mkdir(parents=True, exist_ok=True)
            if log.exists() and log.stat().st_size > _LOG_LIMIT:
                os.replace(log, rotated(log))
        _log(service, "starts again" if service.restarts else "starts")
        return _popen(launch, launch.command)

    def _end(self, launch: Launch) -> None:
        """End a service for good, and run its last command."""
        service = launch.service
        if killed := end_marked(service.mark, grace=service.grace):
            _log(service, f"{killed} processes had to be killed")
        if launch.last:
            with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                _popen(launch, launch.last).wait(_LAST_TIMEOUT)
            end_marked(service.mark, grace=0.0)
        with self._lock:
            self._services.remove(service)
            self._write()

    def _write(self) -> None:
        """Write the record; without services, remove it. A full disk must not prevent a restart."""
        if self.record is None:
            return
        with contextlib.suppress(OSError):
            if not self._services:
                self.record.unlink()
                return
            own = {"pid": os.getpid(), "created": started_at(os.getpid())}
            draft = self.record.with_suffix(".draft")
            draft.write_text(json.dumps({**own, "services": [asdict(service) for service in self._services]}))
            os.replace(draft, self.record)


def _popen(launch: Launch, command: list[str]) -> "subprocess.Popen[bytes]":
    service = launch.service
    environment = {**launch.environment, MARK: service.mark, RESTARTS: str(service.restarts)}
    try:
        output = os.open(service.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    except OSError:  # a full disk
        output = os.open(os.devnull, os.O_WRONLY)
    try:
        return subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
        )
    finally:
        os.close(output)


def _describe(status: int | None) -> str:
    if status is None:
        return "could not be started"
    return f"ended by itself, exit status {status}" if status >= 0 else f"was killed by signal {-status}"


def _log(service: Service, text: str) -> None:
    with contextlib.suppress(OSError), open(service.log, "a", encoding="utf-8") as log:  # a full disk
        log.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} | ratchet | {text}\n")


def _stop_with_starter(supervisor: Supervisor) -> None:
    while os.read(0, 4096):
        pass
    supervisor.stop()


def main() -> int:
    """Supervise the services of the plan. Return the exit status of `Supervisor.run`."""
    plan = json.loads(sys.stdin.readline())
    launches = [Launch(Service(**launch.pop("service")), **launch) for launch in plan["launches"]]
    supervisor = Supervisor(launches, Path(plan["record"]) if plan["record"] else None, tied=plan["tied"])
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        # An ignored SIGINT (as in a shell's background job) would be inherited, and Prefect's worker stops by SIGINT.
        signal.signal(number, supervisor.stop)
    if plan["tied"]:
        threading.Thread(target=_stop_with_starter, args=(supervisor,), daemon=True).start()
    return supervisor.run()


if __name__ == "__main__":
    sys.exit(main())
