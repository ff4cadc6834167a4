"""Processes we start: known by pid, time of creation and token, so that another's is never signalled."""

import errno
import json
import os
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from ratchet.errors import PlatformError
from ratchet.platform.guard import KEEP, MARK, end_marked, open_log, tally

__all__ = ["Part", "free_port", "free_port_after", "port_holder", "spawn"]

_GUARD = Path(__file__).with_name("guard.py")


@dataclass(frozen=True)
class Part:
    """One server as started.

    Attributes:
        pid, created: its keeper, and when that began (seconds since the epoch, as psutil gives them).
        token: what all its processes carry in their environment.
        address: where it is; the worker's is the API that it serves.
        public: the address that browsers use; empty where that is the same.
    """

    name: str
    pid: int
    created: float
    token: str
    address: str
    log: Path
    public: str = ""

    @property
    def shown(self) -> str:
        """The address for a person."""
        return self.public or self.address

    def alive(self) -> bool:
        """Is the very process that was started still there? A reused pid is not."""
        try:
            process = psutil.Process(self.pid)
            same = abs(process.create_time() - self.created) < 1.0
            return bool(same and process.status() != psutil.STATUS_ZOMBIE)
        except psutil.NoSuchProcess:
            return False

    def command(self) -> psutil.Process | None:
        """What the keeper runs now; None while nothing runs."""
        try:
            if self.alive():
                children = psutil.Process(self.pid).children()
                return next((child for child in children if child.status() != psutil.STATUS_ZOMBIE), None)
        except psutil.NoSuchProcess:  # it has just ended
            pass
        return None

    def keep(self) -> None:
        """It is up: should its command die from now on, the keeper starts it again."""
        if self.alive():
            psutil.Process(self.pid).send_signal(KEEP)

    def restarts(self) -> int:
        """How often the keeper has started the command again."""
        try:
            told = json.loads(tally(self.log).read_text())
            return int(told["restarts"]) if told["token"] == self.token else 0
        except (OSError, ValueError, KeyError, TypeError):  # never
            return 0

    def end(self, *, grace: float) -> int:
        """SIGTERM, then after `grace` seconds SIGKILL, to all that belongs to this part, the keeper last.

        Returns: how many had to be killed.
        """
        killed = 0
        if self.alive():
            psutil.Process(self.pid).terminate()  # the keeper ends the rest, within the same grace
            deadline = time.monotonic() + grace + 15.0  # the keeper's own waiting, and some
            while self.alive():  # not psutil's wait: that waits for a slow init to bury the dead, too
                if time.monotonic() > deadline:
                    psutil.Process(self.pid).kill()
                    killed = 1
                    break
                time.sleep(0.02)
        return killed + end_marked(self.token, grace=grace, session=self.pid)  # what a killed keeper left

    def log_tail(self, lines: int = 15) -> str:
        """The last lines of the log, indented."""
        try:
            text = self.log.read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return ""
        return "\n".join(f"    {line}" for line in text.rstrip().splitlines()[-lines:])

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "log": str(self.log)}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "Part":
        """Raises TypeError, KeyError or ValueError if `content` is not what `to_json` gave."""
        part = cls(**{**content, "log": Path(content["log"])})
        if not (isinstance(part.pid, int) and isinstance(part.created, int | float) and isinstance(part.token, str)):
            raise TypeError(f"not a part: {content!r}")
        return part


def spawn(
    name: str,
    command: Sequence[str],
    *,
    environment: Mapping[str, str],
    cwd: Path,
    address: str,
    log: Path,
    grace: float,
    tied: bool = False,
    public: str = "",
) -> tuple[Part, "subprocess.Popen[bytes]"]:
    """Start `command` under a keeper in a session of its own; returns at once.

    Until `keep` the keeper ends with its command.

    Args:
        grace: seconds between SIGTERM and SIGKILL when it ends.
        tied: it also ends when this process does, however that dies.
        public: the address that browsers use, where it is another.
    """
    token = uuid.uuid4().hex
    keeper = [sys.executable, "-I", str(_GUARD), *(["--tied"] if tied else []), str(grace), str(log), *command]
    with os.fdopen(open_log(log), "ab") as out:
        process = subprocess.Popen(
            keeper,
            cwd=cwd,
            env={**environment, MARK: token},
            stdin=subprocess.PIPE if tied else subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    created = psutil.Process(process.pid).create_time()
    return Part(name, process.pid, created, token, address, log, public), process


def free_port(host: str) -> int:
    """A port that nobody listens on now."""
    with socket.socket(_family(host)) as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def free_port_after(host: str, port: int, *, besides: set[int]) -> int:
    """The next port above `port` that nobody listens on, none of `besides`."""
    candidates = (p for p in range(port + 1, 65536) if p not in besides)
    return next((p for p in candidates if port_holder(host, p) is None), free_port(host))


def port_holder(host: str, port: int) -> str | None:
    """Who keeps us from listening on host:port, in words; None if nobody does.

    Raises:
        PlatformError: `host` is not an address of this machine.
    """
    try:
        with socket.socket(_family(host)) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
            return None
    except (OSError, TypeError) as error:  # TypeError: a name outside ASCII that cannot be encoded, such as "ä..b"
        if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
            return _listener(port)
        raise PlatformError(
            f"platform.host: {host!r} port {port} cannot be listened on ({getattr(error, 'strerror', error)}): "
            "set an address of this machine, for example `ratchet set platform.host=127.0.0.1`"
        ) from error


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def _listener(port: int) -> str:
    for process in psutil.process_iter():
        try:
            found = process.net_connections(kind="tcp")
            if any(c.status == psutil.CONN_LISTEN and c.laddr and c.laddr.port == port for c in found):
                return f"process {process.pid} ({' '.join(process.cmdline())[:160]})"
        except (psutil.Error, OSError):  # another user's, or it has ended
            continue
    return "a process of another user"
