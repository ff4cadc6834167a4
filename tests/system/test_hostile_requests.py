"""Hostile requests to the real model server: mutated bodies, smuggled headers, slow and vanishing clients."""

import base64
import errno
import io
import json
import random
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from ports import reserved_port
from waiting import until

from ratchet import settings
from ratchet.servers.http import answers
from tests.serving.test_model_server import HOST, INFER, ROWS, SPECS, Served

pytestmark = pytest.mark.system

REQUESTS = 400
PIXELS = np.array(ROWS["image"][:2], np.uint8)
VALUES = (
    None, True, -1, 0, 256, 2**31, 2**63, 10**400, -0.5, 1e308, "", "1", "\u0000", "\ud83d\ude00", [], {}, [[]], [None],
    {"b64": ""}, {"b64": "AAAA"}, {"b64": 5}, "a" * 5000, [[[[0] * 3] * 8] * 8],
)  # fmt: skip
WORDS = (
    b"NaN",
    b"Infinity",
    b"-Infinity",
    b"1e999",
    b"[" * 5000,
    b'{"a":' * 5000,
    b"\xff\xfe",
    b"\x00",
    b'"',
    b"}",
    b",",
)


def bomb() -> str:
    """Return a small file of an image with 49 million pixels."""
    file = io.BytesIO()
    Image.new("1", (7000, 7000)).save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode()


VALUES = (*VALUES, {"b64": bomb()})
TENSOR = {"name": "pixels", "shape": [2, 8, 8, 3], "datatype": "UINT8", "data": PIXELS.ravel().tolist()}
BINARY = TENSOR | {"parameters": {"binary_data_size": PIXELS.nbytes}}
del BINARY["data"]
GOOD: dict[str, dict[str, Any]] = {
    "/v1/predict": {"model": "image", "input": PIXELS.tolist(), "options": {"top_k": 3}},
    "/invocations": {"inputs": PIXELS.tolist(), "params": {}},
    INFER: {"id": "a", "inputs": [TENSOR], "outputs": [{"name": "probabilities"}], "parameters": {}},
}


def mutated(content: Any, choose: random.Random) -> Any:
    """Return the content with one value replaced, repeated, renamed or removed."""
    if not isinstance(content, list | dict) or not content or choose.random() < 0.15:
        return choose.choice(VALUES)
    changed: Any = content.copy()
    key = choose.choice(list(content)) if isinstance(content, dict) else choose.randrange(len(content))
    match choose.randrange(8):
        case 0:
            del changed[key]
        case 1 if isinstance(changed, list):
            changed += content
        case 1:
            changed[choose.choice(("inptu", "", "data", "shape", "parameters"))] = changed.pop(key)
        case _:
            changed[key] = mutated(content[key], choose)
    return changed


def mutated_body(content: Any, choose: random.Random) -> bytes:
    """Return the body of a request with up to three mutations of values, bytes or length."""
    for _ in range(choose.randint(0, 3)):
        content = mutated(content, choose)
    body = json.dumps(content).encode()
    match choose.randrange(4):
        case 0:
            return body[: choose.randrange(len(body) + 1)]
        case 1:
            place = choose.randrange(len(body) + 1)
            return body[:place] + choose.choice(WORDS) + body[place + choose.randrange(3) :]
        case _:
            return body


@pytest.fixture(scope="module")
def served(new_project: Callable[[str], Any]) -> Iterator[tuple[Served, int]]:
    """A model server with a short deadline, and its process id."""
    server = Served(new_project("hostile"), reserved_port(HOST))
    server.add("image", SPECS["image"])
    settings.override(server.workspace.params, {"serving.deadline": 3.0, "serving.rows": 64, "serving.body_mib": 2.0})
    command = [sys.executable, "-m", "commands", "serve", "--model", "image@champion", "--port", str(server.port)]
    log = server.workspace.root / "serve.log"
    with log.open("wb") as output:
        environment = server.project.environment | {"TMPDIR": str(server.project.home)}
        process = subprocess.Popen(command, cwd=server.workspace.root, env=environment, stdout=output, stderr=output)
    until(lambda: answers(server.url("/ready")), process=process, log=log)
    yield server, process.pid
    process.terminate()
    assert process.wait() == -signal.SIGTERM
    assert "Traceback" not in log.read_text()


