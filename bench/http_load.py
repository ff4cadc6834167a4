"""HTTP client for load tests: prepared requests on connections that stay open, with little work for each request.

With a rate it needs a core of its own: timers of uvloop have whole milliseconds, so it waits actively for the last two
before a request is due. Requests that are sent together once per millisecond would measure their queue in the server.
"""

import asyncio
import gc
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import cast

__all__ = ["Load", "measure_load"]

_HEAD_END = b"\r\n\r\n"
_TICKS = 0.002  # seconds before a due time in which no timer is used


@dataclass
class Load:
    """Answers of one load test.

    Attributes:
        status: how many answers had each HTTP status.
        latencies: seconds of the answers with status 200; with a rate, from the time at which the request was due.
    """

    seconds: float = 0.0
    status: dict[int, int] = field(default_factory=dict)
    latencies: list[float] = field(default_factory=list)

    @property
    def rate(self) -> float:
        """Answers with status 200 per second."""
        return len(self.latencies) / self.seconds

    def quantile(self, share: float) -> float:
        """Return a quantile of the latencies, in seconds."""
        ordered = sorted(self.latencies)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


class _Connection(asyncio.Protocol):
    """One connection; `ask` sends a request and returns status and body."""

    def __init__(self) -> None:
        self._received = bytearray()
        self._answer: asyncio.Future[tuple[int, bytes]] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # that of uvloop does not inherit from it

    def connection_lost(self, error: Exception | None) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error or ConnectionError("the server closed the connection"))

    def data_received(self, data: bytes) -> None:
        self._received += data
        head = self._received.find(_HEAD_END)
        if head < 0:
            return
        lines = bytes(self._received[:head]).lower().split(b"\r\n")
        length = next(int(line[15:]) for line in lines if line.startswith(b"content-length:"))
        start = head + len(_HEAD_END)
        if len(self._received) >= start + length and self._answer is not None:
            body = bytes(self._received[start : start + length])
            del self._received[: start + length]
            self._answer.set_result((int(lines[0].split(b" ")[1]), body))

    def ask(self, request: bytes) -> "asyncio.Future[tuple[int, bytes]]":
        self._answer = asyncio.get_running_loop().create_future()
        self.transport.write(request)
        return self._answer


def measure_load(
    port: int,
    requests: Sequence[bytes],
    *,
    connections: int,
    seconds: float,
    rate: float | None = None,
    check: Callable[[int, bytes], bool],
) -> Load:
    """Send requests for a time, and check each answer with status 200.

    Args:
        requests: whole HTTP requests, sent in turn.
        connections: each has one request at a time.
        rate: requests per second that become due; None: each connection asks again as soon as it is answered.
        check: returns whether the body that answers a request, which is given by its position, is right.

    Raises:
        RuntimeError: an answer is wrong, or has another status than 200 and 503.
    """
    import uvloop

    gc.collect()
    gc.freeze()  # a collection of all objects of the benchmark would count as latency
    return uvloop.run(_load(port, requests, connections, seconds, rate, check))


async def _load(
    port: int,
    requests: Sequence[bytes],
    connections: int,
    seconds: float,
    rate: float | None,
    check: Callable[[int, bytes], bool],
) -> Load:
    loop, load = asyncio.get_running_loop(), Load()
    opened = [(await loop.create_connection(_Connection, "127.0.0.1", port))[1] for _ in range(connections)]
    began = time.perf_counter()
    due, turn = _due(began, seconds, rate), asyncio.Lock()

    async def ask_all(connection: _Connection) -> None:
        while True:
            async with turn:
                number, when = next(due, (-1, 0.0))
                await _until(when)
            if number < 0:
                return
            sent = when if rate else time.perf_counter()
            place = number % len(requests)
            status, body = await connection.ask(requests[place])
            load.status[status] = load.status.get(status, 0) + 1
            if status == 200:
                load.latencies.append(time.perf_counter() - sent)
            if status not in (200, 503) or (status == 200 and not check(place, body)):
                raise RuntimeError(f"request {place}: wrong answer with status {status}: {body[:300]!r}")

    async with asyncio.TaskGroup() as group:
        for connection in opened:
            group.create_task(ask_all(connection))
    load.seconds = time.perf_counter() - began
    for connection in opened:
        connection.transport.close()
    return load


async def _until(when: float) -> None:
    while (wait := when - time.perf_counter()) > 0:
        await asyncio.sleep(max(0.0, wait - _TICKS))


def _due(began: float, seconds: float, rate: float | None) -> Iterator[tuple[int, float]]:
    """Yield the number of each request and when it is due."""
    number = 0
    while True:
        when = began + number / rate if rate else time.perf_counter()
        if when >= began + seconds:
            return
        yield number, when
        number += 1
