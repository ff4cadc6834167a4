"""`up` and `down`: Prefect's server, MLflow's server and a worker on this machine."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from filelock import FileLock, Timeout

from ratchet.errors import PlatformError, WorkspaceError
from ratchet.platform import addresses, alerts, deployments, quotas, servers
from ratchet.platform.alerts import NOBODY
from ratchet.platform.condition import TITLES, condition
from ratchet.platform.processes import Part, free_port_after, port_holder
from ratchet.platform.record import Record
from ratchet.settings.model import AlertSettings, PlatformSettings
from ratchet.workspace import Workspace

__all__ = ["Addresses", "down", "turn", "up"]

_TURN = 300.0  # seconds to wait for another `up` or `down`
_GRACE = {"prefect": servers.SERVER_GRACE, "mlflow": servers.SERVER_GRACE, "worker": servers.RUN_GRACE}


@dataclass(frozen=True)
class Addresses:
    """Where the servers are, as http addresses; `deployments` as FLOW/DEPLOYMENT, empty if they were up to date."""

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
    told: AlertSettings = NOBODY,
    say: Callable[[str], None],
) -> Addresses:
    """Start what is not up yet, and create the deployments of prefect.yaml. What dies afterwards is started again.

    Args:
        tracking_uri: database that MLflow's server serves; an http address is a server already, and none is started.
        artifacts: address that the files of new experiments go to.
        told: who is told of trouble; nobody unless it says so.
        say: shown to a person, a line at a time.

    Raises:
        PlatformError: a port is taken, a part dies while starting or does not answer, prefect.yaml is refused,
            platform.prefect_api does not answer, or a secret that alerts need is not there. What this call had started
            is stopped again.
    """
    with turn(workspace, say):
        climb = _Climb(workspace, settings, tracking_uri, artifacts, told, say, Record.read(workspace))
        try:
            return climb.run()
        except BaseException:
            climb.undo()
            raise


def down(workspace: Workspace, *, say: Callable[[str], None]) -> None:
    """Stop what `up` started, the runs of its worker first (they write a checkpoint), and nothing else.

    Raises:
        PlatformError: .ratchet/servers.json is damaged.
    """
    with turn(workspace, say):
        record = Record.read(workspace)
        if not record.parts:
            say("nothing is up")
        api = record.api
        for name in ("worker", "mlflow", "prefect"):
            _stop(record, name, say)
            if name == "worker":
                _settle(workspace, api, say, missed=False)
        deployments.unpoint_clients(workspace)


def _stop(record: Record, name: str, say: Callable[[str], None]) -> None:
    part = record.parts.get(name)
    if part is None:
        return
    alive, began = part.alive(), time.monotonic()
    killed = record.end(name, grace=_GRACE[name])
    how = f"{killed} processes had to be killed, " if killed else ""
    say(f"{TITLES[name]}: stopped ({how}{time.monotonic() - began:.1f} s)" if alive else f"{TITLES[name]}: was gone")


def _settle(workspace: Workspace, api: str | None, say: Callable[[str], None], *, missed: bool) -> None:
    """The true state for the runs that the worker left behind, where Prefect's server can still be told."""
    if api is None or not servers.answers(f"{api}/health"):
        return
    try:
        for line in deployments.settle_runs(api, servers.worker_name(workspace), missed=missed):
            say(line)
    except PlatformError as error:  # the next `up` does it
        say(f"left as they are: runs that were cut off ({error})")


@contextmanager
def turn(workspace: Workspace, say: Callable[[str], None]) -> Iterator[None]:
    """Be the only `up` or `down` in this workspace.

    Raises:
        PlatformError: another is at work for minutes.
        WorkspaceError: the folder cannot be written.
    """
    try:
        workspace.state.mkdir(exist_ok=True)
        lock = FileLock(workspace.state / "platform.lock")
        try:
            lock.acquire(timeout=0)
        except Timeout:
            say("another `ratchet up` or `ratchet down` is at work in this folder: waiting for it")
            lock.acquire(timeout=_TURN)
    except Timeout:
        raise PlatformError(
            f"{workspace.root}: another `ratchet up` or `ratchet down` is still at work after {_TURN:.0f} s: "
            "end it, then try again"
        ) from None
    except OSError as error:
        raise WorkspaceError(
            f"{workspace.state}: cannot be written ({error.strerror}): make it writable for this user"
        ) from error
    try:
        yield
    finally:
        lock.release()


