"""The journal of a run: everything for MLflow, on this disk first.

Training writes here and continues; another thread, or `ratchet sync` later, sends it to MLflow. An entry is written
once with its time. MLflow identifies a point by (key, time, step, value), so sending it again changes nothing.
"""

import errno
import json
import logging
import os
import threading
import time
import uuid
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from filelock import FileLock

from ratchet import files
from ratchet.errors import RegistryError

__all__ = ["STATE", "Journal", "JournalEntry"]

STATE = "state.json"
"""File of a journal with its id, and how far it has been sent to which MLflow run."""
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class JournalEntry:
    """One line: kind, content, time (milliseconds since 1970), and the byte at which the next line starts."""

    kind: str
    content: dict[str, Any]
    time: int
    end: int


class Journal:
    """An append-only file of JSON lines in `folder`, and how far it has been sent. Threads can share it.

    Args:
        folder: created if it does not exist.
        store: the address that it is sent to; a new address receives the whole journal. None keeps
            the one before.
    """

    def __init__(self, folder: Path, *, store: str | None = None) -> None:
        self.folder, self._store = folder, store
        self.folder.mkdir(parents=True, exist_ok=True)
        self._lock = threading.Lock()
        self._path = folder / "events.jsonl"
        self._state_path = folder / STATE
        self._state = self._read_state()
        if "uid" not in self._state:
            self._remember()
        # A resumed training repeats points, and MLflow refuses parameters that are set twice.
        earlier = self.entries(0, warn=True)
        self._seen = {self._identity(entry.kind, entry.content) for entry in earlier}
        self._latest = max((entry.time for entry in earlier), default=0)
        self._file = self._path.open("ab", buffering=0)
        self._is_writer = False
        self._unwritten = b""  # what a full disk did not take

    def close(self) -> None:
        """Write what a full disk did not take so far, and close.

        Raises:
            OSError: the disk is still full.
        """
        with self._file:
            self._write_out(must=True)

    @property
    def uid(self) -> str:
        """The id by which the MLflow run is found again: it is a tag of the run."""
        return str(self._state["uid"])

    @property
    def run_id(self) -> str | None:
        """MLflow's id of the run, if it is known."""
        return self._state.get("run_id") if self._known else None

    @property
    def sent(self) -> int:
        """Number of bytes that MLflow has."""
        return int(self._state.get("sent", 0)) if self._known else 0

    @property
    def sealed(self) -> str | None:
        """SHA-256 (hex) of the weights that were registered from this run; None: it is no version."""
        return self._state.get("sealed")

    def seal(self, weights: str) -> None:
        """Record that the run is a version with these weights."""
        if self.sealed != weights:
            self._remember(sealed=weights)

    def replace_original(self) -> None:
        """Give a copy of another process' journal an id, and so a run, of its own. That run replaces the original's."""
        original = self.uid
        self._state_path.unlink()
        self._state = {}
        self._remember()
        self.write("replaces", {"uid": original})

    @property
    def _known(self) -> bool:
        """Whether the stored state is about this store."""
        return self._store is None or bool(self._state.get("store", self._store) == self._store)

    @property
    def is_empty(self) -> bool:
        """Whether nothing was written yet."""
        return not self._seen

    @property
    def is_sent(self) -> bool:
        """Whether MLflow has everything."""
        return self._whole() <= self.sent

    def write(self, kind: str, content: dict[str, Any], *, again: bool = False) -> None:
        """Append one entry. Without `again`, one with the identity of an earlier entry is dropped."""
        identity = self._identity(kind, content)
        with self._lock:
            if identity in self._seen and not again:
                return
            if not self._is_writer:  # one that only sends must not cut off what a training is writing
                os.truncate(self._path, self._whole())
                self._is_writer = True
            self._seen.add(identity)
            # Of two values of a step MLflow shows the later one, so a clock that is set back must not order them.
            self._latest = max(time.time_ns() // 1_000_000, self._latest + again)
            line = {"kind": kind, "time": self._latest, "content": content}
            self._unwritten += json.dumps(line, allow_nan=False).encode() + b"\n"
            self._write_out()

    def sync(self) -> None:
        """Make what was written survive a power cut. Other threads can write meanwhile."""
        with self._lock:
            self._write_out()
        os.fsync(self._file.fileno())

    def _write_out(self, *, must: bool = False) -> None:
        """Write everything. What a full disk does not take waits for the next call, so that training continues."""
        try:
            while self._unwritten:
                self._unwritten = self._unwritten[self._file.write(self._unwritten) :]
        except OSError as error:
            if must or error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise

    def entries(self, start: int, *, warn: bool = False) -> list[JournalEntry]:
        """Return the entries from byte `start` on, without damaged lines; with `warn`, name these in the log."""
        entries: list[JournalEntry] = []
        if not self._path.exists():
            return entries
        with self._path.open("rb") as file:
            file.seek(start)
            for line in file:
                if not line.endswith(b"\n"):
                    break  # another thread is writing it
                start += len(line)
                try:
                    read = json.loads(line)
                    entries.append(JournalEntry(read["kind"], read["content"], read["time"], start))
                except (ValueError, TypeError, KeyError):
                    if warn:
                        _LOG.warning("%s: the line that ends at byte %d is damaged, and left out", self._path, start)
                    if entries:
                        entries[-1] = replace(entries[-1], end=start)
        return entries

    def _read_state(self) -> dict[str, Any]:
        if not self._state_path.exists():
            return {}
        try:
            return dict(files.read_json(self._state_path))
        except (ValueError, TypeError) as error:
            raise RegistryError(
                f"{self._state_path}: damaged ({error}). Fix: restore it, or `rm {self._state_path}`: then its run "
                "goes to MLflow again, as a new one"
            ) from error

    def mark_sent(self, run_id: str, end: int) -> None:
        """Record that MLflow has everything up to byte `end`."""
        self._remember(run_id=run_id, sent=end, **({"store": self._store} if self._store else {}))

    def refresh(self) -> None:
        """Read how far another process has sent."""
        with self._state_lock:
            self._merge()

    def clear_drafts(self) -> None:
        """Delete the drafts of killed processes. A process that writes its state now holds the lock."""
        with self._state_lock:
            files.clear_drafts(self.folder)

    @property
    def _state_lock(self) -> FileLock:
        return FileLock(self.folder / "state.lock")

    def _remember(self, **state: Any) -> None:
        with self._state_lock:  # register seals a run while `ratchet sync` sends it
            self._merge()
            self._state = {"uid": uuid.uuid4().hex} | self._state | state
            files.write_json(self._state_path, self._state)

    def _merge(self) -> None:
        """Read the stored state. What this process has sent counts also if a full disk did not take it."""
        run_id, sent = self.run_id, self.sent
        self._state |= self._read_state()
        if run_id and self.run_id == run_id:  # else the bytes went to another run, or to another store
            self._state["sent"] = max(sent, self.sent)

    def _whole(self) -> int:
        """Return the length without the partial line of a killed writer."""
        return self._path.read_bytes().rfind(b"\n") + 1

    @staticmethod
    def _identity(kind: str, content: dict[str, Any]) -> str:
        if kind == "metrics":
            # After a return to a checkpoint, another attempt logs the same steps again.
            return f"metrics {content['step']} {content.get('attempt', 0)} {' '.join(sorted(content['values']))}"
        if kind == "params":
            return kind  # MLflow's parameters are immutable, so the first ones count
        return f"{kind} {json.dumps(content, sort_keys=True)}"
