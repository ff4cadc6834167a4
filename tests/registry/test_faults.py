"""A slow, failing or stopped MLflow server while a model is registered: clear errors, limited retries, no duplicates.

A proxy in front of a real server can lose answers or return status 500 or 404.
"""

import socket
import threading
from collections.abc import Callable, Iterator
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from ratchet.errors import TrackingUnavailable
from ratchet.provenance.archive import Archive
from ratchet.registry.provenance_record import PROVENANCE_FILE, PROVENANCE_TAG, Provenance
from ratchet.registry.statement import STATEMENT
from ratchet.settings.model import TrackingSettings
from ratchet.workspace import Workspace

pytestmark = [pytest.mark.usefixtures("mlflows_own"), pytest.mark.system]
PASSED_ON = ("content-type", "accept")


class Proxy(ThreadingHTTPServer):
    """Proxy that forwards requests and answers, unless `fails` returns a failure for the request."""

    daemon_threads = True

    def __init__(self, port: int) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.behind = port
        self.fails: Callable[[str], str | None] = lambda request: None  # "500", "404", "lost" or None
        self.requests: list[str] = []

    @property
    def uri(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore it: clients that no longer wait are tested."""


class Handler(BaseHTTPRequestHandler):
    server: Proxy

    def answer(self) -> None:
        request = f"{self.command} {self.path}"
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        self.server.requests.append(request)
        failure = self.server.fails(request)
        if failure in ("500", "404"):
            self.reply(int(failure), b"broken", "text/plain")
            return
        connection = HTTPConnection("127.0.0.1", self.server.behind)
        headers = {name: value for name, value in self.headers.items() if name.lower() in PASSED_ON}
        connection.request(self.command, self.path, body, headers)
        answer = connection.getresponse()
        content = answer.read()
        connection.close()
        if failure == "lost":  # the request was carried out
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
        """Log nothing."""


@pytest.fixture
def proxy(server: Any) -> Iterator[Proxy]:
    proxy = Proxy(server.port)
    thread = threading.Thread(target=proxy.serve_forever, daemon=True)
    thread.start()
    yield proxy
    proxy.shutdown()
    proxy.server_close()
    thread.join()


@pytest.fixture
def line(proxy: Proxy, new_line: Callable[[Any], Any], served: Any) -> Any:
    served.params = served.params.model_copy(update={"tracking": TrackingSettings(uri=proxy.uri, experiment="served")})
    served.workspace = Workspace(served.workspace.root)
    return new_line(served)


def promote(line: Any, run_id: str, model_uri: str) -> None:
    """Register and promote a model as the register stage does."""
    promotions = line.promotions
    over = promotions.synchronize().champion
    version = promotions.registry.add_version(line.name, run_id, model_uri, tags={"ratchet.verdict": "{}"})
    promotions.register(version, why="good", over=over)
    promotions.promote_automatically(version, over=over)


@pytest.mark.parametrize("failure", ["500", "lost"])
def test_failures_at_any_request_end_with_one_version(line: Any, proxy: Proxy, failure: str) -> None:
    """Each request fails twice in a row, which is once more than MLflow's client retries."""
    run_id, model_uri = line.run()
    proxy.requests.clear()
    promote(line, run_id, model_uri)
    count, line.name = len(proxy.requests), f"{line.name}-again"
    errors: list[str] = []
    fail_at = 0
    while fail_at < count:
        proxy.requests.clear()
        proxy.fails = lambda _, at=fail_at: failure if len(proxy.requests) - 1 in (at, at + 1) else None
        try:
            promote(line, run_id, model_uri)
        except TrackingUnavailable as error:
            errors.append(str(error))
        fail_at += 12
    proxy.fails = lambda _: None
    promote(line, run_id, model_uri)
    assert errors
    assert all(proxy.uri in error and "start the server" in error for error in errors)
    assert [version.number for version in line.promotions.registry.versions(line.name)] == ["1"]
    assert line.aliases() == {"champion": "1"}
    assert [entry.what for entry in line.promotions.entries()] == ["register", "promote"]
    assert line.faults() == []


def test_a_single_failure_is_retried(line: Any, proxy: Proxy) -> None:
    run_id, model_uri = line.run()
    proxy.requests.clear()
    proxy.fails = lambda _: "500" if len(proxy.requests) % 5 == 0 else None
    promote(line, run_id, model_uri)
    assert len(proxy.requests) > 5
    assert line.aliases() == {"champion": "1"}


def test_a_failed_download_is_no_missing_file(
    served: Any, proxy: Proxy, new_line: Callable[[Any], Any], record: Provenance, tmp_path: Path
) -> None:
    """Nor a record that is not there: a second one would be made, and lineage would call the run's origin unknown."""
    through = TrackingSettings(uri=proxy.uri, experiment="files", artifacts="mlflow-artifacts:///files")
    served.params = served.params.model_copy(update={"tracking": through})  # else the test reads the server's folder
    line = new_line(served)
    run_id, model_uri = line.run()
    served.client.set_tag(run_id, PROVENANCE_TAG, record.id)  # as for a record that is too long for a tag
    promote(line, run_id, model_uri)
    archive = Archive(served.workspace, line.params)
    reads: list[Callable[[], object]] = [
        lambda: archive.run(run_id),
        lambda: archive.file(run_id, PROVENANCE_FILE, tmp_path),
        line.faults,
    ]
    proxy.fails = lambda request: "500" if "provenance.json" in request else None
    for read in reads:
        with pytest.raises(TrackingUnavailable, match="start the server"):
            read()
    proxy.fails = lambda request: "404" if "provenance.json" in request else None
    refused = archive.run(run_id)  # of one run, which hides no other
    assert refused is not None
    assert refused.record is None
    assert "refuses this" in refused.doubts[0]
    proxy.fails = lambda request: None
    run = archive.run(run_id)
    assert run is not None
    assert (run.record, run.doubts, line.faults()) == (record, (), [])
    path = archive.file(run_id, PROVENANCE_FILE, tmp_path)
    assert path is not None
    assert b'"git_commit"' in path.read_bytes()
    assert archive.file(run_id, "provenance/none.json", tmp_path) is None
    assert archive.file("f" * 32, STATEMENT, tmp_path) is None


def test_a_lost_answer_does_not_create_a_second_version(line: Any, proxy: Proxy) -> None:
    run_id, model_uri = line.run()
    lost: list[str] = []

    def lose(request: str) -> str | None:
        if "model-versions/create" in request and not lost:
            lost.append(request)
            return "lost"
        return None

    proxy.fails = lose
    promote(line, run_id, model_uri)
    assert lost
    assert [version.number for version in line.promotions.registry.versions(line.name)] == ["1"]
    assert line.faults() == []


def test_an_act_succeeds_when_the_server_is_back(line: Any, proxy: Proxy, server: Any) -> None:
    first = line.champion()
    second = line.challenger()
    server.stop()
    try:
        with pytest.raises(TrackingUnavailable, match="start the server"):
            line.promotions.promote_automatically(second, over=first.number)
    finally:
        server.start()
    assert [entry.what for entry in line.promotions.entries()] == ["register", "promote", "register"]
    assert line.promotions.promote_automatically(second, over=first.number).champion == second.number
    assert line.aliases() == {"champion": second.number}
    assert line.faults() == []


def test_an_audit_of_one_model_asks_nothing_about_others(line: Any, proxy: Proxy) -> None:
    line.champion()
    counts = []
    for number in range(2):
        proxy.requests.clear()
        assert line.faults() == []
        counts.append(len(proxy.requests))
        line.place.client.create_registered_model(f"{line.name}-{number}")
    assert counts[0] == counts[1]