def anonymous_memory(pid: int) -> int:
    """Return the anonymous memory of a process, in KiB."""
    match = re.search(r"RssAnon:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    assert match
    return int(match[1])


def good(server: Served) -> Any:
    """Return the answer to a good request."""
    status, answer, _ = server.ask("/invocations", {"inputs": PIXELS.tolist()})
    assert status == 200, answer
    return answer["predictions"]


@pytest.mark.parametrize("path", GOOD)
def test_mutated_requests_are_answered_or_refused_by_name(served: tuple[Served, int], path: str) -> None:
    server, pid = served
    choose, before = random.Random(path), good(server)
    client, statuses, memory = HTTPConnection(HOST, server.port), set(), 0
    for number in range(REQUESTS):
        body, headers = mutated_body(GOOD[path], choose), {"Content-Type": "application/json"}
        if path == INFER and number % 4 == 0:
            head = mutated_body(GOOD[path] | {"inputs": [BINARY]}, choose) if number % 8 else body
            given = choose.choice((len(head), len(head), len(head), -1, "x", 10**20, 0))
            body = head + PIXELS.tobytes()[: choose.choice((PIXELS.nbytes, PIXELS.nbytes, 1, 0))]
            headers["Inference-Header-Content-Length"] = str(given)
        client.request("POST", path, body, headers)
        with client.getresponse() as response:
            answer = json.loads(response.read())
        statuses.add(response.status)
        assert response.status in (200, 400, 413), (response.status, answer, body[:300])
        if response.status != 200:
            assert 10 < len(answer["error"]) < 1000, answer
            assert "\n" not in answer["error"], answer
        if number == REQUESTS // 2:
            memory = anonymous_memory(pid)
    client.close()
    assert {200, 400} <= statuses
    assert anonymous_memory(pid) < 1.1 * memory
    assert good(server) == before


BODY = json.dumps(GOOD["/invocations"]).encode()
CHUNKED = b"%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY)
LENGTH = b"Content-Length: %d" % len(BODY)
HIDDEN = b"POST /invocations HTTP/1.1\r\nHost: evil\r\n\r\n"


@pytest.mark.parametrize(
    ("lines", "body"),
    [
        ((LENGTH, b"Transfer-Encoding: chunked"), CHUNKED + HIDDEN),
        ((b"Transfer-Encoding: chunked", LENGTH), BODY + HIDDEN),
        ((LENGTH, b"Content-Length: 5"), BODY),
        ((b"Content-Length: -1",), BODY),
        ((b"Content-Length: 1e9",), BODY),
        ((b"Content-Length: %d" % 10**30,), BODY),
        ((b"Transfer-Encoding: xchunked",), CHUNKED),
        ((b"Transfer-Encoding: chunked",), b"zz\r\n" + BODY),
        ((b"Transfer-Encoding: chunked",), b"-1\r\n" + BODY),
        ((b"Transfer-Encoding: chunked",), b"ffffffffffffffffff\r\n" + BODY),
        ((LENGTH, b"Host: other"), BODY),
        ((LENGTH, b"Content-Type: text/plain"), BODY),
        ((LENGTH, b"X-Long: " + b"a" * 200_000), BODY),
        ((LENGTH, b"no colon"), BODY),
    ],
)
def test_smuggled_request_is_never_answered(served: tuple[Served, int], lines: tuple[bytes, ...], body: bytes) -> None:
    server, _ = served
    before = good(server)
    with socket.create_connection((HOST, server.port)) as client:
        host = f"Host: {HOST}:{server.port}".encode()
        head = b"\r\n".join((b"POST /invocations HTTP/1.1", host, b"Content-Type: application/json", *lines))
        received = b""
        try:
            client.sendall(head + b"\r\n\r\n" + body)
            client.shutdown(socket.SHUT_WR)
            while part := client.recv(65536):
                received += part
        except OSError as error:  # the server hangs up while the rest is sent
            if error.errno not in (errno.ECONNRESET, errno.EPIPE, errno.ENOTCONN):
                raise
    statuses = [int(status) for status in re.findall(rb"HTTP/1.1 (\d+)", received)]
    assert len(statuses) <= 1, received
    assert not [status for status in statuses if status >= 500 or status == 200], received
    assert good(server) == before


def test_slow_and_vanishing_clients_cost_nothing(served: tuple[Served, int]) -> None:
    server, pid = served
    before, head = good(server), f"POST /invocations HTTP/1.1\r\nHost: {HOST}:{server.port}\r\n".encode()
    head += b"Content-Type: application/json\r\n" + LENGTH + b"\r\n\r\n"
    slow = [socket.create_connection((HOST, server.port)) for _ in range(50)]
    for client in slow:
        client.sendall(head)
    memory = anonymous_memory(pid)
    for place in range(2):  # byte by byte
        for client in slow:
            client.sendall(BODY[place : place + 1])
        for number in range(200):
            with socket.create_connection((HOST, server.port)) as client:
                client.sendall((head + BODY)[: 20 * number])
        for path in (b"/v1/predict", b"/v1/explain", b"/v1/labels"):
            with socket.create_connection((HOST, server.port)) as client:
                client.sendall(head.replace(b"/invocations", path) + BODY[:10])
        assert good(server) == before
    for client in slow:
        with client:
            assert client.recv(4096).startswith(b"HTTP/1.1 408")
    assert anonymous_memory(pid) < 1.1 * memory
    assert good(server) == before
