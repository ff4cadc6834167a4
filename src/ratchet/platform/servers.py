"""What each local server is: its command, its environment, and how to ask whether it is ready."""

import base64
import contextlib
import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ratchet.errors import PlatformError
from ratchet.platform import sending
from ratchet.platform.addresses import (
    PREFECT_PASSWORD,
    address,
    api_url,
    own_origins,
    prefect_credentials,
)
from ratchet.platform.processes import Part, spawn
from ratchet.settings.model import PlatformSettings
from ratchet.workspace import Workspace

__all__ = [
    "POOL",
    "STARTED",
    "Starting",
    "address",
    "answers",
    "api_url",
    "call",
    "client_environment",
    "failure",
    "own_host",
    "part_environment",
    "read_json",
    "start_mlflow",
    "start_prefect",
    "start_worker",
    "wait_for",
    "worker_name",
    "worker_seen",
]

POOL = "local"
STARTED = 120.0  # seconds a server may take to answer: a cold disk and a busy machine included
SERVER_GRACE = 5.0  # seconds a server has to close its database
RUN_GRACE = 20.0  # seconds a flow run has to write a checkpoint
_MISSED_BEATS = 3  # after which a worker counts as gone, as for Prefect's own pages

# A person's own Prefect settings that every part keeps: how to sign in, whom to trust, how much to say. The rest would
# name another server, another database or another home.
_KEPT = frozenset(
    {
        PREFECT_PASSWORD, "PREFECT_API_SSL_CERT_FILE", "PREFECT_API_TLS_INSECURE_SKIP_VERIFY",
        "PREFECT_API_REQUEST_TIMEOUT", "PREFECT_CLIENT_CUSTOM_HEADERS", "PREFECT_LOGGING_LEVEL",
    }
)  # fmt: skip
_QUIET = {"DO_NOT_TRACK": "1", "PREFECT_SERVER_ANALYTICS_ENABLED": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}


def client_environment(workspace: Workspace, api_url: str | None = None) -> dict[str, str]:
    """What a process must have in its environment *before* it imports prefect, to use this workspace's server.

    Prefect then keeps its files in .ratchet/prefect and neither reads nor writes ~/.prefect.
    """
    home = workspace.state / "prefect"
    home.mkdir(parents=True, exist_ok=True)
    found = {**_QUIET, "PREFECT_HOME": str(home), "PREFECT_PROFILES_PATH": str(home / "profiles.toml")}
    return {**found, "PREFECT_API_URL": api_url} if api_url else found


def part_environment(
    workspace: Workspace, api_url: str | None = None, *, secrets: Collection[str] = ()
) -> dict[str, str]:
    """This process's environment without a person's own Prefect settings, and with ours.

    Args:
        secrets: which of the alerts' secrets the part needs; it is given no other.
    """
    # PREFECT__...: set inside a flow run; RATCHET_HOLDER: a server outlives the run that holds the workspace.
    kept = {
        name: value
        for name, value in os.environ.items()
        if (name in _KEPT or not name.startswith(("PREFECT_", "_MLFLOW_")))
        and name != "RATCHET_HOLDER"
        and (name not in sending.SECRETS or name in secrets)
    }
    kept |= {"PYTHONUNBUFFERED": "1", "RATCHET_ROOT": str(workspace.root), "PWD": str(workspace.root)}
    return kept | client_environment(workspace, api_url)


def own_host(settings: PlatformSettings) -> str | None:
    """Where our own Prefect server listens; None where platform.prefect_api is the address of another machine.

    Machines share their settings: the one that has this address, at our server's port, is the one that starts it.
    """
    if settings.prefect_api == "auto":
        return settings.host
    named = urlsplit(settings.prefect_api)
    if named.scheme != "http" or named.port != settings.prefect_port or not named.hostname:
        return None
    with contextlib.suppress(OSError):  # of another machine, or unknown
        for family, kind, _, _, place in socket.getaddrinfo(named.hostname, 0, type=socket.SOCK_STREAM):
            with socket.socket(family, kind) as probe:
                probe.bind(place)
            return named.hostname
    return None


@dataclass
class Starting:
    """A part on its way up."""

    part: Part
    process: "subprocess.Popen[bytes]"
    ready: Callable[[], bool]
    began: float  # seconds, time.monotonic()


