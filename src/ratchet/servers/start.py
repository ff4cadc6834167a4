"""Commands, environments and readiness checks of the three services."""

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from ratchet.errors import PlatformError
from ratchet.servers.addresses import PREFECT_PASSWORD, address, api_url, own_origins, prefect_credentials
from ratchet.servers.environment import ALERT_SECRETS, service_environment
from ratchet.servers.http import answers
from ratchet.servers.processes import Service, spawn
from ratchet.settings.model import PlatformSettings
from ratchet.workspace import Workspace

__all__ = [
    "GRACE",
    "POOL",
    "START_TIMEOUT",
    "Starting",
    "failure",
    "own_host",
    "start_mlflow",
    "start_prefect",
    "start_worker",
    "wait_until_ready",
    "worker_name",
]

POOL = "local"
START_TIMEOUT = 120.0  # seconds that a service may take to answer, with a cold disk and a busy machine
# Seconds between SIGTERM and SIGKILL: a server closes its database, a flow run writes a checkpoint.
GRACE: Mapping[str, float] = {"prefect": 5.0, "mlflow": 5.0, "worker": 20.0}


def own_host(settings: PlatformSettings) -> str | None:
    """Return the host that our own Prefect server listens on; None if platform.prefect_api names another machine.

    Machines share their settings. The machine that has the named address starts the server.
    """
    if settings.prefect_api == "auto":
        return settings.host
    named = urlsplit(settings.prefect_api)
    if named.scheme != "http" or named.port != settings.prefect_port or not named.hostname:
        return None
    with contextlib.suppress(OSError):  # the address of another machine, or an unknown name
        for family, kind, _, _, place in socket.getaddrinfo(named.hostname, 0, type=socket.SOCK_STREAM):
            with socket.socket(family, kind) as probe:
                probe.bind(place)
            return named.hostname
    return None


@dataclass
class Starting:
    """A service that is starting.

    Attributes:
        ready: returns whether the service answers.
        began: time.monotonic() of the start, in seconds.
    """

    service: Service
    process: "subprocess.Popen[bytes]"
    ready: Callable[[], bool]
    began: float


def start_prefect(
    workspace: Workspace,
    *,
    host: str,
    port: int,
    database: str,
    public: str | None = None,
    allowed: Collection[str] = (),
    private: bool = False,
) -> Starting:
    """Start Prefect's server.

    Args:
        database: its address, postgresql://...; "auto": SQLite in .ratchet/prefect.
        public: the address that browsers use; None: the address that it listens on.
        allowed: further names that requests may use for it (platform.allowed_hosts).
        private: for one run of this process. It has no pages, schedules or alerts, and ends with this process.
    """
    public = public or address(host, port)
    origins = own_origins(host, port, public=public, allowed=allowed)
    environment = _prefect_environment(workspace, database, public, origins)
    command = [sys.executable, "-m", "flows.server", "--host", host, "--port", str(port), "--origins", *origins]
    if private:
        command.append("--private")
        environment |= {
            "PREFECT_SERVER_UI_ENABLED": "false",
            "PREFECT_SERVER_SERVICES_SCHEDULER_ENABLED": "false",
            "PREFECT_SERVER_SERVICES_LATE_RUNS_ENABLED": "false",
        }
    else:
        command += ["--api", api_url(host, port)]
        environment["PYTHONPATH"] = _with_project(workspace, environment)
        # Block types that are registered already. The private server knows fewer, and must not share this file.
        environment["PREFECT_SERVER_MEMO_STORE_PATH"] = str(workspace.state / "prefect" / "memo_store_up.toml")
    health = f"{api_url(host, port)}/health"
    return _start(
        workspace,
        "prefect-private" if private else "prefect",
        command,
        environment,
        address(host, port),
        lambda: answers(health),
        GRACE["prefect"],
        tied=private,
        public=public,
    )


def _prefect_environment(workspace: Workspace, database: str, public: str, origins: list[str]) -> dict[str, str]:
    if database == "auto":
        database = f"sqlite+aiosqlite:///{workspace.state / 'prefect' / 'prefect.db'}"
    environment = service_environment(workspace, secrets=ALERT_SECRETS) | {
        "PREFECT_SERVER_DATABASE_CONNECTION_URL": database.replace("postgresql://", "postgresql+asyncpg://", 1),
        "PREFECT_SERVER_LOGGING_LEVEL": "WARNING",
        "PREFECT_SERVER_CORS_ALLOWED_ORIGINS": ",".join(origins),
        "PREFECT_UI_API_URL": f"{public}/api",
        "PREFECT_UI_URL": public,  # used in an alert's link to a run's page
        # On disk: if a server forgot the leases when it dies, their slots (flows/quotas.py) would stay taken.
        "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": "prefect.server.concurrency.lease_storage.filesystem",
    }
    if password := prefect_credentials():
        if not password.isascii():
            raise PlatformError(
                f"{PREFECT_PASSWORD}: has a character outside ASCII, with which Prefect's server answers every request "
                "with an error. Allowed: ASCII. Fix: export another one"
            )
        environment["PREFECT_SERVER_API_AUTH_STRING"] = password
    return environment


