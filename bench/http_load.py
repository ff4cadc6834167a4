"""HTTP client for load tests: prepared requests on connections that stay open, with 10 microseconds for each request.

It is one loop over raw sockets, because a client that is late itself makes a server look slow. Answers are compared
after the last one has come. With a rate it needs a core of its own, since it waits actively for the time at which the
next request is due; `Load.late` says how well it kept these times.
"""

import gc
import re
import select
import socket
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

__all__ = ["Load", "measure_load"]

_HEAD_END = b"\r\n\r\n"
_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
_ANSWERED = (200, 503)
_CHECKED = 50_000  # answers that are all kept to be compared; of further ones every 64th is
_EVERY = 64
_HEALTH = "GET /health HTTP/1.1\r\nHost: 127.0.0.1:{}\r\n\r\n"
_HEALTH_PAUSE = 0.25  # seconds between two
_PATIENCE = 60.0  # seconds without any answer, after the last request


@dataclass
class Load:
    """Answers of one load test.

    Attributes:
        seconds: from the first request to the last answer.
        status: how many answers had each HTTP status; 0: the server closed the connection instead.
        latencies: seconds of the answers with status 200; with a rate, from the time at which the request was due.
        refusals: the same of the answers with status 503.
        late: seconds from the time at which each request was due until it was sent.
        health: seconds of answers to GET /health, each over a new connection.
        cpu: CPU seconds of this client.
    """

    seconds: float = 0.0
    status: dict[int, int] = field(default_factory=dict)
    latencies: list[float] = field(default_factory=list)
    refusals: list[float] = field(default_factory=list)
    late: list[float] = field(default_factory=list)
    health: list[float] = field(default_factory=list)
    cpu: float = 0.0

    @property
    def rate(self) -> float:
        """Answers with status 200 per second."""
        return len(self.latencies) / self.seconds

    def quantile(self, share: float) -> float:
        """Return a quantile of the latencies, in seconds."""
        ordered = sorted(self.latencies)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


class _Connection:
    """A connection, which has one request at a time."""

    def __init__(self, port: int, poll: select.epoll) -> None:
        """Connect, without waiting for it."""
        self.socket = socket.socket()
        self.socket.setblocking(False)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.connect_ex(("127.0.0.1", port))
        self.is_open, self.place, self.began, self.received = False, -1, 0.0, b""
        poll.register(self.socket, select.EPOLLOUT)

    def send(self, place: int, request: bytes, began: float) -> None:
        """Send a request, which is small enough for the buffer of the socket."""
        self.place, self.began = place, began
        if self.socket.send(request) < len(request):
            raise RuntimeError(f"request {place}: its {len(request)} bytes do not fit in the buffer of a socket")

    def answer(self) -> tuple[int, bytes] | None:
        """Return status and body once all of it has come.

        Raises:
            ConnectionError: the server has closed the connection.
        """
        received = self.socket.recv(1 << 18)
        if not received:
            raise ConnectionResetError
        if self.received:
            received = self.received + received
        end = received.find(_HEAD_END)
        length = _LENGTH.search(received, 0, end) if end >= 0 else None
        if length is None or len(received) < end + 4 + int(length[1]):
            self.received = received
            return None
        self.received = b""
        return int(received[9:12]), received[end + 4 :]


def measure_load(
    port: int,
    requests: Sequence[bytes],
    *,
    connections: int,
    seconds: float,
    rate: float | None = None,
    check: Callable[[int, bytes], bool],
) -> Load:
    """Send requests for a time, and check answers with status 200.

    Args:
        requests: whole HTTP requests, sent in turn.
        connections: each has one request at a time.
        rate: requests per second that become due; None: each connection asks again as soon as it is answered.
        check: returns whether the body that answers a request, which is given by its position, is right.

    Raises:
        RuntimeError: an answer is wrong, or has another status than 200 and 503.
    """
    gc.collect()
    gc.freeze()  # a collection of all objects of the benchmark would count as latency
    client = _Client(port, requests, connections)
    load, answers = client.ask(seconds, rate)
    for place, status, body in answers:
        if status not in _ANSWERED or (status == 200 and not check(place, body)):
            raise RuntimeError(f"request {place}: wrong answer with status {status}: {body[:300]!r}")
    return load


