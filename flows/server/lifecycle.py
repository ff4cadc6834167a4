"""`up` and `down`: Prefect's server, MLflow's server and a worker on this machine.

Modules that import prefect are imported inside the functions: it takes seconds, which `up` spends while the servers
start, and which `down` needs only if a worker's runs have to be corrected.
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from filelock import FileLock, Timeout

from flows.server.client_file import remove_client_file, write_client_file
from flows.server.heartbeat import worker_is_online
from ratchet.errors import PlatformError, WorkspaceError
from ratchet.servers import addresses, start
from ratchet.servers.environment import require_secrets
from ratchet.servers.http import answers
from ratchet.servers.ports import free_port_after, port_holder
from ratchet.servers.processes import Service
from ratchet.servers.record import Record
from ratchet.servers.start import GRACE, Starting
from ratchet.servers.status import TITLES, service_state
from ratchet.settings.model import AlertSettings, PlatformSettings
from ratchet.workspace import Workspace

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient

__all__ = ["NO_ALERTS", "Addresses", "down", "exclusive", "up"]

NO_ALERTS = AlertSettings()
_LOCK_TIMEOUT = 300.0  # seconds to wait for another `up` or `down`


@dataclass(frozen=True)
class Addresses:
    """Addresses of the servers; `deployments` as FLOW/DEPLOYMENT, empty if they were up to date."""

    prefect: str
    prefect_api: str
    mlflow: str
    deployments: tuple[str, ...]


def up(
    workspace: Workspace,
    settings: PlatformSettings,
    *,
    tracking_uri: str,
    artifacts: str,
    alerts: AlertSettings = NO_ALERTS,
    say: Callable[[str], None],
) -> Addresses:
    """Start the services that are not up, and create the deployments of prefect.yaml.

    A service that dies afterwards is restarted by its supervisor.

    Args:
        tracking_uri: database that MLflow's server serves. An http address is a server already; none is started.
        artifacts: address that the files of new experiments go to.
        say: gets the lines for the user.

    Raises:
        PlatformError: a port is taken, a service dies while starting or does not answer, prefect.yaml is refused,
            platform.prefect_api does not answer, or a secret that alerts need is missing. Everything that this call
            started is stopped again.
    """
    with exclusive(workspace, say):
        startup = _Startup(workspace, settings, tracking_uri, artifacts, alerts, say, Record.read(workspace))
        try:
            return startup.run()
        except BaseException:
            startup.undo()
            raise


def down(workspace: Workspace, *, say: Callable[[str], None]) -> None:
    """Stop only what `up` started, the worker's runs first (they write a checkpoint).

    Raises:
        PlatformError: .ratchet/servers.json is damaged.
    """
    with exclusive(workspace, say):
        record = Record.read(workspace)
        if not record.services:
            say("nothing is up")
        api = record.api
        for name in ("worker", "mlflow", "prefect"):
            _stop(record, name, say)
            if name == "worker" and api and answers(f"{api}/health"):
                _close_runs(workspace, api, say, missed=False)
        remove_client_file(workspace)


def _stop(record: Record, name: str, say: Callable[[str], None]) -> None:
    service = record.services.get(name)
    if service is None:
        return
    alive, began = service.alive(), time.monotonic()
    killed = record.end(name, grace=GRACE[name])
    how = f"{killed} processes had to be killed, " if killed else ""
    say(f"{TITLES[name]}: stopped ({how}{time.monotonic() - began:.1f} s)" if alive else f"{TITLES[name]}: was gone")


def _close_runs(workspace: Workspace, api: str, say: Callable[[str], None], *, missed: bool) -> None:
    """Correct the state of the runs that the worker left behind."""
    from flows.server.client import prefect_client
    from flows.server.interrupted_runs import close_interrupted_runs

    try:
        with prefect_client(api) as client:
            for line in close_interrupted_runs(client, start.worker_name(workspace), missed=missed):
                say(line)
    except PlatformError as error:
        say(f"interrupted runs keep their state until the next `ratchet up` ({error})")


@contextmanager
def exclusive(workspace: Workspace, say: Callable[[str], None]) -> Iterator[None]:
    """Hold the lock of `up` and `down` in this workspace.

    Raises:
        PlatformError: another holds it for minutes.
        WorkspaceError: the folder cannot be written.
    """
    try:
        workspace.state.mkdir(exist_ok=True)
        lock = FileLock(workspace.state / "platform.lock")
        try:
            lock.acquire(timeout=0)
        except Timeout:
            say("waiting for another `ratchet up` or `ratchet down` in this folder")
            lock.acquire(timeout=_LOCK_TIMEOUT)
    except Timeout:
        raise PlatformError(
            f"{workspace.root}: another `ratchet up` or `ratchet down` still runs after {_LOCK_TIMEOUT:.0f} s. "
            "Fix: end it, then try again"
        ) from None
    except OSError as error:
        raise WorkspaceError(
            f"{workspace.state}: cannot be written ({error.strerror}). Fix: make it writable for this user"
        ) from error
    try:
        yield
    finally:
        lock.release()


@dataclass
class _Startup:
    """One call of `up`."""

    workspace: Workspace
    settings: PlatformSettings
    tracking_uri: str
    artifacts: str
    alerts: AlertSettings
    say: Callable[[str], None]
    record: Record
    started: dict[str, Starting] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # None: another machine, or another folder on this one, runs Prefect's server.
        self.prefect_host = None if self._is_shared() else start.own_host(self.settings)

    def _is_shared(self) -> bool:
        """Return whether the server that platform.prefect_api names was started from another folder."""
        api = self.settings.prefect_api
        return api != "auto" and "prefect" not in self.record.services and answers(f"{api}/health")

    @property
    def api(self) -> str:
        """Return Prefect's API address that the worker uses, once its server runs."""
        if self.prefect_host is None:
            return self.settings.prefect_api
        return f"{self.record.services['prefect'].address}/api"

    def run(self) -> Addresses:
        missing = [name for name in TITLES if not self._is_up(name)]
        self._check_ports(missing)
        addresses.require_authentication(
            self.settings,
            prefect=self.prefect_host if "prefect" in missing else None,
            mlflow=self.settings.host if "mlflow" in missing else None,
        )
        self._require_secrets(missing)
        self._start_servers(missing)
        from flows.server.client import prefect_client

        api = self.api
        with prefect_client(api) as client:
            self._set_alerts(client)
            deployments = self._start_work(client, missing)
        if not write_client_file(self.workspace, api):
            self.say(f"keeping your own prefect.toml; for Prefect's commands `export PREFECT_API_URL={api}`")
        self._finish()
        mlflow = self.record.services.get("mlflow")
        tracking = mlflow.address if mlflow else self.tracking_uri
        return Addresses(api.removesuffix("/api"), api, tracking, tuple(deployments))

    def undo(self) -> None:
        """Stop what this call started, in reverse order."""
        for name in reversed(self.started):
            self.record.end(name, grace=GRACE[name])
            self.started[name].process.wait()
        if "prefect" in self.started or not self.record.services:
            remove_client_file(self.workspace)

    def _finish(self) -> None:
        """Signal to the supervisors that their services are up, and write the record."""
        for starting in self.started.values():
            if starting.process.poll() is not None:
                raise start.failure(starting.service, "ended while the others started")
        for service in self.record.services.values():
            service.keep()
        for starting in self.started.values():
            starting.process.returncode = 0  # it outlives this process, which must neither wait for it nor warn
        self.record.write()  # the pressure watch reads the time of this file

    def _is_up(self, name: str) -> bool:
        """Return whether a service is up. One that is dead or silent is ended."""
        if elsewhere := self._elsewhere(name):
            self.record.end(name, grace=GRACE[name])
            self.say(f"{TITLES[name]}: {elsewhere}")
            return True
        service = self.record.services.get(name)
        if service is None:
            return False
        state = service_state(service, lambda worker, since: worker_is_online(self.workspace, worker, since))
        if state == "up" and (name != "worker" or service.address == self._current_api()):
            self.say(f"{TITLES[name]}: already up, {service.shown}")
            return True
        self.say(f"{TITLES[name]}: process {service.pid} is gone or does not answer; restarting it")
        self.record.end(name, grace=GRACE[name])
        return False

    def _current_api(self) -> str | None:
        """Return the API's address; None if its server has to be started first."""
        return self.api if self.prefect_host is None or "prefect" in self.record.services else None

    def _elsewhere(self, name: str) -> str | None:
        """Say who starts a service that this call must not start; None: this call starts it."""
        kind = urlsplit(self.tracking_uri).scheme
        if name == "mlflow" and kind in ("http", "https"):
            return f"{self.tracking_uri} (tracking.uri; not ours to start)"
        if self.prefect_host is not None or name == "worker":
            return None
        if name == "mlflow":
            return "left to the machine that runs Prefect's server" if kind != "sqlite" else None
        if not answers(f"{self.settings.prefect_api}/health", timeout=10.0):
            raise PlatformError(
                f"platform.prefect_api: {self.settings.prefect_api} does not answer, and is no address of this machine "
                f"at platform.prefect_port ({self.settings.prefect_port}). Fix: start it there (`ratchet up`), or "
                "correct the address"
            )
        return f"{self.settings.prefect_api} (platform.prefect_api; not ours to start)"

    def _check_ports(self, missing: list[str]) -> None:
        wanted = {"prefect": self.settings.prefect_port, "mlflow": self.settings.mlflow_port}
        hosts = {"prefect": self.prefect_host or self.settings.host, "mlflow": self.settings.host}
        if len(set(wanted.values())) == 1:
            raise PlatformError(
                f"platform.prefect_port and platform.mlflow_port are both {self.settings.prefect_port}. Allowed: two "
                f"different ports. Fix: for example `ratchet set platform.mlflow_port={self.settings.mlflow_port + 1}`"
            )
        for name, port in wanted.items():
            holder = port_holder(hosts[name], port) if name in missing else None
            if holder:
                free = free_port_after(hosts[name], port, besides=set(wanted.values()))
                fix = f"stop that process, or use another port: `ratchet set platform.{name}_port={free}`"
                api = addresses.api_url(hosts[name], port)
                if name == "prefect" and answers(f"{api}/health"):
                    fix += f"; or share that server: `ratchet set platform.prefect_api={api}`"
                raise PlatformError(f"platform.{name}_port: {port} is taken by {holder}. Fix: {fix}")

    def _start_servers(self, missing: list[str]) -> None:
        """Start both at once: most of their time is imports and migrations, on one core each."""
        settings, starting = self.settings, []
        if "prefect" in missing:
            assert self.prefect_host is not None, "else it is up"
            prefect = start.start_prefect(
                self.workspace,
                host=self.prefect_host,
                port=settings.prefect_port,
                database=settings.prefect_database,
                public=addresses.public_prefect(settings, self.prefect_host),
                allowed=settings.allowed_hosts,
            )
            starting.append(self._add(prefect))
        if "mlflow" in missing:
            mlflow = start.start_mlflow(
                self.workspace,
                host=settings.host,
                port=settings.mlflow_port,
                tracking_uri=self.tracking_uri,
                artifacts=self.artifacts,
                public=addresses.public_mlflow(settings),
                allowed=settings.allowed_hosts,
            )
            starting.append(self._add(mlflow))
        import flows.server.alerts
        import flows.server.deployments  # noqa: F401  (imports prefect while the servers start)

        start.wait_until_ready(starting, up=self._report)

    def _require_secrets(self, missing: list[str]) -> None:
        """Check the alerts' secrets, on the machine that runs Prefect's server."""
        if self.prefect_host is not None:
            server = None if "prefect" in missing else self.record.services["prefect"].command()
            require_secrets(self.alerts, server.environ() if server else os.environ)

    def _set_alerts(self, client: "SyncPrefectClient") -> None:
        """Set the alerts up, on the machine that runs Prefect's server."""
        from flows.server.alerts import set_alerts

        if self.prefect_host is not None and (receivers := set_alerts(client, self.alerts)):
            self.say(f"alerts: to {', '.join(receivers)}")

    def _start_work(self, client: "SyncPrefectClient", missing: list[str]) -> list[str]:
        """Create the pool, then start the worker while the deployments are created. Return the new deployments."""
        from flows.server import deployments
        from flows.server.limits import set_limits

        digest = deployments.deployment_digest(self.workspace)
        deployments.create_pool(client)
        if self.prefect_host is None:  # machines share the deployments, and creating them again resets their schedules
            outdated = not deployments.deployed(client)
        else:
            outdated = "prefect" in self.started or digest != self.record.deployed
            set_limits(client, self.settings)
        deploying = deployments.begin_deploy(self.workspace, self.api) if outdated else None
        try:
            if "worker" in missing:
                self._start_worker()
            if deploying is None:
                return []
            names = deployments.finish_deploy(deploying, client)
        finally:
            if deploying and deploying.poll() is None:
                deploying.kill()
                deploying.wait()
        self.record.deployed = digest
        self.record.write()
        self.say(f"deployments: {', '.join(names)}")
        return names

    def _start_worker(self) -> None:
        _close_runs(self.workspace, self.api, self.say, missed=True)
        since = datetime.now(UTC)
        worker: Starting = start.start_worker(
            self.workspace,
            api=self.api,
            runs=self.settings.worker_runs,
            ready=lambda: worker_is_online(self.workspace, worker.service, since),
        )
        start.wait_until_ready([self._add(worker)], up=self._report)

    def _add(self, starting: Starting) -> Starting:
        self.record.add(starting.service)
        self.started[starting.service.name] = starting
        return starting

    def _report(self, service: Service, seconds: float) -> None:
        runs = "one run" if self.settings.worker_runs == 1 else f"{self.settings.worker_runs} runs"
        where = f"work pool {start.POOL!r}, {runs} at a time" if service.name == "worker" else service.shown
        self.say(f"{TITLES[service.name]}: {where} ({seconds:.1f} s)")
