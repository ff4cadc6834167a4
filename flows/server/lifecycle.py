"""`up` and `down`: Prefect's server, MLflow's server, a worker and the model server on this machine.

Modules that import prefect are imported inside the functions: it takes seconds, which `up` spends while the servers
start.
"""

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import psutil
from filelock import FileLock, Timeout

from flows.server.client_file import remove_client_file, write_client_file
from flows.server.runs_page import runs_page
from flows.server.start_progress import StartProgress
from flows.server.status import service_state
from ratchet import files
from ratchet.errors import PlatformError, WorkspaceError
from ratchet.registry import mlflow_store
from ratchet.registry.relocation import require_here
from ratchet.servers import addresses, start
from ratchet.servers.environment import require_names, require_secrets
from ratchet.servers.http import answers
from ratchet.servers.ports import free_port_after, port_holder
from ratchet.servers.server_record import TITLES, ServerRecord, failure, start_supervisor
from ratchet.servers.supervisor import Launch, Service, end_marked
from ratchet.settings.model import Params
from ratchet.workspace import Workspace

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient

__all__ = ["Addresses", "down", "exclusive", "up"]

_PORTS = {"prefect": "platform.prefect_port", "mlflow": "platform.mlflow_port", "serving": "serving.port"}
_LOCK_TIMEOUT = 300.0  # seconds to wait for another `up` or `down`


@dataclass(frozen=True)
class Addresses:
    """Addresses of the servers; `deployments` as FLOW/DEPLOYMENT, empty if they were up to date."""

    prefect: str
    prefect_api: str
    mlflow: str
    deployments: tuple[str, ...]


def up(workspace: Workspace, params: Params, *, say: Callable[[str], None]) -> Addresses:
    """Start the services that are not up, and create the deployments of prefect.yaml.

    A service that dies afterwards is restarted by the supervisor.

    Raises:
        PlatformError: a port is taken, a service dies while starting or does not answer, prefect.yaml is refused,
            platform.prefect_api does not answer, a module of the project has the name of one of Ratchet's, or a secret
            that alerts need is missing. What this call started is stopped again.
        TrackingRefused: the project folder was moved or copied.
    """
    require_here(workspace, params.tracking)
    require_names(workspace)
    with exclusive(workspace, say):
        return _Startup(workspace, params, say).run()


def down(workspace: Workspace, *, say: Callable[[str], None]) -> None:
    """Stop only what `up` started, the worker's runs first (they write a checkpoint).

    Raises:
        PlatformError: .ratchet/servers.json is damaged.
    """
    with exclusive(workspace, say):
        record, began = ServerRecord.read(workspace), time.monotonic()
        if not record.services:
            say("nothing is up")
        alive = record.alive()

        def report(service: Service) -> None:
            how = f"stopped ({time.monotonic() - began:.1f} s)" if alive else "was gone"
            say(f"{TITLES[service.name]}: {how}")

        record.end(report)
        remove_client_file(workspace)


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