def start_prefect(
    workspace: Workspace,
    *,
    host: str,
    port: int,
    database: str,
    public: str | None = None,
    allowed: Collection[str] = (),
    name: str = "prefect",
    private: bool = False,
) -> Starting:
    """Start Prefect's server.

    Args:
        database: its address, postgresql://...; "auto": SQLite in .ratchet/prefect.
        public: the address that browsers use; None: where it listens.
        allowed: further names that requests may use for it (platform.allowed_hosts).
        private: for one run of this process: no pages, no schedules, no alerts, and it ends with this process.
    """
    if database == "auto":
        database = f"sqlite+aiosqlite:///{workspace.state / 'prefect' / 'prefect.db'}"
    public = public or address(host, port)
    origins = own_origins(host, port, public=public, allowed=allowed)
    environment = part_environment(workspace, secrets=sending.SECRETS) | {
        "PREFECT_SERVER_DATABASE_CONNECTION_URL": database.replace("postgresql://", "postgresql+asyncpg://", 1),
        "PREFECT_SERVER_LOGGING_LEVEL": "WARNING",
        "PREFECT_SERVER_CORS_ALLOWED_ORIGINS": ",".join(origins),
        "PREFECT_UI_API_URL": f"{public}/api",
        "PREFECT_UI_URL": public,  # by which an alert names a run's page
        # On disk: forgotten when a server dies, the places that runs hold (flows/quotas.py) would stay taken for ever.
        "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": "prefect.server.concurrency.lease_storage.filesystem",
    }
    if password := prefect_credentials():
        if not password.isascii():
            raise PlatformError(
                f"{PREFECT_PASSWORD}: has a character outside ASCII, with which Prefect's server answers every request "
                "with an error. Allowed: ASCII. Fix: export another one"
            )
        environment["PREFECT_SERVER_API_AUTH_STRING"] = password
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
        # What blocks it has told the database of; the private one knows fewer, and would have them all told anew.
        environment["PREFECT_SERVER_MEMO_STORE_PATH"] = str(workspace.state / "prefect" / "memo_store_up.toml")
    health = f"{api_url(host, port)}/health"
    place = address(host, port)
    return _start(
        workspace,
        name,
        command,
        environment,
        place,
        lambda: answers(health),
        SERVER_GRACE,
        tied=private,
        public=public,
    )


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
    """Start MLflow's server over the database that runs are recorded in, and the address that their files go to.

    It asks for MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD where both are set. `public` and `allowed` as for
    `start_prefect`.
    """
    place = address(host, port)
    public = public or place
    origins = own_origins(host, port, public=public, allowed=allowed)
    environment = part_environment(workspace)
    environment.pop("MLFLOW_TRACKING_URI", None)
    # MLflow checks hosts and origins too, by patterns; our own filter before it is the stricter one.
    hosts = [origin.partition("://")[2] for origin in origins]
    environment |= {
        "MLFLOW_SERVER_ALLOWED_HOSTS": ",".join(dict.fromkeys(hosts)),
        "MLFLOW_SERVER_CORS_ALLOWED_ORIGINS": ",".join(origins),
    }
    script = Path(__file__).with_name("mlflow_server.py")
    command = [sys.executable, "-P", str(script), "--host", host, "--port", str(port)]
    command += ["--backend", tracking_uri, "--artifacts", artifacts, "--origins", *origins]
    return _start(
        workspace,
        "mlflow",
        command,
        environment,
        place,
        lambda: answers(f"{place}/health"),
        SERVER_GRACE,
        public=public,
    )


def start_worker(workspace: Workspace, *, api: str, runs: int) -> Starting:
    """Start a worker: so many runs at once, each a process of this Python that can import from the project folder."""
    environment = part_environment(workspace, api)
    environment["PYTHONPATH"] = _with_project(workspace, environment)
    environment["PREFECT_WORKER_QUERY_SECONDS"] = "2"  # a person waits for the run to begin; the default is 10
    name = worker_name(workspace)
    command = [sys.executable, "-m", "ratchet.platform.worker", api, name, str(runs)]
    since = datetime.now(UTC)
    return _start(workspace, "worker", command, environment, api, lambda: worker_seen(api, name, since), RUN_GRACE)


def _with_project(workspace: Workspace, environment: Mapping[str, str]) -> str:
    """PYTHONPATH by which a part can import the project's own flows."""
    return os.pathsep.join(folder for folder in (str(workspace.root), environment.get("PYTHONPATH")) if folder)


