"""Prefect's server answers 503 while its SQLite database is locked; the client retries then."""

import threading
import uuid
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from ports import reserved_port
from prefect.settings import PREFECT_CLIENT_MAX_RETRIES, temporary_settings

from flows.server.client import prefect_client
from ratchet.errors import PlatformError

HOST = "127.0.0.1"


class BusyServer(HTTPServer):
    """Answers `status` for `refusals` requests, then 200."""

    status = 503
    refusals = 0
    requests = 0


class Handler(BaseHTTPRequestHandler):
    server: BusyServer

    def answer(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"] or 0))
        self.server.requests += 1
        busy = self.server.requests <= self.server.refusals
        self.send_response(self.server.status if busy else 200)
        self.send_header("Content-Length", "0")
        self.send_header("Retry-After", "0")  # Prefect's client waits seconds otherwise
        self.end_headers()

    do_DELETE = do_PUT = do_PATCH = do_POST = do_GET = answer

    def log_message(self, *_: object) -> None:
        """Keep the test's output clean."""


@pytest.fixture
def busy() -> Iterator[BusyServer]:
    with BusyServer((HOST, 0), Handler) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        yield server
        server.shutdown()


@pytest.mark.parametrize(("refusals", "requests"), [(2, 3), (9, 3)])
@pytest.mark.parametrize("status", [503, 429])
def test_request_to_busy_server_is_retried(busy: BusyServer, status: int, refusals: int, requests: int) -> None:
    busy.refusals, busy.status = refusals, status
    with temporary_settings({PREFECT_CLIENT_MAX_RETRIES: 2}):
        if refusals < requests:
            with prefect_client(f"http://{HOST}:{busy.server_port}/api") as client:
                client.delete_automation(uuid.uuid4())
        else:
            with (
                pytest.raises(PlatformError, match=rf"refused /api/automations/.* \({status}\)"),
                prefect_client(f"http://{HOST}:{busy.server_port}/api") as client,
            ):
                client.delete_automation(uuid.uuid4())
    assert busy.requests == requests


def test_prefect_retries_busy_servers_by_default() -> None:
    assert PREFECT_CLIENT_MAX_RETRIES.value() >= 3


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (422, r"refused /api/work_pools/local \(422\)"),
        (401, r"asks for a password\. Fix: export the PREFECT_API_AUTH_STRING"),
    ],
)
def test_refused_request_is_named_and_not_retried(busy: BusyServer, status: int, text: str) -> None:
    busy.refusals, busy.status = 1, status
    with (
        pytest.raises(PlatformError, match=text),
        prefect_client(f"http://{HOST}:{busy.server_port}/api") as client,
    ):
        client.read_work_pool("local")
    assert busy.requests == 1


def test_missing_server_is_named() -> None:
    address = f"http://{HOST}:{reserved_port(HOST)}/api"
    with (
        pytest.raises(PlatformError, match=f"{address} does not answer"),
        prefect_client(address) as client,
    ):
        client.read_work_pool("local")