class _Startup:
    """One call of `up`.

    Attributes:
        prefect_host: host that our Prefect server listens on. None: another machine or folder runs Prefect's server.
        fresh: this call starts the supervisor.
    """

    def __init__(self, workspace: Workspace, params: Params, say: Callable[[str], None]) -> None:
        self.workspace, self.params, self.say = workspace, params, say
        self.platform = params.platform
        self.record = ServerRecord.read(workspace)
        self.fresh = not self.record.alive()
        self.tracking = mlflow_store.address(workspace, params.tracking)
        api = self.platform.prefect_api
        shared = api != "auto" and "prefect" not in self.record.services and answers(f"{api}/health")
        self.prefect_host = None if shared else start.own_host(self.platform)

    @property
    def api(self) -> str:
        """Return Prefect's API address that the worker uses."""
        if self.record.api:
            return self.record.api
        if self.prefect_host is None:
            return self.platform.prefect_api
        return addresses.api_url(self.prefect_host, self.platform.prefect_port)

    def run(self) -> Addresses:
        names = [name for name in TITLES if not self._is_elsewhere(name)]
        try:
            failures = self._start(names) if self.fresh else self._restart_silent(names)
            return self._configure(failures)
        except BaseException:
            if self.fresh:
                ServerRecord.read(self.workspace).end()
                remove_client_file(self.workspace)
            raise

    def _is_elsewhere(self, name: str) -> bool:
        """Return whether this call must not start a service, and say who does."""
        kind = urlsplit(self.tracking).scheme
        if name == "mlflow" and kind in ("http", "https"):
            elsewhere = f"{self.tracking} (tracking.uri; not ours to start)"
        elif name == "serving":
            return not self._may_serve()
        elif name == "worker" or self.prefect_host is not None or (name == "mlflow" and kind == "sqlite"):
            return False
        elif name == "mlflow":
            elsewhere = "left to the machine that runs Prefect's server"
        elif answers(f"{self.platform.prefect_api}/health", timeout=10.0):
            elsewhere = f"{self.platform.prefect_api} (platform.prefect_api; not ours to start)"
        else:
            raise PlatformError(
                f"platform.prefect_api: {self.platform.prefect_api} does not answer, and is no address of this machine "
                f"at platform.prefect_port ({self.platform.prefect_port}). Fix: start it there (`ratchet up`), or "
                "correct the address"
            )
        self.say(f"{TITLES[name]}: {elsewhere}")
        return True

    def _may_serve(self) -> bool:
        """Return whether the model server is to be started; say why not."""
        from ratchet.serving.keys import KeyStore, require_key

        if not self.params.serving.enabled:
            return False
        try:
            store, always = KeyStore.of(self.workspace), self.params.serving.keys == "required"
            require_key(store, self.platform.host, always=always)
        except PlatformError as error:
            self.say(f"{TITLES['serving']}: not started. {error}")
            return False
        return True

    def _start(self, names: list[str]) -> dict[str, int]:
        """Start all services. Most of the servers' time is imports and migrations, on one core each.

        Returns: for each service, the number of restarts above which it has failed.
        """
        if self.record.services:
            self.say(f"supervisor: process {self.record.pid} is gone; restarting all services")
            self.record.end()
            self.record = ServerRecord.read(self.workspace)
        self._check_ports(names)
        addresses.require_authentication(
            self.platform,
            prefect=self.prefect_host,
            mlflow=self.platform.host if "mlflow" in names else None,
        )
        if self.prefect_host is not None:
            require_secrets(self.params.alerts, os.environ)
        self.say(f"starting {', '.join(TITLES[name] for name in names)}; runs can begin after the last line")
        launches = [self._launch(name) for name in names]
        process = start_supervisor(self.workspace, launches)
        process.returncode = 0  # it outlives this process, which must neither wait for it nor warn
        self.record = ServerRecord.read(self.workspace)
        if not self.record.services:
            raise failure(launches[0].service, "the supervisor ended while starting")
        return dict.fromkeys(names, 0)

    def _launch(self, name: str) -> Launch:
        if name == "prefect":
            return start.prefect_launch(self.workspace, self.platform, self.prefect_host)
        if name == "worker":
            return start.worker_launch(self.workspace, self.platform, api=self.api)
        if name == "serving":
            return start.serving_launch(self.workspace, self.platform.host, self.params.serving)
        artifacts = mlflow_store.artifacts(self.workspace, self.params.tracking)
        return start.mlflow_launch(self.workspace, self.platform, tracking_uri=self.tracking, artifacts=artifacts)

    def _restart_silent(self, names: list[str]) -> dict[str, int]:
        """End the services that do not answer, so that the supervisor restarts them. Returns as `_start`."""
        services = self.record.services
        if set(names) != set(services) or ("prefect" not in names and self.api != self.platform.prefect_api):
            raise PlatformError(
                f"the settings now ask for {', '.join(names)} (platform.prefect_api, tracking.uri), and "
                f"{', '.join(services)} are up. Fix: `ratchet down`, then `ratchet up`"
            )
        if server := services.get("prefect"):
            try:
                environment: Mapping[str, str] = psutil.Process(server.pid).environ() if server.pid else os.environ
            except psutil.Error:  # it has died since the record was written
                environment = os.environ
            require_secrets(self.params.alerts, environment)
        failures = {}
        for name, service in services.items():
            if service_state(self.workspace, self.record, service) == "up":
                shown = runs_page(service, self.params.tracking.experiment) if name == "mlflow" else service.shown
                self.say(f"{TITLES[name]}: already up, {shown}")
                continue
            failures[name] = service.restarts
            if service.pid:  # else the supervisor is about to restart it
                self.say(f"{TITLES[name]}: process {service.pid} does not answer; restarting it")
                end_marked(service.mark, grace=service.grace)
                failures[name] += 1
        return failures

    def _check_ports(self, names: list[str]) -> None:
        host, settings = self.platform.host, {name: setting for name, setting in _PORTS.items() if name in names}
        wanted = {
            "prefect": self.platform.prefect_port,
            "mlflow": self.platform.mlflow_port,
            "serving": self.params.serving.port,
        }
        for name, setting in settings.items():
            port, listening = wanted[name], self.prefect_host or host if name == "prefect" else host
            for other in settings:
                if other != name and wanted[other] == port:
                    free = free_port_after(host, port, besides=set(wanted.values()))
                    raise PlatformError(
                        f"{setting} and {settings[other]} are both {port}. Allowed: different ports. Fix: for example "
                        f"`ratchet set {settings[other]}={free}`"
                    )
            if holder := port_holder(listening, port):
                free = free_port_after(listening, port, besides=set(wanted.values()))
                fix = f"stop that process, or use another port: `ratchet set {setting}={free}`"
                api = addresses.api_url(listening, port)
                if name == "prefect" and answers(f"{api}/health"):
                    fix += f"; or share that server: `ratchet set platform.prefect_api={api}`"
                if name == "serving":
                    fix += "; or do without: `ratchet set serving.enabled=false`"
                raise PlatformError(f"{setting}: {port} is taken by {holder}. Fix: {fix}")

    def _configure(self, failures: Mapping[str, int]) -> Addresses:
        """Wait for the services, and set up what Prefect's server has to know."""
        import flows.server.alerts
        import flows.server.deployments
        from flows.server.client import prefect_client

        self._wait({name: limit for name, limit in failures.items() if name != "worker"})
        if not write_client_file(self.workspace, self.api):
            self.say(f"keeping your own prefect.toml; for Prefect's commands `export PREFECT_API_URL={self.api}`")
        with prefect_client(self.api) as client:
            if self.prefect_host is not None and (
                receivers := flows.server.alerts.set_alerts(client, self.params.alerts)
            ):
                self.say(f"alerts: to {', '.join(receivers)}")
            deployments = self._deploy(client, failures)
        mlflow = ServerRecord.read(self.workspace).services.get("mlflow")
        tracking = mlflow.address if mlflow else self.tracking
        return Addresses(self.api.removesuffix("/api"), self.api, tracking, tuple(deployments))

    def _deploy(self, client: "SyncPrefectClient", failures: Mapping[str, int]) -> list[str]:
        """Create the pool, and the deployments while the worker starts. Return the new deployments."""
        from flows.server import deployments
        from flows.server.limits import set_limits

        deployments.create_pool(client)
        digest, note = deployments.deployment_digest(self.workspace), deployments.note(self.workspace)
        if self.prefect_host is None:  # machines share the deployments, and creating them again resets their schedules
            outdated = not deployments.deployed(client)
        else:
            outdated = self.fresh or not note.exists() or note.read_text() != digest
            set_limits(client, self.platform)
        deploying = deployments.begin_deploy(self.workspace, self.api) if outdated else None
        try:
            self._wait({name: limit for name, limit in failures.items() if name == "worker"})
            names = deployments.finish_deploy(deploying, client) if deploying else []
        finally:
            if deploying and deploying.poll() is None:
                deploying.kill()
                deploying.wait()
        files.write_text(note, digest)  # each time: the pressure watch reads the time of this file
        if names:
            self.say(f"deployments: {', '.join(names)}")
        return names

    def _wait(self, failures: Mapping[str, int]) -> None:
        """Wait until services are up; `failures` as `_start` returns them."""
        pending, progress = dict(failures), StartProgress(start.START_TIMEOUT)
        while pending:
            record = ServerRecord.read(self.workspace)
            for name, limit in list(pending.items()):
                service = record.services.get(name, self.record.services[name])
                if service.restarts > limit or not record.alive():
                    raise failure(service, "ended while starting")
                if service_state(self.workspace, record, service) == "up":
                    self._report(service)
                    del pending[name]
                elif progress.has_ended(service):
                    raise failure(
                        service, f"was not ready after {time.time() - service.began:.0f} s, and computes nothing"
                    )
            time.sleep(0.05)

    def _report(self, service: Service) -> None:
        runs = "one run" if self.platform.worker_runs == 1 else f"{self.platform.worker_runs} runs"
        where = f"work pool {start.POOL!r}, {runs} at a time" if service.name == "worker" else service.shown
        if service.name == "mlflow":
            where = runs_page(service, self.params.tracking.experiment)
        self.say(f"{TITLES[service.name]}: {where} ({time.time() - service.began:.1f} s)")
