"""The project folder: where it is, where each thing lies in it, and who holds it."""

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ratchet.errors import WorkspaceBusy, WorkspaceError

__all__ = ["Workspace"]

ROOT_VARIABLE = "RATCHET_ROOT"


@dataclass(frozen=True)
class Workspace:
    """One project folder. Every path that crosses a stage is named here, once."""

    root: Path

    @classmethod
    def find(cls, start: Path | None = None) -> "Workspace":
        """The folder with params.yaml at or above `start` (the working folder), or the one RATCHET_ROOT names."""
        named = os.environ.get(ROOT_VARIABLE)
        here = Path(named) if named else (start or Path.cwd())
        here = here.resolve()
        for folder in (here, *here.parents):
            if (folder / "params.yaml").is_file():
                return cls(folder)
        raise WorkspaceError(
            f"no params.yaml in {here} or above it: run this inside the project folder, or set {ROOT_VARIABLE} to it"
        )

    @property
    def params(self) -> Path:
        return self.root / "params.yaml"

    @property
    def packed(self) -> Path:
        return self.root / "data" / "packed"

    @property
    def quarantine(self) -> Path:
        return self.root / "data" / "quarantine.parquet"

    @property
    def running(self) -> Path:
        """Training under way: checkpoints that DVC does not yet own."""
        return self.root / "data" / "running"

    @property
    def checkpoints(self) -> Path:
        return self.root / "data" / "checkpoints"

    @property
    def model(self) -> Path:
        return self.root / "data" / "model"

    @property
    def reports(self) -> Path:
        return self.root / "data" / "reports"

    @property
    def report(self) -> Path:
        return self.reports / "report.html"

    @property
    def registration(self) -> Path:
        return self.root / "data" / "registration.json"

    @property
    def mlruns(self) -> Path:
        return self.root / "mlruns"

    @property
    def state(self) -> Path:
        """What this machine alone needs: locks, pid files, server logs and databases. Never committed."""
        return self.root / ".ratchet"

    @contextmanager
    def hold(self, purpose: str, *, wait: float = 0.0) -> Iterator[None]:
        """Be the only run in this workspace; the lock dies with the process.

        Holding is inherited: a process started by the holder (RATCHET_HOLDER in its environment) may enter.

        Raises:
            WorkspaceBusy: another run holds it after `wait` seconds; the message says which.
            WorkspaceError: the folder cannot be written.
        """
        from filelock import FileLock, Timeout

        if os.environ.get("RATCHET_HOLDER") == str(self.root):
            yield
            return
        holder = self.state / "holder.json"
        try:
            self.state.mkdir(exist_ok=True)
            lock = FileLock(self.state / "workspace.lock")
            lock.acquire(timeout=wait)
        except Timeout:
            raise WorkspaceBusy(self._busy(holder)) from None
        except OSError as error:
            raise WorkspaceError(
                f"{self.root}: cannot be written ({error.strerror}): make it writable for this user, or work in a clone"
            ) from error
        try:
            holder.write_text(json.dumps({"pid": os.getpid(), "purpose": purpose, "since": time.time()}))
            os.environ["RATCHET_HOLDER"] = str(self.root)
            yield
        finally:
            os.environ.pop("RATCHET_HOLDER", None)
            holder.unlink(missing_ok=True)
            lock.release()

    def _busy(self, holder: Path) -> str:
        try:
            who = json.loads(holder.read_text())
        except (OSError, ValueError):  # the holder is just arriving or leaving
            return f"{self.root}: another run holds this workspace: wait for it to end"
        since = time.strftime("%H:%M:%S", time.localtime(who["since"]))
        return (
            f"{self.root}: held by {who['purpose']} (process {who['pid']}) since {since}: "
            f"wait for it to end, stop it with `kill {who['pid']}`, or work in a second clone"
        )
