"""Limits of a request's head: a client cannot fill the memory with headers, or keep a connection without a request."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvicorn
from waiting import until

from ratchet.serving import http_protocol
from ratchet.serving.http_protocol import HeadLimits
from ratchet.serving.http_request import TooLarge, answer_first, error_response

HEAD = b"POST /a HTTP/1.1\r\nHost: localhost\r\n"
CHUNKS = b"2\r\nab\r\n0\r\n"


async def app(scope: Any, receive: Any, send: Any) -> None:
    """Answer with the number of bytes of the body."""
    size, more = 0, True
    while more:
        message = await receive()
        size, more = size + len(message.get("body", b"")), message.get("more_body", False)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"8")]})
    await send({"type": "http.response.body", "body": b"%08d" % size})


def served(
    client: Callable[[int], Coroutine[Any, Any, None]], http: type[HeadLimits] = HeadLimits, app: Any = app
) -> None:
    """Run a client with the port of a server."""

    async def run() -> None:
        config = uvicorn.Config(app, port=0, http=http, lifespan="off", log_level="critical")
        server = uvicorn.Server(config)
        task = asyncio.create_task(server.serve())
        await asyncio.to_thread(until, lambda: server.started)
        await client(server.servers[0].sockets[0].getsockname()[1])
        server.should_exit = True
        await task

    asyncio.run(run())


async def answer(port: int, *parts: bytes) -> bytes:
    """Send parts, and return what the server sends until it closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        for part in parts:
            writer.write(part)
            await writer.drain()
            await asyncio.to_thread(lambda: None)  # the server's turn
        return await reader.read()
    except ConnectionError:  # the rest was not read
        return b"closed"
    finally:
        writer.close()


