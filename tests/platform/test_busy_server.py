"""Prefect's server answers 503 while its SQLite database is locked."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from ratchet.errors import PlatformError
from ratchet.platform import servers


class BusyServer(HTTPServer):
    """Answer 503 `refusals` times, then 200."""

    refusals = 0
    requests = 0


class Handler(BaseHTTPRequestHandler):
    server: BusyServer

    def do_DELETE(self) -> None:
        self.server.requests += 1
        busy = self.server.requests <= self.server.refusals
        self.send_response(503 if busy else 200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Keep the test's output clean."""


@pytest.fixture
def busy() -> Iterator[BusyServer]:
    with BusyServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        yield server
        server.shutdown()


@pytest.mark.parametrize(("refusals", "requests"), [(2, 3), (9, 3)])
def test_a_busy_server_is_asked_again(
    busy: BusyServer, monkeypatch: pytest.MonkeyPatch, refusals: int, requests: int
) -> None:
    monkeypatch.setattr(servers, "_BUSY_PAUSES", (0.01, 0.01))
    busy.refusals = refusals
    api = f"http://127.0.0.1:{busy.server_port}"
    if refusals < requests:
        assert servers.call(api, "/automations/1", method="DELETE") is None
    else:
        with pytest.raises(PlatformError, match="503"):
            servers.call(api, "/automations/1", method="DELETE")
    assert busy.requests == requests
