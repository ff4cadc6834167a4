"""States of the processes that answer at one address: each writes a block of memory of its own, and reads the others'.

The blocks are files in memory without a name. They are gone when the last process has ended, however it ends, and a
process that is started again finds what the one before it wrote.
"""

import json
import os
import signal
import struct
import time
import zlib
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import orjson

from ratchet.parent_process import end_with_parent

__all__ = ["EVERY", "Member", "SharedStates", "read_block"]

EVERY = 1.0  # seconds between two states of a process
_LATE = 5.0  # seconds after which a state is not that of a process that answers
_VARIABLE = "RATCHET_SERVING_PROCESS"
_HEAD = struct.Struct("<QI")  # length and checksum of the content
_TRIES = 10  # to read a block that is being written


@dataclass(frozen=True)
class Member:
    """One of several processes that answer at one address.

    Attributes:
        number: of the process, from 0.
        listening: file descriptor of the socket from which all of them accept connections.
        blocks: file descriptors of their blocks of memory.
        parent: process id of the process that started it.
        settings_file: file descriptor of a file in memory with the settings that all of them have.
    """

    number: int
    listening: int
    blocks: tuple[int, ...]
    parent: int
    settings_file: int

    @classmethod
    def enter(cls) -> "Member | None":
        """Return the place of this process in its group, and let it end with its parent; None: it has no group."""
        if not (text := os.environ.pop(_VARIABLE, "")):
            return None
        content = json.loads(text)
        member = cls(**content | {"blocks": tuple(content["blocks"])})
        end_with_parent(member.parent)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())  # the parent blocks the signals that it waits for
        return member

    @property
    def settings(self) -> bytes:
        """Settings as JSON. The parent read them, so a process that is started again has those of the others."""
        return os.pread(self.settings_file, os.fstat(self.settings_file).st_size, 0)

    @property
    def environment(self) -> dict[str, str]:
        """Environment variable from which the process reads its place."""
        return {_VARIABLE: json.dumps(asdict(self))}


class SharedStates:
    """The states of a group, as one of its processes sees them.

    Attributes:
        number: of this process.
        earlier: state of the process that had this number before; empty: there was none.
    """

    def __init__(self, member: Member, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Read the state of the process before. `clock`: seconds; the same for all processes."""
        self.number, self._blocks, self._clock = member.number, member.blocks, clock
        self.earlier = read_block(self._blocks[self.number])

    def publish(self, state: dict[str, Any]) -> None:
        """Write the state of this process."""
        content = orjson.dumps({**state, "pid": os.getpid(), "time": self._clock()})
        head = _HEAD.pack(len(content), zlib.crc32(content))
        os.pwrite(self._blocks[self.number], head + content, 0)

    def others(self) -> dict[int, dict[str, Any]]:
        """Return the states of the other processes by number. The field `late` is true of one that does not answer."""
        states = {number: read_block(file) for number, file in enumerate(self._blocks) if number != self.number}
        now = self._clock()
        return {number: {**state, "late": now > state.get("time", 0.0) + _LATE} for number, state in states.items()}


def read_block(file: int) -> dict[str, Any]:
    """Return the latest state in a block; empty if there is none, or if its process was killed while it wrote."""
    for _ in range(_TRIES):
        whole = os.pread(file, os.fstat(file).st_size, 0)
        if len(whole) < _HEAD.size:
            return {}
        length, checksum = _HEAD.unpack_from(whole)
        content = whole[_HEAD.size : _HEAD.size + length]
        if zlib.crc32(content) == checksum:
            state: dict[str, Any] = orjson.loads(content)
            return state
        time.sleep(0)  # lets the writer go on
    return {}
