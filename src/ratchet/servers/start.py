"""Commands and environments of the services."""

import contextlib
import socket
import sys
import uuid
from urllib.parse import urlsplit

from ratchet.errors import PlatformError
from ratchet.servers import mlflow_server
from ratchet.servers.addresses import (
    PREFECT_PASSWORD,
    address,
    api_url,
    own_origins,
    prefect_credentials,
    public_mlflow,
    public_prefect,
)
from ratchet.servers.environment import ALERT_SECRETS, service_environment
from ratchet.servers.supervisor import Launch, Service
from ratchet.settings.model import PlatformSettings, ServingSettings
from ratchet.workspace import Workspace

__all__ = [
    "POOL",
    "START_TIMEOUT",
    "mlflow_launch",
    "own_host",
    "prefect_launch",
    "serving_launch",
    "worker_launch",
    "worker_name",
]

POOL = "local"
START_TIMEOUT = 120.0  # seconds that a service may take to answer, with a cold disk and a busy machine
# Seconds between SIGTERM and SIGKILL: a server closes its database, a flow run writes a checkpoint.
_SERVER_GRACE, _WORKER_GRACE = 5.0, 20.0
_PRIVATE = {
    "PREFECT_SERVER_UI_ENABLED": "false",
    "PREFECT_SERVER_SERVICES_SCHEDULER_ENABLED": "false",
    "PREFECT_SERVER_SERVICES_LATE_RUNS_ENABLED": "false",
}


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


def prefect_launch(
    workspace: Workspace, settings: PlatformSettings, host: str | None = None, *, private: bool = False
) -> Launch:
    """Return the command and environment of Prefect's server.

    Args:
        host: where it listens, if not on platform.host.
        private: for one run of this process. It has no pages, schedules or alerts.

    Raises:
        PlatformError: the password cannot be used.
    """
    host, port = host or settings.host, settings.prefect_port
    public = public_prefect(settings, host)
    origins = own_origins(host, port, public=public, allowed=settings.allowed_hosts)
    environment = _prefect_environment(workspace, settings.prefect_database, public, origins)
    command = [sys.executable, "-m", "flows.server", "--host", host, "--port", str(port), "--origins", *origins]
    if private:
        command.append("--private")
        environment |= _PRIVATE
    else:
        command += ["--api", api_url(host, port)]
        environment["PYTHONPATH"] = workspace.import_path(environment.get("PYTHONPATH"))
        # Block types that are registered already. The private server knows fewer, and must not share this file.
        environment["PREFECT_SERVER_MEMO_STORE_PATH"] = str(workspace.state / "prefect" / "memo_store_up.toml")
    name, health = "prefect-private" if private else "prefect", f"{api_url(host, port)}/health"
    return Launch(_service(workspace, name, address(host, port), public, health), command, environment)


def _prefect_environment(workspace: Workspace, database: str, public: str, origins: list[str]) -> dict[str, str]:
    if database == "auto":
        database = f"sqlite+aiosqlite:///{workspace.state / 'prefect' / 'prefect.db'}"
    environment = service_environment(workspace, secrets=ALERT_SECRETS) | {
        "PREFECT_SERVER_DATABASE_CONNECTION_URL": database.replace("postgresql://", "postgresql+asyncpg://", 1),
        "PREFECT_SERVER_LOGGING_LEVEL": "WARNING",
        "PREFECT_SERVER_CORS_ALLOWED_ORIGINS": ",".join(origins),
        "PREFECT_UI_API_URL": f"{public}/api",
        "PREFECT_UI_URL": public,  # used in an alert's link to a run's page
        # On disk: if a server forgot the leases when it dies, their slots (flows/gpu_slot.py) would stay taken.
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


def mlflow_launch(workspace: Workspace, settings: PlatformSettings, *, tracking_uri: str, artifacts: str) -> Launch:
    """Return the command and environment of MLflow's server over the database of runs.

    It asks for MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD if both are set.

    Args:
        artifacts: the address that the files of new experiments go to.
    """
    host, port, public = settings.host, settings.mlflow_port, public_mlflow(settings)
    origins = own_origins(host, port, public=public, allowed=settings.allowed_hosts)
    environment = service_environment(workspace)
    environment.pop("MLFLOW_TRACKING_URI", None)
    # MLflow checks hosts and origins too, by patterns. Our own filter in front of it is stricter.
    hosts = [origin.partition("://")[2] for origin in origins]
    environment |= {
        "MLFLOW_SERVER_ALLOWED_HOSTS": ",".join(dict.fromkeys(hosts)),
        "MLFLOW_SERVER_CORS_ALLOWED_ORIGINS": ",".join(origins),
    }
    command = [sys.executable, "-P", mlflow_server.__file__, "--host", host, "--port", str(port)]
    command += ["--backend", tracking_uri, "--artifacts", artifacts, "--origins", *origins]
    place = address(host, port)
    return Launch(_service(workspace, "mlflow", place, public, f"{place}/health"), command, environment)


def worker_launch(workspace: Workspace, settings: PlatformSettings, *, api: str) -> Launch:
    """Return the command and environment of the worker. Its runs can import from the project folder."""
    environment = service_environment(workspace, api)
    environment["PYTHONPATH"] = workspace.import_path(environment.get("PYTHONPATH"))
    environment["PREFECT_WORKER_QUERY_SECONDS"] = "2"  # a user waits for the run to begin; the default is 10
    module = [sys.executable, "-m", "flows.server.worker"]
    named = [api, worker_name(workspace)]
    start, last = [*module, "start", *named, str(settings.worker_runs)], [*module, "close", *named]
    return Launch(_service(workspace, "worker", api, grace=_WORKER_GRACE), start, environment, last)


def serving_launch(workspace: Workspace, host: str, settings: ServingSettings) -> Launch:
    """Return the command and environment of the model server, which finds the project's own modules itself."""
    environment = service_environment(workspace)
    environment["PYTHONPATH"] = workspace.import_path(environment.get("PYTHONPATH"))
    command = [sys.executable, "-m", "ratchet.serving", "--host", host, "--port", str(settings.port), "--wait"]
    place = address(host, settings.port)
    service = _service(workspace, "serving", place, health=f"{place}/health", grace=settings.deadline + 2.0)
    return Launch(service, command, environment)


def worker_name(workspace: Workspace) -> str:
    """Return the name of this folder's worker: HOST:FOLDER, in characters that Prefect allows."""
    folder = str(workspace.root).strip("/")
    return f"{socket.gethostname()}:{folder.replace('/', '-').replace('%', '-')}"


def _service(
    workspace: Workspace, name: str, place: str, public: str = "", health: str = "", *, grace: float = _SERVER_GRACE
) -> Service:
    log = str(workspace.state / "logs" / f"{name}.log")
    return Service(name, place, log, uuid.uuid4().hex, grace, health, "" if public == place else public)
