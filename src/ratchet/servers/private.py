"""A Prefect server for one run, if the server of `up` is not running.

Prefect's own temporary server starts only when the flow is called. This one starts first, while the imports and checks
before the flow still run. It keeps its runs in the workspace's database, and ends with this process however it dies.
"""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from ratchet.errors import PlatformError
from ratchet.servers.addresses import api_url
from ratchet.servers.http import answers
from ratchet.servers.ports import free_port
from ratchet.servers.record import Record
from ratchet.servers.start import GRACE, Starting, start_prefect, wait_until_ready
from ratchet.workspace import Workspace

__all__ = ["PrefectServer", "prefect_server"]

_HOST = "127.0.0.1"


@dataclass
class PrefectServer:
    """The server that a run in this process uses: the one of `up`, or a private one.

    Attributes:
        api_url: known at once; it answers after `wait`.
    """

    api_url: str
    _starting: Starting | None

    @classmethod
    def begin(cls, workspace: Workspace, *, database: str = "auto", api: str = "auto") -> "PrefectServer":
        """Find the server of `up` or the one at `api`, or start one over `database` (see `start_prefect`).

        Returns at once.
        """
        shared = Record.read(workspace).services.get("prefect")
        if shared and shared.alive() and answers(f"{shared.address}/api/health"):
            return cls(f"{shared.address}/api", None)
        if api != "auto" and answers(f"{api}/health"):
            return cls(api, None)
        port = free_port(_HOST)
        return cls(
            api_url(_HOST, port), start_prefect(workspace, host=_HOST, port=port, database=database, private=True)
        )

    @property
    def private(self) -> bool:
        """Return whether it was started for this process."""
        return self._starting is not None

    def wait(self) -> str:
        """Wait until the API answers, and return its address.

        Raises:
            PlatformError: the server died or does not answer; it is stopped.
        """
        if self._starting:
            try:
                wait_until_ready([self._starting], up=lambda service, seconds: None)
            except PlatformError:
                self.stop()
                raise
        return self.api_url

    def stop(self) -> None:
        """End a private server. May be called again."""
        if self._starting is None:
            return
        process, service = self._starting.process, self._starting.service
        self._starting = None
        if process.stdin:
            process.stdin.close()  # the supervisor ends the server when it sees this, or when this process dies
        try:
            process.wait(GRACE["prefect"] + 5.0)
        except subprocess.TimeoutExpired:
            service.end(grace=0.0)
            process.wait()


@contextmanager
def prefect_server(workspace: Workspace) -> Iterator[str]:
    """Yield the API address of a server that answers. A server started for this ends on leaving."""
    server = PrefectServer.begin(workspace)
    try:
        yield server.wait()
    finally:
        server.stop()
