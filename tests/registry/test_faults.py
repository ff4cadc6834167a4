"""MLflow's server slow, failing, or away while a model is registered: told clearly, tried again with limits, done once.

A real server stands behind a door that can be made to fail: it loses answers, answers 500 in its place, or is shut.
"""

import socket
import threading
from collections.abc import Callable, Iterator
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from ratchet.errors import TrackingUnavailable
from ratchet.settings.model import TrackingSettings
from ratchet.workspace import Workspace

pytestmark = pytest.mark.usefixtures("mlflows_own")
PASSED_ON = ("content-type", "accept")


class Door(ThreadingHTTPServer):
    """Hands every request on to the server and its answer back, unless `fails` says otherwise."""

    daemon_threads = True

    def __init__(self, port: int) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.behind = port
        self.fails: Callable[[str], str | None] = lambda request: None  # "500", "lost" or None
        self.asked: list[str] = []

    @property
    def uri(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that no longer waits is what is tested."""


class Handler(BaseHTTPRequestHandler):
    server: Door

    def answer(self) -> None:
        request = f"{self.command} {self.path}"
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        self.server.asked.append(request)
        failure = self.server.fails(request)
        if failure == "500":
            self.reply(500, b"broken", "text/plain")
            return
        connection = HTTPConnection("127.0.0.1", self.server.behind)
        headers = {name: value for name, value in self.headers.items() if name.lower() in PASSED_ON}
        connection.request(self.command, self.path, body, headers)
        answer = connection.getresponse()
        content = answer.read()
        connection.close()
        if failure == "lost":  # done, but the answer never comes
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        self.reply(answer.status, content, answer.headers.get("content-type", "application/json"))

    def reply(self, status: int, content: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = answer

    def log_message(self, *_: object) -> None:
        """Nothing: the test's output is its own."""


@pytest.fixture
def door(server: Any) -> Iterator[Door]:
    door = Door(server.port)
    thread = threading.Thread(target=door.serve_forever, daemon=True)
    thread.start()
    yield door
    door.shutdown()
    door.server_close()
    thread.join()


@pytest.fixture
def line(door: Door, new_line: Callable[[Any], Any], served: Any) -> Any:
    served.params = served.params.model_copy(update={"tracking": TrackingSettings(uri=door.uri, experiment="served")})
    served.workspace = Workspace(served.workspace.root)
    return new_line(served)


def crown(line: Any, run_id: str, model_uri: str) -> None:
    """What the register stage does with a model that passed."""
    succession = line.succession
    over = succession.synchronize().champion
    version = succession.registry.add_version(line.name, run_id, model_uri, tags={"ratchet.verdict": "{}"})
    succession.register(version, why="good", over=over)
    succession.promote_automatically(version, over=over)


@pytest.mark.parametrize("failure", ["500", "lost"])
def test_a_server_that_fails_at_any_request_makes_one_version_in_the_end(line: Any, door: Door, failure: str) -> None:
    """Every request in turn fails twice in a row, which is once more than MLflow's client tries by itself."""
    run_id, model_uri = line.run()
    door.asked.clear()
    crown(line, run_id, model_uri)
    requests, line.name = len(door.asked), f"{line.name}-again"
    told: list[str] = []
    fail_at = 0
    while fail_at < requests:
        door.asked.clear()
        door.fails = lambda _, at=fail_at: failure if len(door.asked) - 1 in (at, at + 1) else None
        try:
            crown(line, run_id, model_uri)
        except TrackingUnavailable as error:
            told.append(str(error))
        fail_at += 3
    door.fails = lambda _: None
    crown(line, run_id, model_uri)
    assert told
    assert all(door.uri in one and "start the server" in one for one in told)
    assert [version.number for version in line.succession.registry.versions(line.name)] == ["1"]
    assert line.aliases() == {"champion": "1"}
    assert [entry.what for entry in line.succession.entries()] == ["register", "promote"]
    assert line.amiss() == []


def test_one_failure_is_tried_again_and_nobody_notices(line: Any, door: Door) -> None:
    run_id, model_uri = line.run()
    door.asked.clear()
    door.fails = lambda _: "500" if len(door.asked) % 5 == 0 else None
    crown(line, run_id, model_uri)
    assert len(door.asked) > 5
    assert line.aliases() == {"champion": "1"}


def test_a_version_whose_answer_was_lost_is_not_made_twice(line: Any, door: Door) -> None:
    run_id, model_uri = line.run()
    lost: list[str] = []

    def lose(request: str) -> str | None:
        if "model-versions/create" in request and not lost:
            lost.append(request)
            return "lost"
        return None

    door.fails = lose
    crown(line, run_id, model_uri)
    assert lost
    assert [version.number for version in line.succession.registry.versions(line.name)] == ["1"]
    assert line.amiss() == []


def test_a_server_that_is_away_is_told_and_the_same_again_does_it(line: Any, door: Door, server: Any) -> None:
    first = line.champion()
    second = line.challenger()
    server.stop()
    try:
        with pytest.raises(TrackingUnavailable, match="start the server"):
            line.succession.promote_automatically(second, over=first.number)
    finally:
        server.start()
    assert [entry.what for entry in line.succession.entries()] == ["register", "promote", "register"]
    assert line.succession.promote_automatically(second, over=first.number).champion == second.number
    assert line.aliases() == {"champion": second.number}
    assert line.amiss() == []