class _Client:
    """Connections to a server, and the loop that uses them."""

    def __init__(self, port: int, requests: Sequence[bytes], connections: int) -> None:
        self._port, self._requests, self._poll = port, requests, select.epoll()
        self._connections = dict[int, _Connection]()
        self._free, self._asking = deque[_Connection](), 0
        self._load, self._answers = Load(), list[tuple[int, int, bytes]]()
        self._health: _Connection | None = None
        self._next_health = 0.0
        for _ in range(connections):
            self._connect()
            self._take_events(0.0)
        while len(self._free) < connections:
            self._take_events(1.0)

    def ask(self, seconds: float, rate: float | None) -> tuple[Load, list[tuple[int, int, bytes]]]:
        """Send requests for so many seconds. Return the load, and positions, status and bodies of answers."""
        number, load, cpu = 0, self._load, time.process_time()
        latest = now = began = time.perf_counter()
        while True:
            now = time.perf_counter()
            while self._free:
                due = began + number / rate if rate else now
                if due > now or due >= began + seconds:
                    break
                self._send(number, due)
                number += 1
            if self._health is None and now > self._next_health:
                self._health = self._connect()
                self._health.began = now
            is_over = (began + number / rate if rate else now) >= began + seconds
            if is_over and not self._asking:
                break
            if self._take_events(0.1 if is_over or not self._free else 0.0):
                latest = time.perf_counter()
            elif is_over and now > latest + _PATIENCE:
                load.status[0] = load.status.get(0, 0) + self._asking
                break
        if self._health:  # without an answer yet
            load.health.append(time.perf_counter() - self._health.began)
        load.seconds, load.cpu = latest - began, time.process_time() - cpu
        for connection in self._connections.values():
            connection.socket.close()
        self._poll.close()
        return load, self._answers

    def _connect(self) -> _Connection:
        connection = _Connection(self._port, self._poll)
        self._connections[connection.socket.fileno()] = connection
        return connection

    def _send(self, number: int, due: float) -> None:
        connection, place = self._free.popleft(), number % len(self._requests)
        self._asking += 1
        try:
            connection.send(place, self._requests[place], due)
        except ConnectionError:
            self._lose(connection)
            return
        self._load.late.append(time.perf_counter() - due)

    def _take_events(self, timeout: float) -> bool:
        """Take answers and connections. Return whether there was one."""
        events = self._poll.poll(timeout)
        for number, _ in events:
            connection = self._connections[number]
            if not connection.is_open:
                connection.is_open = True
                self._poll.modify(number, select.EPOLLIN)
                if connection is self._health:
                    connection.send(-1, _HEALTH.format(self._port).encode(), connection.began)
                else:
                    self._free.append(connection)
                continue
            try:
                answer = connection.answer()
            except ConnectionError:
                self._lose(connection)
                continue
            if answer is not None and connection is self._health:
                self._end_health(connection, answer[0])
            elif answer is not None:
                self._finish(connection, *answer)
        return bool(events)

    def _finish(self, connection: _Connection, status: int, body: bytes) -> None:
        load, place = self._load, connection.place
        load.status[status] = count = load.status.get(status, 0) + 1
        if status in _ANSWERED:
            seconds = time.perf_counter() - connection.began
            (load.latencies if status == 200 else load.refusals).append(seconds)
        if status != 503 and (count <= _CHECKED or count % _EVERY == 0):
            self._answers.append((place, status, body))
        connection.place, self._asking = -1, self._asking - 1
        self._free.append(connection)

    def _end_health(self, connection: _Connection, status: int) -> None:
        if status != 200:
            raise RuntimeError(f"GET /health: status {status}")
        now = time.perf_counter()
        self._load.health.append(now - connection.began)
        self._health, self._next_health = None, now + _HEALTH_PAUSE
        del self._connections[connection.socket.fileno()]
        connection.socket.close()

    def _lose(self, connection: _Connection) -> None:
        """Connect again after the server has closed the connection."""
        if connection is self._health:
            raise RuntimeError("GET /health: the server closed the connection")
        if connection.place >= 0:
            self._load.status[0] = self._load.status.get(0, 0) + 1
            self._asking -= 1
        else:
            self._free.remove(connection)
        del self._connections[connection.socket.fileno()]
        connection.socket.close()
        self._connect()