async def refuse(scope: Any, receive: Any, send: Any) -> None:
    """Refuse a request without reading its body."""
    await send({"type": "http.response.start", "status": 413, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body", "body": b""})


def test_refusal_before_100_continue_closes_the_connection() -> None:
    """The next request of the client would be taken for the body that it did not send."""

    async def client(port: int) -> None:
        head = HEAD + b"Expect: 100-continue\r\nContent-Length: 99\r\n\r\n"
        received = await answer(port, head)  # until the server closes
        assert received.startswith(b"HTTP/1.1 413 ")

    served(client, app=refuse)


async def answer_at_once(scope: Any, receive: Any, send: Any) -> None:
    """Refuse a request, and receive its body afterwards."""
    await answer_first(error_response(TooLarge(1 << 20)), scope, receive, send, seconds=60)


@pytest.mark.parametrize("last", [b"", b"Connection: close\r\n"])
def test_answer_before_the_body_leaves_the_connection_usable(last: bytes) -> None:
    """The client gets the whole answer before it sends a byte of the body."""

    async def client(port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for more in (b"", last):
            writer.write(HEAD + more + b"Content-Length: 2000000\r\n\r\n")
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 413 ")
            length = int(head.lower().partition(b"content-length: ")[2].split()[0])
            assert b"larger than 1 MiB" in await reader.readexactly(length)
            writer.write(b"a" * 2_000_000)
            await writer.drain()
        if last:
            assert await reader.read() == b""
        writer.close()

    served(client, app=answer_at_once)


def test_a_head_that_is_too_long_is_refused() -> None:
    async def client(port: int) -> None:
        many = [b"X-%d: a\r\n" % number * 500 for number in range(1000)]  # 4 MB in many headers
        assert await answer(port, HEAD, *many) in (b"closed", b"") or b"400 Bad Request" in await answer(
            port, HEAD, *many
        )
        whole = await answer(port, HEAD + b"X: ", b"a" * 50_000, b"b" * 20_000)  # one header
        assert whole.startswith(b"HTTP/1.1 400 Bad Request")
        assert whole.endswith(b"The head of the request is longer than 64 KiB.")

    served(client)


def test_bodies_and_further_requests_are_not_part_of_a_head() -> None:
    body = b"a" * 200_000
    request = HEAD + b"Content-Length: 200000\r\n\r\n" + body

    async def client(port: int) -> None:
        last = request.replace(b"Host", b"Connection: close\r\nHost")
        got = await answer(port, request, request[:30], request[30:100], request[100:], last)
        assert got.count(b"200 OK") == 3
        assert got.count(b"00200000") == 3

    served(client)


def test_a_connection_without_a_whole_head_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_protocol, "_SECONDS", 0.3)

    async def client(port: int) -> None:
        assert await answer(port) == b""
        assert await answer(port, HEAD) == b""
        whole = HEAD + b"Content-Length: 0\r\n\r\n"
        first, _, rest = (await answer(port, whole, HEAD)).partition(b"00000000")
        assert b"200 OK" in first
        assert rest == b""

    served(client)


class Few(HeadLimits):
    """Three connections at a time."""

    most = 3


def test_idle_connections_make_room_for_new_ones() -> None:
    async def client(port: int) -> None:
        idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
        whole = HEAD.replace(b"Host", b"Connection: close\r\nHost") + b"Content-Length: 3\r\n\r\nabc"
        assert b"200 OK" in await answer(port, whole)
        assert await idle[0][0].read() == b""  # the oldest one was closed
        idle[1][1].write(whole)
        assert b"200 OK" in await idle[1][0].read()
        for _, writer in idle:
            writer.close()

    served(client, Few)


def test_health_is_answered_when_all_connections_are_busy() -> None:
    async def client(port: int) -> None:
        busy = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
        part = HEAD + b"Content-Length: 6\r\n\r\nabc"
        for _, writer in busy:
            writer.write(part + b"")
            await writer.drain()
        health = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        assert b"200 OK" in await answer(port, health)
        refused = await answer(port, HEAD + b"Connection: close\r\nContent-Length: 0\r\n\r\n")
        assert b"503 Service Unavailable" in refused
        assert b"too many connections are open" in refused
        for reader, writer in busy:
            writer.write(b"def")
            assert b"200 OK" in await reader.readline()
            writer.close()

    served(client, Few)


def test_scope_says_when_requests_began_and_clients_left() -> None:
    left, scopes = asyncio.Event(), list[Any]()

    class Noticed(HeadLimits):
        """Notes scopes, and the end of a connection."""

        def on_message_begin(self) -> None:
            super().on_message_begin()
            scopes.append(self.scope)

        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            left.set()

    async def client(port: int) -> None:
        began = time.monotonic()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(HEAD + b"Content-Length: 0\r\n\r\n")
        assert b"200 OK" in await reader.readline()
        (scope,) = scopes
        assert began <= scope["ratchet.began"] <= time.monotonic()
        assert not scope["ratchet.has_left"]()
        writer.close()
        await left.wait()
        assert scope["ratchet.has_left"]()

    served(client, Noticed)


def test_trailers_are_no_headers() -> None:
    scopes: list[Any] = []

    async def noted(scope: Any, receive: Any, send: Any) -> None:
        scopes.append(scope)
        await app(scope, receive, send)

    async def client(port: int) -> None:
        more = b"Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
        trailer = b"".join(b"Name-%d: %s\r\n" % (number, bytes([97]) * 1000) for number in range(10))
        reply = await answer(port, HEAD, more, CHUNKS, trailer, b"Authorization: Bearer key\r\n\r\n")
        assert reply.endswith(b"00000002")

    served(client, app=noted)
    names = [name for name, _ in scopes[0]["headers"]]
    assert names == [b"host", b"connection", b"transfer-encoding"]


@pytest.mark.parametrize(
    ("first", "last"),
    [(CHUNKS + b"Name: ", b"\r\n\r\n"), (CHUNKS, b"\r\n"), (b"2;name=", b"\r\nab\r\n0\r\n\r\n")],
)
def test_lines_beside_a_body_have_a_limit(first: bytes, last: bytes) -> None:
    """A long trailer, many of them, and a long extension of a chunk: the parser would keep all."""

    async def client(port: int) -> None:
        line = b"a" * 1000 if first != CHUNKS else b"Name: " + b"a" * 1000 + b"\r\n"
        head = HEAD + b"Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
        reply = await answer(port, head, first, *[line * 10] * 200, last)
        assert reply in (b"closed", b"") or reply.startswith(b"HTTP/1.1 400 ")

    served(client)


def test_large_bodies_in_small_chunks_have_no_such_limit() -> None:
    async def client(port: int) -> None:
        head = HEAD + b"Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
        reply = await answer(port, head, *[b"2\r\nab\r\n" * 100] * 500, b"0\r\n\r\n")
        assert reply.endswith(b"%08d" % 100_000)

    served(client)
