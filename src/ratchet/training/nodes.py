"""Several machines, here called nodes, that share the steps of a training.

The first node runs the training, and has a TCPStore of torch.distributed. The others write one entry each there, again
and again, and read what the first one decides. All entries are JSON.
"""

import contextlib
import fcntl
import json
import os
import socket
import struct
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

from torch import distributed

from ratchet.errors import RatchetError, TrainingError
from ratchet.files import DRAFT
from ratchet.training.events import Event, Finished, Notice, Stopped
from ratchet.training.inputs import TrainingInputs
from ratchet.training.plan import Plan
from ratchet.training.rank_processes import END_SECONDS, RankJob, RankProcesses
from ratchet.training.ranks import Board, LostRank, Meeting
from ratchet.training.sample_timeout import Interrupted

__all__ = ["FirstNode", "join_training", "node_range", "rendezvous_mark"]

NO_RESULT = "it starts processes on several machines; what they compute is decided elsewhere"

_SILENCE = 6.0  # seconds without a sign of life after which a node is lost
_LOOK = 0.3  # seconds between two signs of life
_GATHER = 600.0  # seconds to wait for the fewest nodes, or for the first one
_LAST_CALL = 15.0  # seconds to wait for more than the fewest
_LOST_SECONDS = 3.0  # that processes may take to end after a loss
_ANSWER = timedelta(seconds=30)  # of the store
_SIOCGIFADDR = 0x8915  # Linux: address of a network interface
_NetworkErrors = (RuntimeError, distributed.DistError, OSError)


@dataclass(frozen=True)
class NodesMeeting(Meeting):
    """Meeting place of the ranks of several nodes. `path` names the attempt; each node has `share` ranks."""

    host: str
    port: int
    names: tuple[str, ...]
    share: int

    @property
    def interface(self) -> str:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((self.host, self.port))  # sends nothing
            address = probe.getsockname()[0]
            for _, name in socket.if_nameindex():
                with contextlib.suppress(OSError):  # it has no address
                    answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, struct.pack("256s", name.encode()))
                    if socket.inet_ntoa(answer[20:24]) == address:
                        return name
        raise TrainingError(f"no network interface of this machine has the address {address}")

    def store(self, count: int) -> Any:
        return distributed.distributed_c10d.PrefixStore(f"attempt-{self.path}", _client(self.host, self.port))

    def board(self, count: int) -> Board:
        return _StoreBoard(count, self.store(count))

    def name(self, rank: int) -> str:
        return f"process {rank + 1} (node {self.names[rank // self.share]})"


class _StoreBoard(Board):
    """Like a board in shared memory. It compares clocks of machines, which may differ by some minutes."""

    def __init__(self, count: int, store: Any) -> None:
        super().__init__(count)
        self._count, self._store = count, store

    def see(self, rank: int) -> None:
        self._store.set(f"seen-{rank}", str(time.time()))

    def missing(self, seconds: float) -> list[int]:
        oldest, keys = time.time() - seconds, [f"seen-{rank}" for rank in range(self._count)]
        seen = [float(self._store.get(key)) if self._store.check([key]) else 0.0 for key in keys]
        return [rank for rank, when in enumerate(seen) if when < oldest]

    def ask_to_stop(self) -> None:
        self._store.set("stop", "1")

    def is_asked_to_stop(self) -> bool:
        try:
            return bool(self._store.check(["stop"]))
        except _NetworkErrors:  # the first node is lost, and this training with it
            return True


@dataclass
class _Node:
    """Another node, as the first one sees it."""

    number: int
    entry: dict[str, Any] = field(default_factory=dict)
    seen: float = 0.0  # when its entry last changed
    seen_before: float = 0.0  # when it changed before that

    @property
    def name(self) -> str:
        return str(self.entry.get("name"))

    @property
    def has_to_leave(self) -> bool:
        """Whether it may still wait for the end: a busy machine is silent for longer than one that trains should be."""
        return time.monotonic() - self.seen < 3 * _SILENCE and not self.entry.get("has_left")

    @property
    def is_ready(self) -> bool:
        """Whether it can take part."""
        is_seen = time.monotonic() - self.seen < _SILENCE
        return is_seen and bool(self.entry.get("is_prepared")) and not self.entry.get("has_left")


