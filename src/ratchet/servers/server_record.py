""".ratchet/servers.json: the supervisor of `ratchet up`, and its services. Only the supervisor writes it."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import psutil

from ratchet import files
from ratchet.errors import PlatformError
from ratchet.servers import supervisor
from ratchet.servers.environment import service_environment
from ratchet.servers.supervisor import Launch, Service, end_marked, is_same
from ratchet.workspace import Workspace

__all__ = ["TITLES", "ServerRecord", "failure", "start_supervisor"]

TITLES = {"prefect": "Prefect server", "mlflow": "MLflow server", "worker": "worker", "serving": "model server"}
_LONGEST_END = 120.0  # seconds after which a supervisor that does not end is killed


@dataclass(frozen=True)
class ServerRecord:
    """The services by name, and their supervisor."""

    path: Path
    pid: int = 0
    created: float = 0.0  # start time of the supervisor, so that a process with a reused pid does not count
    services: dict[str, Service] = field(default_factory=dict)

    @classmethod
    def read(cls, workspace: Workspace) -> "ServerRecord":
        """Read the file. A missing one, or one that was copied from another project folder, is an empty record.

        Raises:
            PlatformError: it is damaged, so the started processes are unknown.
        """
        record = cls._read(workspace.state / "servers.json")
        originals = {Path(service.log).parent.parent / record.path.name for service in record.services.values()}
        is_copy = any(os.path.exists(path) and path.resolve() != record.path.resolve() for path in originals)
        return cls(record.path) if is_copy else record

    @classmethod
    def _read(cls, path: Path) -> "ServerRecord":
        try:
            content = files.read_json(path)
            services = [Service(**service) for service in content["services"]]
            return cls(
                path, int(content["pid"]), float(content["created"]), {service.name: service for service in services}
            )
        except FileNotFoundError:
            return cls(path)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise PlatformError(
                f"{path}: damaged ({error}). Fix: end the servers by hand (`ps -ef | grep "
                f"ratchet/servers/supervisor.py` shows their supervisor's pid), then delete {path}"
            ) from error

    @property
    def api(self) -> str | None:
        """Return the Prefect API that the services use; None if nothing was started."""
        worker = self.services.get("worker")
        return worker.address if worker else None

    def alive(self) -> bool:
        """Return whether the supervisor that was started still runs."""
        return self.pid > 0 and is_same(self.pid, self.created)

    def end(self, ended: Callable[[Service], None] = lambda service: None) -> None:
        """End the services, the last one first, their supervisor, and what a killed supervisor has left.

        Args:
            ended: is called with each service that has ended.
        """
        deadline = time.monotonic() + _LONGEST_END
        if self.alive():
            psutil.Process(self.pid).terminate()
        for service in reversed(self.services.values()):
            while self.alive() and service.name in self._read(self.path).services and time.monotonic() < deadline:
                time.sleep(0.02)
            end_marked(service.mark, grace=service.grace)  # what a killed supervisor has left
            ended(service)
        while self.alive():  # not psutil's wait: it also waits until a slow init has reaped the process
            if time.monotonic() > deadline:
                psutil.Process(self.pid).kill()
            time.sleep(0.02)
        self.path.unlink(missing_ok=True)


def start_supervisor(
    workspace: Workspace, launches: Sequence[Launch], *, tied: bool = False
) -> "subprocess.Popen[bytes]":
    """Start the services under a supervisor in a session of its own. Returns when the supervisor has its plan.

    Args:
        tied: it ends when this process does, however this process dies, and when a service ends. It is not recorded.
    """
    record = None if tied else str(workspace.state / "servers.json")
    logs = workspace.state / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    with (logs / f"{launches[0].service.name}.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-I", supervisor.__file__],
            cwd=workspace.root,  # a tracking address may be relative to it
            env=service_environment(workspace),
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    plan = {"record": record, "tied": tied, "launches": [asdict(launch) for launch in launches]}
    assert process.stdin is not None
    process.stdin.write(json.dumps(plan).encode() + b"\n")
    process.stdin.flush()
    if not tied:
        process.stdin.close()
        try:
            while process.poll() is None and ServerRecord.read(workspace).pid != process.pid:
                time.sleep(0.01)
        except BaseException:  # a signal: no other process knows of the supervisor yet
            process.terminate()
            process.wait()
            raise
    return process


def failure(service: Service, problem: str) -> PlatformError:
    """Make an error that shows the end of the service's log."""
    try:
        lines = Path(service.log).read_text(encoding="utf-8", errors="replace").rstrip().splitlines()[-15:]
    except FileNotFoundError:
        lines = []
    tail = "".join(f"{os.linesep}    {line}" for line in lines)
    shown = f"its log {service.log} ends with:{tail}" if tail else f"its log {service.log} is empty"
    return PlatformError(f"{service.name}: {problem}; {shown}")
