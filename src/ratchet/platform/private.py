"""A Prefect server for the length of one run, when `up`'s is not there.

Prefect's own temporary server starts only when the flow is called, and is waited for there. This one is begun first
thing, so that its start overlaps the imports and the checks before the flow, keeps its runs in the workspace's database
and ends with this process however that dies.
"""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from ratchet.errors import PlatformError
from ratchet.platform import servers
from ratchet.platform.processes import free_port
from ratchet.platform.record import Record
from ratchet.workspace import Workspace

__all__ = ["PrefectServer", "prefect_server"]

_HOST = "127.0.0.1"


@dataclass
class PrefectServer:
    """The server that a run in this process talks to: `up`'s, or one of its own.

    Attributes:
        api_url: known from the beginning; it answers after `wait`.
    """

    api_url: str
    _starting: servers.Starting | None

    @classmethod
    def begin(cls, workspace: Workspace, *, database: str = "auto", api: str = "auto") -> "PrefectServer":
        """Find `up`'s server, or the one at `api`, or start one over `database` (see `servers.start_prefect`).

        Returns at once.
        """
        shared = Record.read(workspace).parts.get("prefect")
        if shared and shared.alive() and servers.answers(f"{shared.address}/api/health"):
            return cls(f"{shared.address}/api", None)
        if api != "auto" and servers.answers(f"{api}/health"):
            return cls(api, None)
        port = free_port(_HOST)
        name = "prefect-private"
        starting = servers.start_prefect(workspace, host=_HOST, port=port, database=database, name=name, private=True)
        return cls(servers.api_url(_HOST, port), starting)

    @property
    def private(self) -> bool:
        """Was it started for this process?"""
        return self._starting is not None

    def wait(self) -> str:
        """The API's address, once it answers.

        Raises:
            PlatformError: the server died or does not answer; it is stopped.
        """
        if self._starting:
            try:
                servers.wait_for([self._starting], up=lambda part, seconds: None)
            except PlatformError:
                self.stop()
                raise
        return self.api_url

    def stop(self) -> None:
        """End it if it is this process's own. May be called again."""
        if self._starting is None:
            return
        process, part = self._starting.process, self._starting.part
        self._starting = None
        if process.stdin:
            process.stdin.close()  # the keeper ends the server when it sees this, or when we die
        try:
            process.wait(servers.SERVER_GRACE + 5.0)
        except subprocess.TimeoutExpired:
            part.end(grace=0.0)
            process.wait()


@contextmanager
def prefect_server(workspace: Workspace) -> Iterator[str]:
    """Give the API's address of a server that answers; one started for this ends on leaving."""
    server = PrefectServer.begin(workspace)
    try:
        yield server.wait()
    finally:
        server.stop()
