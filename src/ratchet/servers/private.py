"""Servers that end with this process, such as a Prefect server for one run if the server of `up` is not running.

Prefect's own temporary server starts only when the flow is called. This one starts first, while the imports and checks
before the flow still run. It keeps its runs in the workspace's database.
"""

import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from ratchet.servers.addresses import api_url
from ratchet.servers.http import answers
from ratchet.servers.ports import free_port
from ratchet.servers.server_record import ServerRecord, failure, start_supervisor
from ratchet.servers.start import START_TIMEOUT, prefect_launch
from ratchet.servers.supervisor import Launch, end_marked
from ratchet.settings.model import PlatformSettings
from ratchet.workspace import Workspace

__all__ = ["PrefectServer", "TiedServers", "prefect_server"]

_HOST = "127.0.0.1"
_DEFAULT = PlatformSettings()


class TiedServers:
    """Servers that end with this process, however it dies."""

    def __init__(self, workspace: Workspace, launches: Sequence[Launch]) -> None:
        """Start them. Returns at once."""
        self.services = [launch.service for launch in launches]
        self._process: subprocess.Popen[bytes] | None = start_supervisor(workspace, launches, tied=True)

    def wait(self) -> None:
        """Wait until all of them answer.

        Raises:
            PlatformError: one died or does not answer; all are stopped.
        """
        began = time.monotonic()
        for service in self.services:
            while not answers(service.health):
                status = self._process.poll() if self._process else 0
                late = time.monotonic() - began > START_TIMEOUT
                if late or status is not None:
                    self.stop()
                    how = f"was not ready after {START_TIMEOUT:.0f} s" if late else "ended while starting"
                    raise failure(service, how if late else f"{how} (exit status {status})")
                time.sleep(0.05)

    def stop(self) -> None:
        """End them. May be called again."""
        if self._process is None:
            return
        process, self._process = self._process, None
        assert process.stdin is not None
        process.stdin.close()  # the supervisor ends when it sees this, or when this process dies
        try:
            process.wait(20.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for service in self.services:
            end_marked(service.mark, grace=0.0)


@dataclass
class PrefectServer:
    """The server that a run in this process uses: the one of `up`, or a private one.

    Attributes:
        api_url: known at once; it answers after `wait`.
    """

    api_url: str
    _servers: TiedServers | None

    @classmethod
    def begin(cls, workspace: Workspace, platform: PlatformSettings = _DEFAULT) -> "PrefectServer":
        """Find the server of `up` or the one of platform.prefect_api, or start one. Returns at once."""
        record = ServerRecord.read(workspace)
        shared = record.services.get("prefect")
        if shared and record.alive() and answers(shared.health):
            return cls(f"{shared.address}/api", None)
        if platform.prefect_api != "auto" and answers(f"{platform.prefect_api}/health"):
            return cls(platform.prefect_api, None)
        own = PlatformSettings(host=_HOST, prefect_port=free_port(_HOST), prefect_database=platform.prefect_database)
        launch = prefect_launch(workspace, own, private=True)
        return cls(api_url(_HOST, own.prefect_port), TiedServers(workspace, [launch]))

    @property
    def private(self) -> bool:
        """Return whether it was started for this process."""
        return self._servers is not None

    def wait(self) -> str:
        """Wait until the API answers, and return its address.

        Raises:
            PlatformError: the server died or does not answer; it is stopped.
        """
        if self._servers:
            self._servers.wait()
        return self.api_url

    def stop(self) -> None:
        """End a private server. May be called again."""
        if self._servers:
            self._servers.stop()


@contextmanager
def prefect_server(workspace: Workspace) -> Iterator[str]:
    """Yield the API address of a server that answers. A server started for this ends on leaving."""
    server = PrefectServer.begin(workspace)
    try:
        yield server.wait()
    finally:
        server.stop()