class FirstNode:
    """The node that owns the project, and what it knows of the others. As a context it opens the rendezvous.

    Args:
        share: processes of each node.
        facts: what must be equal on all nodes, plain data.
        checkpoints: folder of the training's checkpoints, which all nodes must see.
    """

    def __init__(
        self, plan: Plan, *, share: int, facts: Mapping[str, Any], checkpoints: Path, stop: Callable[[], bool]
    ) -> None:
        least, most = node_range(plan.nodes)
        self.sizes = [nodes for nodes in range(least, most + 1) if plan.pieces % (nodes * share) == 0]
        if not self.sizes:
            raise TrainingError(
                f"training.nodes: found {plan.nodes}, and no such number of nodes, with {share} of training.processes "
                f"each, shares the {plan.pieces} of training.pieces equally. Fix: another training.nodes, or `ratchet "
                f"set training.pieces={2 * share}`, which decides the weights"
            )
        self.share, self.checkpoints, self.members = share, checkpoints, list[_Node]()
        self._ending = {"is_finished": False, "text": "the training has ended with an error on the first node"}
        self._address, self._stop = plan.rendezvous, stop
        self._nodes: dict[int, _Node] = {}
        self._refused: list[str] = []
        self._state: dict[str, Any] = {"facts": dict(facts), "attempt": None, "connect": 0, "lost": 0, "end": None}
        self._looked, self._number = 0.0, 0

    def __enter__(self) -> "FirstNode":
        host, port = _host_and_port(self._address)
        try:
            listener = socket.create_server((host, port))
        except OSError as error:
            raise TrainingError(
                f"training.rendezvous: found {self._address}, which this machine cannot open ({error}). Allowed: an "
                "address of this machine, by which the other nodes reach it, and a free port. Fix: `ratchet set "
                "training.rendezvous=ADDRESS:PORT`"
            ) from error
        self._store = distributed.TCPStore(  # type: ignore[attr-defined]
            host, port, None, True, _ANSWER, wait_for_workers=False, master_listen_fd=listener.detach()
        )
        self._mark, token = rendezvous_mark(self.checkpoints), os.urandom(8).hex()
        self._mark.parent.mkdir(parents=True, exist_ok=True)
        self._mark.write_text(token)
        self._publish(token=token)
        return self

    def __exit__(self, *_: object) -> None:
        self._publish(end=self._ending)
        deadline = time.monotonic() + END_SECONDS
        while any(node.has_to_leave for node in self._nodes.values()) and time.monotonic() < deadline:
            time.sleep(_LOOK)
            self._look()
        self._mark.unlink(missing_ok=True)
        del self._store

    def follow(self, event: Event) -> None:
        """Note how the training ends, for the other nodes."""
        if isinstance(event, Finished):
            self._ending = {"is_finished": True, "text": f"the training has ended at step {event.step:,}"}
        elif isinstance(event, Stopped):
            self._ending["text"] = f"the training was stopped at step {event.step:,}"

    @property
    def meeting(self) -> NodesMeeting:
        """Return the meeting place of the present attempt."""
        names = (socket.gethostname(), *(node.name for node in self.members))
        return NodesMeeting(str(self._number), *_host_and_port(self._address), names, self.share)

    def gather(self, threads: int) -> Iterator[Event]:
        """Choose the nodes of the next attempt: the most that fit, after waiting for more.

        Raises:
            TrainingError: too few have come.
            Interrupted: the run was asked to stop.
        """
        self._look()
        began = time.monotonic()
        if not self._nodes:
            yield Notice(f"waits for other nodes: run `ratchet join {self._address}` on each")
        while True:
            if self._stop():
                raise Interrupted
            self._look()
            yield from (Notice(self._refused.pop(0)) for _ in list(self._refused))
            # One entry may be of a node that has ended: its kernel still sends it when a cut network is there again.
            nodes = [node for node in self._nodes.values() if node.is_ready and node.seen_before > began]
            size, waited = self._size(1 + len(nodes)), time.monotonic() - began
            if size == self.sizes[-1] or (size and waited > _LAST_CALL):
                break
            if waited > _GATHER:
                raise TrainingError(
                    f"training.nodes: {1 + len(nodes)} of at least {self.sizes[0]} nodes came to {self._address} in "
                    f"{_GATHER:.0f} s. Fix: run `ratchet join {self._address}` on the others, then this command again"
                )
            time.sleep(_LOOK)
        self.members, self._number = nodes[: size - 1], self._number + 1
        ranks = {str(node.number): at * self.share for at, node in enumerate(self.members, 1)}
        names, count = self.meeting.names, size * self.share
        attempt = {"number": self._number, "ranks": ranks, "names": names, "count": count}
        self._publish(attempt={**attempt, "share": self.share, "threads": threads})
        yield Notice(f"{size} nodes ({', '.join(names)}) with {self.share} processes each share a step")

    def _size(self, present: int) -> int:
        """Return the largest allowed number of nodes of those present; 0: there are too few."""
        return max((size for size in self.sizes if size <= present), default=0)

    def can_grow(self) -> bool:
        """Return whether a node waits with which more nodes could train. It looks seldom."""
        if time.monotonic() - self._looked > _LOOK:
            self._look()
        return self._size(1 + sum(node.is_ready for node in self._nodes.values())) > 1 + len(self.members)

    def connect(self) -> None:
        """Wait until the processes of the other nodes are ready to connect, then let them."""
        while any(node.entry.get("ready") != self._number for node in self.members):
            if self._stop():
                raise Interrupted
            self.require_all()
            time.sleep(_LOOK)
        self._publish(connect=self._number)

    def require_all(self) -> None:
        """Raise LostRank if another node does not take part any more."""
        self._look()
        for node in self.members:
            if self._report(node):
                raise LostRank(f"one of node {node.name} has ended")
            if node.entry["has_left"]:
                raise LostRank(f"node {node.name} has left")
            if not node.is_ready:
                raise LostRank(f"node {node.name} has not answered for {_SILENCE:.0f} s")

    def end_attempt(self) -> list[tuple[str, list[str]]]:
        """End the processes of the other nodes after a loss. Return the error, and the signals, of each node."""
        self._publish(lost=self._number)
        deadline = time.monotonic() + 2 * _LOST_SECONDS
        while any(node.is_ready and not self._report(node) for node in self.members) and time.monotonic() < deadline:
            time.sleep(_LOOK)
            self._look()
        return [(error, signals) for node in self.members for _, error, signals in self._report(node)]

    def _report(self, node: _Node) -> list[Any]:
        """Return the node's report of this attempt in a list, or none."""
        report = node.entry.get("report")
        return [report] if report and report[0] == self._number else []

    def _publish(self, **changes: Any) -> None:
        self._state |= changes
        self._store.set("state", json.dumps(self._state))

    def _look(self) -> None:
        """Read the entries of all nodes."""
        self._looked = time.monotonic()
        for number in range(len(self._nodes) + 1, self._store.add("nodes", 0) + 1):
            self._nodes[number] = _Node(number)
        for node in self._nodes.values():
            key = f"node-{node.number}"
            entry = json.loads(self._store.get(key)) if self._store.check([key]) else node.entry
            if entry != node.entry:
                if (reason := entry.get("refused")) and not node.entry.get("refused"):
                    self._refused.append(f"node {entry['name']} cannot take part: {reason}")
                node.entry, node.seen, node.seen_before = entry, self._looked, node.seen