@dataclass
class _Climb:
    """One call of `up`."""

    workspace: Workspace
    settings: PlatformSettings
    tracking_uri: str
    artifacts: str
    told: AlertSettings
    say: Callable[[str], None]
    record: Record
    started: dict[str, servers.Starting] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # None: Prefect's server is another machine's, or another folder's on this one.
        self.prefect_host = None if self._is_shared() else servers.own_host(self.settings)

    def _is_shared(self) -> bool:
        """Does the server that platform.prefect_api names run already, started from another folder?"""
        api = self.settings.prefect_api
        return api != "auto" and "prefect" not in self.record.parts and servers.answers(f"{api}/health")

    @property
    def api(self) -> str:
        """Prefect's API that the worker goes by, once its server stands."""
        return self.settings.prefect_api if self.prefect_host is None else f"{self.record.parts['prefect'].address}/api"

    def run(self) -> Addresses:
        missing = [name for name in TITLES if not self._stands(name)]
        self._check_ports(missing)
        self._require_authentication(missing)
        self._require_secrets(missing)
        self._start_servers(missing)
        api = self.api
        self._arrange_alerts(api)
        made = self._start_work(api, missing)
        if not deployments.point_clients(self.workspace, api):
            self.say(f"prefect.toml is your own and stays: for Prefect's commands `export PREFECT_API_URL={api}`")
        for starting in self.started.values():
            if starting.process.poll() is not None:
                raise servers.failure(starting.part, "ended while the others started")
        for part in self.record.parts.values():
            part.keep()
        for starting in self.started.values():
            starting.process.returncode = 0  # it outlives this process: not to be waited for, not to be warned of
        self.record.write()  # by which who looks after the machine knows that this is done
        mlflow = self.record.parts.get("mlflow")
        where = mlflow.address if mlflow else self.tracking_uri
        return Addresses(api.removesuffix("/api"), api, where, tuple(made))

    def undo(self) -> None:
        """Stop what this call started, the last first."""
        for name in reversed(self.started):
            self.record.end(name, grace=_GRACE[name])
            self.started[name].process.wait()
        if "prefect" in self.started or not self.record.parts:
            deployments.unpoint_clients(self.workspace)

    def _stands(self, name: str) -> bool:
        """Is this part up? What a dead or a silent one left behind is ended."""
        if elsewhere := self._elsewhere(name):
            self.record.end(name, grace=_GRACE[name])
            self.say(f"{TITLES[name]}: {elsewhere}")
            return True
        part = self.record.parts.get(name)
        if part is None:
            return False
        goes_by = part.address if name == "worker" else None
        if condition(part, self.workspace) == "up" and goes_by in (None, self._standing_api()):
            self.say(f"{TITLES[name]}: already up, {part.shown}")
            return True
        self.say(f"{TITLES[name]}: process {part.pid} is gone or does not answer: starting it anew")
        self.record.end(name, grace=_GRACE[name])
        return False

    def _standing_api(self) -> str | None:
        """The API's address as far as there is one yet."""
        return self.api if self.prefect_host is None or "prefect" in self.record.parts else None

    def _elsewhere(self, name: str) -> str | None:
        """Where a part is that is not this call's to start; None: it is."""
        kind = urlsplit(self.tracking_uri).scheme
        if name == "mlflow" and kind in ("http", "https"):
            return f"{self.tracking_uri} (tracking.uri; not ours to start)"
        if self.prefect_host is not None or name == "worker":
            return None
        if name == "mlflow":
            return "left to the machine that Prefect's server is on" if kind != "sqlite" else None
        if not servers.answers(f"{self.settings.prefect_api}/health", timeout=10.0):
            raise PlatformError(
                f"platform.prefect_api: {self.settings.prefect_api} does not answer, and is no address of this machine "
                f"at platform.prefect_port ({self.settings.prefect_port}): start it there (`ratchet up`), or mend it"
            )
        return f"{self.settings.prefect_api} (platform.prefect_api; not ours to start)"

    def _require_authentication(self, missing: list[str]) -> None:
        addresses.require_authentication(
            self.settings,
            prefect=self.prefect_host if "prefect" in missing else None,
            mlflow=self.settings.host if "mlflow" in missing else None,
        )

    def _check_ports(self, missing: list[str]) -> None:
        wanted = {"prefect": self.settings.prefect_port, "mlflow": self.settings.mlflow_port}
        hosts = {"prefect": self.prefect_host or self.settings.host, "mlflow": self.settings.host}
        if len(set(wanted.values())) == 1:
            raise PlatformError(
                f"platform.prefect_port and platform.mlflow_port are both {self.settings.prefect_port}: "
                f"give one another port, for example `ratchet set platform.mlflow_port={self.settings.mlflow_port + 1}`"
            )
        for name, port in wanted.items():
            holder = port_holder(hosts[name], port) if name in missing else None
            if holder:
                free = free_port_after(hosts[name], port, besides=set(wanted.values()))
                api = servers.api_url(hosts[name], port)
                share = (
                    f"; or share that server: `ratchet set platform.prefect_api={api}`"
                    if name == "prefect" and servers.answers(f"{api}/health")
                    else ""
                )
                raise PlatformError(
                    f"platform.{name}_port: {port} is taken by {holder}: stop that, or take another port, "
                    f"for example `ratchet set platform.{name}_port={free}`{share}"
                )

    def _start_servers(self, missing: list[str]) -> None:
        """Both at once: most of their time is imports and migrations, one core each."""
        starting = []
        if "prefect" in missing:
            assert self.prefect_host is not None, "else it stands"
            host, port, database = self.prefect_host, self.settings.prefect_port, self.settings.prefect_database
            prefect = servers.start_prefect(
                self.workspace,
                host=host,
                port=port,
                database=database,
                public=addresses.public_prefect(self.settings, host),
                allowed=self.settings.allowed_hosts,
            )
            starting.append(self._begun(prefect))
        if "mlflow" in missing:
            host, port, uri = self.settings.host, self.settings.mlflow_port, self.tracking_uri
            mlflow = servers.start_mlflow(
                self.workspace,
                host=host,
                port=port,
                tracking_uri=uri,
                artifacts=self.artifacts,
                public=addresses.public_mlflow(self.settings),
                allowed=self.settings.allowed_hosts,
            )
            starting.append(self._begun(mlflow))
        servers.wait_for(starting, up=self._tell)

    def _require_secrets(self, missing: list[str]) -> None:
        if self.prefect_host is None:
            return  # who is told is said where Prefect's server is
        server = None if "prefect" in missing else self.record.parts["prefect"].command()
        alerts.require_secrets(self.told, server.environ() if server else os.environ)

    def _arrange_alerts(self, api: str) -> None:
        if self.prefect_host is not None and (who := alerts.arrange(api, self.told)):
            self.say(f"alerts: to {who}")

    def _start_work(self, api: str, missing: list[str]) -> list[str]:
        """The pool, then the worker and the deployments beside each other."""
        digest = deployments.deployment_digest(self.workspace)
        deployments.create_pool(api)
        if self.prefect_host is None:  # they are one for all machines, and their schedules and triggers begin anew
            fresh = not deployments.deployed(api)
        else:
            fresh = "prefect" in self.started or digest != self.record.deployed
            quotas.tell(api, self.settings)
        deploying = deployments.begin_deploy(self.workspace, api) if fresh else None
        try:
            if "worker" in missing:
                _settle(self.workspace, api, self.say, missed=True)
                worker = servers.start_worker(self.workspace, api=api, runs=self.settings.worker_runs)
                servers.wait_for([self._begun(worker)], up=self._tell)
            if deploying is None:
                return []
            made = deployments.finish_deploy(deploying, api)
        finally:
            if deploying and deploying.poll() is None:
                deploying.kill()
                deploying.wait()
        self.record.deployed = digest
        self.record.write()
        self.say(f"deployments: {', '.join(made)}")
        return made

    def _begun(self, starting: servers.Starting) -> servers.Starting:
        self.record.add(starting.part)
        self.started[starting.part.name] = starting
        return starting

    def _tell(self, part: Part, seconds: float) -> None:
        runs = "one run" if self.settings.worker_runs == 1 else f"{self.settings.worker_runs} runs"
        where = f"work pool {servers.POOL!r}, {runs} at a time" if part.name == "worker" else part.shown
        self.say(f"{TITLES[part.name]}: {where} ({seconds:.1f} s)")