def start_mlflow(
    workspace: Workspace,
    *,
    host: str,
    port: int,
    tracking_uri: str,
    artifacts: str,
    public: str | None = None,
    allowed: Collection[str] = (),
) -> Starting:
    """Start MLflow's server over the database of runs.

    It asks for MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD if both are set.

    Args:
        artifacts: the address that the files of new experiments go to.
        public: as for `start_prefect`, and so `allowed`.
    """
    place = address(host, port)
    public = public or place
    origins = own_origins(host, port, public=public, allowed=allowed)
    environment = service_environment(workspace)
    environment.pop("MLFLOW_TRACKING_URI", None)
    # MLflow checks hosts and origins too, by patterns. Our own filter in front of it is stricter.
    hosts = [origin.partition("://")[2] for origin in origins]
    environment |= {
        "MLFLOW_SERVER_ALLOWED_HOSTS": ",".join(dict.fromkeys(hosts)),
        "MLFLOW_SERVER_CORS_ALLOWED_ORIGINS": ",".join(origins),
    }
    script = Path(__file__).with_name("mlflow_server.py")
    command = [sys.executable, "-P", str(script), "--host", host, "--port", str(port)]
    command += ["--backend", tracking_uri, "--artifacts", artifacts, "--origins", *origins]
    ready = f"{place}/health"
    return _start(
        workspace, "mlflow", command, environment, place, lambda: answers(ready), GRACE["mlflow"], public=public
    )


def start_worker(workspace: Workspace, *, api: str, runs: int, ready: Callable[[], bool]) -> Starting:
    """Start a worker that carries out `runs` runs at once. Their processes can import from the project folder."""
    environment = service_environment(workspace, api)
    environment["PYTHONPATH"] = _with_project(workspace, environment)
    environment["PREFECT_WORKER_QUERY_SECONDS"] = "2"  # a user waits for the run to begin; the default is 10
    command = [sys.executable, "-m", "flows.server.worker", api, worker_name(workspace), str(runs)]
    return _start(workspace, "worker", command, environment, api, ready, GRACE["worker"])


def worker_name(workspace: Workspace) -> str:
    """Return the name of this folder's worker: HOST:FOLDER, in characters that Prefect allows."""
    folder = str(workspace.root).strip("/")
    return f"{socket.gethostname()}:{folder.replace('/', '-').replace('%', '-')}"


def _with_project(workspace: Workspace, environment: Mapping[str, str]) -> str:
    """Return a PYTHONPATH by which a service can import the project's own flows."""
    return os.pathsep.join(folder for folder in (str(workspace.root), environment.get("PYTHONPATH")) if folder)


def _start(
    workspace: Workspace,
    name: str,
    command: list[str],
    environment: dict[str, str],
    place: str,
    ready: Callable[[], bool],
    grace: float,
    tied: bool = False,
    public: str = "",
) -> Starting:
    began = time.monotonic()
    service, process = spawn(
        name,
        command,
        environment=environment,
        cwd=workspace.root,  # a tracking address may be relative to it
        address=place,
        log=workspace.state / "logs" / f"{name}.log",
        grace=grace,
        tied=tied,
        public="" if public == place else public,
    )
    return Starting(service, process, ready, began)


def wait_until_ready(starting: Iterable[Starting], *, up: Callable[[Service, float], None]) -> None:
    """Wait until all services are ready. Calls `up(service, seconds)` for each of them.

    Raises:
        PlatformError: a service died, or is not ready in time.
    """
    pending = list(starting)
    while pending:
        for start in list(pending):
            seconds = time.monotonic() - start.began
            if start.process.poll() is not None:
                raise failure(start.service, f"ended while starting (exit status {start.process.returncode})")
            if start.ready():
                up(start.service, seconds)
                pending.remove(start)
            elif seconds > START_TIMEOUT:
                raise failure(start.service, f"was not ready after {START_TIMEOUT:.0f} s")
        time.sleep(0.05)


def failure(service: Service, problem: str) -> PlatformError:
    """Make an error that shows the end of the service's log."""
    tail = service.log_tail()
    shown = f"its log {service.log} ends with:\n{tail}" if tail else f"its log {service.log} is empty"
    return PlatformError(f"{service.name}: {problem}; {shown}")