class _Link:
    """Exchange with the first node, in a thread: without a network it blocks."""

    def __init__(self, store: Any, name: str) -> None:
        self.number = store.add("nodes", 1)
        self._store, self._closing = store, threading.Event()
        self._entry: dict[str, Any] = {"name": name, "is_prepared": False, "has_left": False}
        self.state: dict[str, Any] = json.loads(store.get("state"))
        self._answered, self._error = time.monotonic(), ""
        self._thread = threading.Thread(target=self._exchange, name="node-link", daemon=True)
        self._thread.start()

    def _exchange(self) -> None:
        is_last = beat = 0
        try:
            while not is_last:
                is_last, beat = int(self._closing.wait(_LOOK)), beat + 1
                self._store.set(f"node-{self.number}", json.dumps({**self._entry, "beat": beat}))
                self.state = json.loads(self._store.get("state"))
                self._answered = time.monotonic()
        except _NetworkErrors as error:
            self._error = str(error).splitlines()[0]

    def look(self) -> dict[str, Any]:
        """Return what the first node has published. Raise _LostFirst if it does not answer."""
        silence = time.monotonic() - self._answered
        if self._error or silence > _SILENCE:
            raise _LostFirst(self._error or f"no answer for {silence:.0f} s")
        return self.state

    def report(self, **entry: Any) -> None:
        self._entry = {**self._entry, **entry}

    def close(self, **entry: Any) -> None:
        """Send a last entry, if the network allows it."""
        self.report(has_left=True, **entry)
        self._closing.set()
        self._thread.join(_LOST_SECONDS)


class _LostFirst(LostRank):
    """The first node has ended, or cannot be reached."""