def worker_name(workspace: Workspace) -> str:
    """What the pool knows this folder's worker by: HOST:FOLDER, in characters that Prefect takes."""
    folder = str(workspace.root).strip("/")
    return f"{socket.gethostname()}:{folder.replace('/', '-').replace('%', '-')}"


def worker_seen(api: str, name: str, since: datetime) -> bool:
    """Has that worker reported to the pool after `since`, and lately?

    Raises:
        PlatformError: Prefect's server refuses or does not answer.
    """
    for worker in call(api, f"/work_pools/{POOL}/workers/filter", {}):
        if worker["name"] == name:
            heard = datetime.fromisoformat(worker["last_heartbeat_time"])
            most = _MISSED_BEATS * timedelta(seconds=worker["heartbeat_interval_seconds"] or 30)
            return heard >= since and datetime.now(UTC) - heard <= most
    return False


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
    part, process = spawn(
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
    return Starting(part, process, ready, began)


_BUSY_PAUSES = (0.5, 1.0, 2.0, 4.0, 8.0)  # seconds before each retry of a request that a busy server refused

# A proxy that the environment names is for other places; these addresses are on this machine or of its neighbours.
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def answers(url: str, *, timeout: float = 2.0) -> bool:
    """Does `url` answer with success within `timeout` seconds?"""
    try:
        with _DIRECT.open(url, timeout=timeout) as response:
            return bool(response.status == 200)
    except (OSError, ValueError):  # refused, too slow, an HTTP error, or not HTTP at all
        return False


def read_json(url: str, *, timeout: float = 5.0, credentials: str | None = None) -> Any:
    """What `url` answers in JSON, to USER:PASSWORD where given; None if it does not, or not with success."""
    headers = {"Authorization": _basic(credentials)} if credentials else {}
    try:
        with _DIRECT.open(urllib.request.Request(url, headers=headers), timeout=timeout) as response:
            return json.load(response)
    except (OSError, ValueError):
        return None


def _basic(credentials: str) -> str:
    return f"Basic {base64.b64encode(credentials.encode()).decode()}"


def call(api: str, path: str, body: object = None, *, method: str | None = None) -> Any:
    """Send one request to Prefect's API; `body` goes as JSON.

    A 503 is retried with backoff, as Prefect's own client does. The server answers it while SQLite is locked, and has
    changed nothing then.

    Raises:
        PlatformError: it refuses or does not answer.
    """
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"}
    if password := prefect_credentials():
        headers["Authorization"] = _basic(password)
    request = urllib.request.Request(api + path, data=data, headers=headers, method=method)
    for pause in (*_BUSY_PAUSES, None):
        try:
            with _DIRECT.open(request, timeout=30.0) as response:
                text = response.read()
                return json.loads(text) if text else None
        except urllib.error.HTTPError as error:
            if error.code == 401:
                raise PlatformError(
                    f"Prefect's server at {api} asks for a password: export the {PREFECT_PASSWORD} it was started with"
                ) from error
            if error.code != 503 or pause is None:
                answer = error.read().decode(errors="replace")[:500]
                raise PlatformError(f"Prefect's server refused {path} ({error.code}): {answer}") from error
            time.sleep(pause)
        except OSError as error:
            raise PlatformError(f"Prefect's server at {api} does not answer ({error})") from error
    raise AssertionError("the last attempt returns or raises")


def wait_for(starting: Iterable[Starting], *, up: Callable[[Part, float], None]) -> None:
    """Wait until all are ready; `up(part, seconds)` is called as each is.

    Raises:
        PlatformError: one has died, or is not ready in time.
    """
    pending = list(starting)
    while pending:
        for one in list(pending):
            seconds = time.monotonic() - one.began
            if one.process.poll() is not None:
                raise failure(one.part, f"ended while starting (exit status {one.process.returncode})")
            if one.ready():
                up(one.part, seconds)
                pending.remove(one)
            elif seconds > STARTED:
                raise failure(one.part, f"was not ready after {STARTED:.0f} s")
        time.sleep(0.05)


def failure(part: Part, what: str) -> PlatformError:
    """An error that shows the end of the part's log."""
    tail = part.log_tail()
    shown = f"its log {part.log} ends with:\n{tail}" if tail else f"its log {part.log} is empty"
    return PlatformError(f"{part.name}: {what}; {shown}")
