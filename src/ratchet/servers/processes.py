"""Services as processes: identified by pid, start time and token, so that a foreign process is never signalled."""

import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from ratchet.servers.supervisor import KEEP, MARK, end_marked, open_log, restarts_file

__all__ = ["Service", "spawn"]

_SUPERVISOR = Path(__file__).with_name("supervisor.py")


@dataclass(frozen=True)
class Service:
    """One service as started: Prefect's server, MLflow's server or the worker.

    Attributes:
        pid: of its supervisor.
        created: start time of the supervisor, in seconds since the epoch, as psutil gives it.
        token: carried by all its processes in their environment.
        address: where it listens; for the worker, the API that it works for.
        public: address that browsers use; empty if it is the same.
    """

    name: str
    pid: int
    created: float
    token: str
    address: str
    log: Path
    public: str = ""

    @property
    def shown(self) -> str:
        """Return the address for people."""
        return self.public or self.address

    def alive(self) -> bool:
        """Return whether the supervisor that was started still runs. A process with a reused pid does not count."""
        try:
            process = psutil.Process(self.pid)
            same = abs(process.create_time() - self.created) < 1.0
            return bool(same and process.status() != psutil.STATUS_ZOMBIE)
        except psutil.NoSuchProcess:
            return False

    def command(self) -> psutil.Process | None:
        """Return the process that the supervisor runs now; None during a pause or after the end."""
        try:
            if self.alive():
                children = psutil.Process(self.pid).children()
                return next((child for child in children if child.status() != psutil.STATUS_ZOMBIE), None)
        except psutil.NoSuchProcess:  # it has just ended
            pass
        return None

    def keep(self) -> None:
        """Signal to the supervisor that the service is up and has to be restarted from now on."""
        if self.alive():
            psutil.Process(self.pid).send_signal(KEEP)

    def restarts(self) -> int:
        """Return how often the supervisor has restarted the service."""
        try:
            content = json.loads(restarts_file(self.log).read_text())
            return int(content["restarts"]) if content["token"] == self.token else 0
        except (OSError, ValueError, KeyError, TypeError):  # never
            return 0

    def end(self, *, grace: float) -> int:
        """Send SIGTERM, and SIGKILL after `grace` seconds, to every process of this service, the supervisor last.

        Returns: the number of processes that had to be killed.
        """
        killed = 0
        if self.alive():
            psutil.Process(self.pid).terminate()  # the supervisor ends the rest, within the same grace
            deadline = time.monotonic() + grace + 15.0  # the supervisor's own waiting, and a margin
            while self.alive():  # not psutil's wait: it also waits until a slow init has reaped the process
                if time.monotonic() > deadline:
                    psutil.Process(self.pid).kill()
                    killed = 1
                    break
                time.sleep(0.02)
        return killed + end_marked(self.token, grace=grace, session=self.pid)  # left behind by a killed supervisor

    def log_tail(self, lines: int = 15) -> str:
        """Return the last lines of the log, indented."""
        try:
            text = self.log.read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return ""
        return "\n".join(f"    {line}" for line in text.rstrip().splitlines()[-lines:])

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "log": str(self.log)}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "Service":
        """Read the output of `to_json`. Raises TypeError, KeyError or ValueError if it is anything else."""
        service = cls(**{**content, "log": Path(content["log"])})
        typed = ((service.pid, int), (service.created, int | float), (service.token, str))
        if not all(isinstance(value, kind) for value, kind in typed):
            raise TypeError(f"not a service: {content!r}")
        return service


def spawn(
    name: str,
    command: Sequence[str],
    *,
    environment: Mapping[str, str],
    cwd: Path,
    address: str,
    log: Path,
    grace: float,
    tied: bool = False,
    public: str = "",
) -> tuple[Service, "subprocess.Popen[bytes]"]:
    """Start `command` under a supervisor in a session of its own. Returns at once.

    Until `keep` is called the supervisor ends with its command.

    Args:
        grace: seconds between SIGTERM and SIGKILL when it ends.
        tied: it also ends when this process does, however this process dies.
        public: the address that browsers use, if it is another.
    """
    token = uuid.uuid4().hex
    supervisor = [sys.executable, "-I", str(_SUPERVISOR), *(["--tied"] if tied else []), str(grace), str(log), *command]
    with os.fdopen(open_log(log), "ab") as out:
        process = subprocess.Popen(
            supervisor,
            cwd=cwd,
            env={**environment, MARK: token},
            stdin=subprocess.PIPE if tied else subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    created = psutil.Process(process.pid).create_time()
    return Service(name, process.pid, created, token, address, log, public), process