def join_training(
    address: str,
    *,
    prepare: Callable[[dict[str, Any]], tuple[TrainingInputs, Path, Path]],
    say: Callable[[str], None],
) -> None:
    """Take part in the training of the first node, until it ends.

    Args:
        prepare: called with what the first node says of the training; returns the inputs, the folder of the packed set
            and the folder of the checkpoints. It raises an error if this node cannot take part.

    Raises:
        TrainingError: there is no first node, it is lost, or its training has not been finished.
    """
    host, port = _host_and_port(address)
    link = _Link(_first_node(host, port, say), socket.gethostname())
    try:
        inputs, packed, checkpoints = prepare(link.state)
    except RatchetError as error:
        link.close(refused=str(error))
        raise
    link.report(is_prepared=True)
    say(f"waits for the training of {address}")
    done = 0
    try:
        while (end := link.look()["end"]) is None:
            attempt = link.state["attempt"]
            if attempt and done < attempt["number"] and str(link.number) in attempt["ranks"]:
                done, first = attempt["number"], attempt["ranks"][str(link.number)]
                meeting = NodesMeeting(str(done), host, port, tuple(attempt["names"]), attempt["share"])
                job = RankJob(inputs, packed, checkpoints, attempt["count"], attempt["threads"], meeting, first)
                say(f"{meeting.share} of {job.count} processes train here")
                _take_part(link, job, done, meeting.share)
            time.sleep(_LOOK)
    except _LostFirst as error:
        raise TrainingError(
            f"the first node at {address} is lost ({error}). Fix: when it runs again, `ratchet join {address}`"
        ) from error
    finally:
        link.close()
    if not end["is_finished"]:
        raise TrainingError(f"{end['text']}. Fix: when it runs again, `ratchet join {address}`")
    say(end["text"])


def _take_part(link: _Link, job: RankJob, number: int, share: int) -> None:
    """Run this node's processes of an attempt until they end, and report how."""

    def is_over() -> bool:
        state = link.look()
        return state["lost"] >= number or state["end"] is not None

    with tempfile.TemporaryDirectory(prefix="ratchet-node-") as logs:
        processes = RankProcesses(job, range(job.first, job.first + share), Path(logs))
        seconds, is_connected = 0.0, False
        try:
            processes.start(is_over)
            link.report(ready=number)
            while not processes.have_trained and not is_over():
                processes.require_all()
                if not is_connected and link.look()["connect"] == number:
                    processes.connect()
                    is_connected = True
                time.sleep(_LOOK)
            seconds = END_SECONDS if processes.have_trained else _LOST_SECONDS
        except _LostFirst:
            raise
        except (LostRank, Interrupted):
            seconds = _LOST_SECONDS
        finally:
            processes.end(seconds)
        if not processes.have_trained:
            link.report(report=[number, processes.error, processes.signals])


def node_range(nodes: int | str) -> tuple[int, int]:
    """Return the fewest and the most nodes of a setting such as 2 or 2:4."""
    least, _, most = str(nodes).partition(":")
    return int(least), int(most or least)


def rendezvous_mark(checkpoints: Path) -> Path:
    """Return the file by which a node sees that its folder of checkpoints is that of the first node."""
    return checkpoints.with_name(f"{DRAFT}{checkpoints.name}-rendezvous")


def _host_and_port(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise TrainingError(
            f"training.rendezvous: found {address}. Allowed: HOST:PORT of the first node. Fix: `ratchet set "
            "training.rendezvous=HOST:29400`"
        )
    return host, int(port)


def _client(host: str, port: int) -> Any:
    return distributed.TCPStore(host, port, None, False, _ANSWER, wait_for_workers=False)  # type: ignore[attr-defined]


def _first_node(host: str, port: int, say: Callable[[str], None]) -> Any:
    """Return the store of the first node, which may start later.

    Raises:
        TrainingError: it does not answer.
    """
    began, has_said = time.monotonic(), False
    while True:
        try:
            socket.create_connection((host, port), timeout=_SILENCE).close()
            return _client(host, port)
        except _NetworkErrors as error:
            if time.monotonic() - began > _GATHER or isinstance(error, socket.gaierror):
                raise TrainingError(
                    f"no first node answers at {host}:{port} ({str(error).splitlines()[0]}). Allowed: the "
                    "training.rendezvous of a `ratchet train` that runs. Fix: start it, and let its firewall allow the "
                    "connection"
                ) from error
        if not has_said:
            say(f"waits for the first node at {host}:{port}")
            has_said = True
        time.sleep(_LOOK)
