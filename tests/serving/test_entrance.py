"""The entrance of the model server: while the event loop is late, requests wait in order or are refused."""

import asyncio
import socket
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import uvicorn
import uvloop
from starlette.responses import PlainTextResponse
from waiting import let_turn, until_in_loop

from ratchet.serving.app import ModelServer
from ratchet.serving.entrance import Entrance, busy_app
from ratchet.serving.formats.request_formats import ModelRequest
from ratchet.serving.http_protocol import Server, _path_of_post
from ratchet.serving.keys import KeyStore
from ratchet.serving.process import configuration
from ratchet.serving.recent import RecentAnswers
from ratchet.serving.versions.alias_watcher import PinnedVersion
from ratchet.serving.versions.loaded import LoadedVersion
from ratchet.settings.model import ServingSettings
from tests.serving.test_loaded import IDENTITY, store
from tests.serving.test_metrics import ROW, SPEC, Client


class Clock:
    """A clock that stands until it is set."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


class LateEntrance(Entrance):
    """An entrance that is full, and lets no request in, when a test says so."""

    is_full = False  # type: ignore[assignment]
    refusals = 0  # in all turns

    def count_refusal(self) -> None:
        self.refusals += 1
        super().count_refusal()


class Late:
    """A late event loop, and the time of its entrance."""

    def __init__(self) -> None:
        self.clock, self.is_free = Clock(), False
        self.entrance = LateEntrance(10.0, lambda: self.is_free, clock=self.clock)


def serve_late(folder: Path, client: Callable[[Client, Late], Coroutine[Any, Any, None]]) -> None:
    """Run a client beside a model server whose event loop is late, composed as by `ratchet serve`."""
    store(folder / "model", SPEC)

    async def run() -> None:
        server, late = ModelServer(PinnedVersion(LoadedVersion(IDENTITY, folder / "model")), ServingSettings()), Late()
        keys = KeyStore(folder / "keys.json")
        config = configuration(server, keys, host="127.0.0.1", port=0, allowed=("test",))
        protocol: Any = config.http
        protocol.entrance = late.entrance
        running = uvicorn.Server(config)
        task = asyncio.create_task(running.serve())
        await until_in_loop(lambda: running.started)
        try:
            await client(Client(running.servers[0].sockets[0].getsockname()[1]), late)
        finally:
            running.should_exit = True
            await task

    asyncio.run(run())


def test_late_server_refuses_requests_and_answers_health(tmp_path: Path) -> None:
    async def ask(client: Client, late: Late) -> None:
        whole = client.request("/v1/predict", ROW)
        kept = whole.replace(b"Connection: close\r\n", b"")
        before = asyncio.create_task(client.send(whole))
        await until_in_loop(lambda: len(late.entrance) == 1)
        late.entrance.is_full = True

        reader, writer = await asyncio.open_connection("127.0.0.1", client.port)
        for _ in range(3):  # over one connection
            writer.write(kept)
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 503 ")
            assert b"\r\nretry-after: 1\r\n" in head
            assert b"busy" in await reader.readuntil(b"}")
        writer.write(kept[:-9])  # a body that comes in pieces
        await until_in_loop(lambda: late.entrance.refusals == 4)
        writer.write(kept[-9:])
        assert (await reader.readuntil(b"}")).startswith(b"HTTP/1.1 503 ")
        assert (await client.send(whole))[0] == 503

        for path in ("/health", "/ready", "/metrics"):
            assert await client.ask(path) == 200
        assert (await client.requests())["own", "", "503", ""] == 5
        late.is_free, late.entrance.is_full = True, False
        assert (await before)[0] == 200  # it has waited
        writer.write(kept)
        assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")
        writer.close()
        assert (await client.requests())["own", "model", "200", "1"] == 2

    serve_late(tmp_path, ask)


def test_end_of_another_head_is_no_request(tmp_path: Path) -> None:
    async def ask(client: Client, late: Late) -> None:
        whole = client.request("/v1/predict", ROW).replace(b"Connection: close\r\n", b"")
        head, _, body = whole.partition(b"\r\n\r\n")
        unread = head.replace(b"application/json", b"text/plain") + b"\r\n\r\n"
        reader, writer = await asyncio.open_connection("127.0.0.1", client.port)
        late.is_free = True
        writer.write(unread)
        assert (await reader.readuntil(b"}")).startswith(b"HTTP/1.1 415 ")  # before the body has come
        writer.write(body + b"POST /v1/labels HTTP/1.1\r\nHost: test\r\nX-A: ")
        assert await client.ask("/health") == 200  # the server has read these bytes meanwhile
        late.entrance.is_full = True
        writer.write(b"POST /v1/predict HTTP/1.1\r\nHost: test\r\nContent-Length: 0\r\n\r\n")
        assert (await reader.readline()).startswith((b"HTTP/1.1 4", b"HTTP/1.1 2"))  # of the labels
        writer.close()
        counts = await client.requests()
        assert ("own", "", "503", "") not in counts
        assert [status for envelope, _, status, _ in counts if envelope == "labels"]

    serve_late(tmp_path, ask)


@pytest.mark.parametrize("path", ["/v1/labels", "/unknown"])
def test_only_requests_to_the_model_wait(tmp_path: Path, path: str) -> None:
    async def ask(client: Client, late: Late) -> None:
        late.entrance.is_full = True
        assert (await client.send(client.request(path, b"{}")))[0] in (400, 404, 422)
        assert (await client.send(client.request("/v1/predict", ROW)))[0] == 503

    serve_late(tmp_path, ask)


class Loop:
    """An event loop whose turns are called."""

    def __init__(self) -> None:
        self.soon = list[tuple[Callable[..., object], tuple[Any, ...]]]()

    def call_soon(self, function: Callable[..., object], *arguments: Any) -> None:
        self.soon.append((function, arguments))

    def call_later(self, _: float, function: Callable[..., object], *arguments: Any) -> None:
        self.call_soon(function, *arguments)

    def turn(self) -> None:
        soon, self.soon = self.soon, []
        for function, arguments in soon:
            function(*arguments)


def test_requests_begin_in_order_and_few_in_a_turn() -> None:
    entrance, loop, begun = Entrance(10.0, clock=Clock()), Loop(), list[int]()
    for number in range(100):
        entrance.enter(lambda number=number: begun.append(number), nothing, loop)  # type: ignore[arg-type, misc]
    assert begun == list(range(32))
    loop.turn()
    assert len(begun) == 64
    while loop.soon:
        loop.turn()
    assert begun == list(range(100))


def nothing() -> None:
    pass


def test_entrance_is_full_while_the_loop_or_the_model_stands() -> None:
    clock, loop = Clock(), Loop()
    entrance = Entrance(10.0, clock=clock)
    for _ in range(40):
        entrance.enter(nothing, nothing, loop)  # type: ignore[arg-type]
    assert len(entrance) == 8
    assert not entrance.is_full
    clock.now = 0.3
    assert entrance.is_full
    while loop.soon:
        loop.turn()
    assert len(entrance) == 0
    for _ in range(1000):  # an hour later: that turn says nothing about these
        assert not entrance.is_full
        entrance.enter(nothing, nothing, loop)  # type: ignore[arg-type]


def test_request_without_room_is_refused_in_time() -> None:
    clock, loop, answers = Clock(), Loop(), list[str]()
    is_free = False
    entrance = Entrance(10.0, lambda: is_free, clock=clock)
    entrance.enter(lambda: answers.append("first"), lambda: answers.append("busy"), loop)  # type: ignore[arg-type]
    clock.now = 0.2
    loop.turn()
    entrance.enter(lambda: answers.append("second"), lambda: answers.append("busy"), loop)  # type: ignore[arg-type]
    assert answers == []
    clock.now = 0.26
    loop.turn()
    assert answers == ["busy"]
    is_free = True
    loop.turn()
    assert answers == ["busy", "second"]


ANSWER, REFUSAL = 200e-6, 10e-6  # seconds of the processor


@pytest.mark.parametrize("times", [1.5, 3.0, 8.0])
def test_overload_leaves_the_loop_its_time_for_answers(times: float) -> None:
    clock, loop, waits = Clock(), Loop(), list[tuple[float, float]]()  # of each request: time, and seconds of waiting
    entrance, came, refused = Entrance(10.0, clock=clock), 0, 0
    longest = 0.0  # seconds of a turn

    def begin(arrived: float) -> None:
        waits.append((clock.now, clock.now - arrived))
        clock.now += ANSWER

    while clock.now < 4.0:
        turned = clock.now
        while came < clock.now * times / ANSWER:
            arrived, came = came * ANSWER / times, came + 1
            if entrance.is_full:
                entrance.count_refusal()
                refused += 1
                clock.now += REFUSAL
            else:
                entrance.enter(lambda arrived=arrived: begin(arrived), nothing, loop)  # type: ignore[arg-type, misc]
            if clock.now - turned > 1024 * REFUSAL:  # a turn reads from so many connections
                break
        loop.turn()
        clock.now += 1e-5
        longest = max(longest, clock.now - turned)
    left = 1 - refused * REFUSAL / clock.now  # share of the time, without refusals
    accepted = [sum(second <= when < second + 1 for when, _ in waits) * ANSWER for second in range(4)]
    assert sum(accepted) / 4 >= 0.97 * left
    assert min(accepted) >= 0.9 * max(accepted)  # no swing between all and nothing
    assert max(wait for _, wait in waits) <= 2.0
    assert longest <= 0.1


HEAD = b"POST /v1/predict?a=1 HTTP/1.1\r\nHost: test\r\nContent-Length: 3\r\n"


@pytest.mark.parametrize(
    ("data", "path"),
    [
        (HEAD + b"\r\nabc", "/v1/predict"),
        (HEAD + b"Connection: keep-alive\r\n\r\nabc", "/v1/predict"),
        (HEAD + b"\r\nab", None),
        (HEAD + b"\r\nabcPOST /", None),
        (HEAD + b"Content-Length: 3\r\n\r\nabc", None),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\nabc", None),
        (HEAD + b"Expect: 100-continue\r\n\r\nabc", None),
        (HEAD + b"Connection: close\r\n\r\nabc", None),
        (HEAD.replace(b"POST", b"GET") + b"\r\nabc", None),
        (HEAD.replace(b"1.1", b"1.0") + b"\r\nabc", None),
        (HEAD.replace(b"Content-Length: 3\r\n", b"") + b"\r\n", None),
        (HEAD, None),
        (HEAD + b"Inference-Header-Content-Length: 3\r\n\r\nabc", "/v1/predict"),
        (HEAD.replace(b"test", b"enclose.example") + b"\r\nabc", "/v1/predict"),
        (HEAD.replace(b"POST", b"post") + b"\r\nabc", None),
        (HEAD.replace(b"Length: 3", b"Length: 3\r\n 4") + b"\r\nabc", None),
        (HEAD.replace(b"Host: test\r\n", b"Host: test\nX: 1\r\n") + b"\r\nabc", None),
        (HEAD.replace(b"Host: test\r\n", b"") + b"\r\nabc", None),
        (HEAD + b"Host: other\r\n\r\nabc", None),
        (HEAD.replace(b"predict?a=1", b"pre\r\ndict") + b"\r\nabc", None),
        (HEAD + b"X: a\0b\r\n\r\nabc", None),
    ],
)
def test_only_whole_simple_requests_are_refused_without_parsing(data: bytes, path: str | None) -> None:
    assert _path_of_post(data) == path


def test_refused_body_that_never_ends_closes_the_connection() -> None:
    sent = list[Any]()

    async def never() -> Any:
        await asyncio.Event().wait()

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(busy_app(0.0)({"type": "http", "headers": [], "method": "POST"}, never, send))  # type: ignore[arg-type]
    assert sent[0]["status"] == 503
    assert (b"connection", b"close") in sent[0]["headers"]


@pytest.mark.parametrize(("accepts", "least", "most"), [(64, 400, 400), (4, 1, 60)])
def test_a_turn_accepts_many_connections_in_a_group_few(accepts: int, least: int, most: int) -> None:
    async def run() -> None:
        accepted = 0

        class Counting(asyncio.Protocol):
            def __init__(self, **_: Any) -> None:
                pass

            def connection_made(self, transport: Any) -> None:
                nonlocal accepted
                accepted += 1
                transport.close()

        config = uvicorn.Config(PlainTextResponse(""), port=0, http=Counting, lifespan="off", log_level="critical")  # type: ignore[arg-type]
        server = Server(config)
        assert server.accepts == 64
        server.accepts = accepts  # as `run` sets it in a group
        task = asyncio.create_task(server.serve())
        await until_in_loop(lambda: server.started)
        address = server.servers[0].sockets[0].getsockname()
        clients = [socket.create_connection(address) for _ in range(400)]  # the loop has no turn meanwhile
        await let_turn(10)
        count = accepted
        server.should_exit = True
        await task
        for client in clients:
            client.close()
        assert least <= count <= most

    uvloop.run(run())


def test_remembered_answers_that_no_client_repeats_are_not_looked_for() -> None:
    recent, request = RecentAnswers(), ModelRequest((np.zeros((1, 1), np.float32),))
    recent.add(("known",), request, np.zeros((1, 3), np.float32))
    for _ in range(256):
        recent.get(("new",))
    assert not recent.is_useful
    for _ in range(128):  # answers meanwhile; one of 64 requests is looked for
        recent.keeps_next()
    assert recent.is_useful
    assert recent.get(("known",)) is not None
    for _ in range(255):
        recent.get(("new",))
    assert recent.is_useful


def test_few_answers_are_kept_while_no_client_repeats_a_request() -> None:
    recent, request, answer = (
        RecentAnswers(),
        ModelRequest((np.zeros((1, 1), np.float32),)),
        np.zeros((1, 3), np.float32),
    )

    def kept(requests: int) -> int:
        return sum(recent.keeps_next() for _ in range(requests))

    assert kept(100) == 100
    for number in range(4096):
        recent.add((str(number),), request, answer)
    assert kept(160) == 10
    recent.add(("0",), request, answer)  # a client repeats one
    assert kept(100) == 100
