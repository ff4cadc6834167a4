"""The project folder: its paths, and the lock that lets one run at a time work in it."""

import errno
import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ratchet.errors import WorkspaceBusy, WorkspaceError
from ratchet.this_machine import shares_processes, this_machine

__all__ = ["DISK_FIXES", "HOLDER_VARIABLE", "SAFE_PATH", "Workspace", "disk_errors"]

NO_RESULT = "paths; dvc.yaml has them too"

ROOT_VARIABLE = "RATCHET_ROOT"
SAFE_PATH = {"PYTHONSAFEPATH": "1"}
"""Environment in which `python -m` does not look for modules in the working folder first."""
HOLDER_VARIABLE = "RATCHET_HOLDER"
"""Environment variable with the folder that this process, or the one that started it, holds."""

DISK_FIXES = {
    errno.ENOSPC: "free some space, or move the project to a larger disk",
    errno.EDQUOT: "your quota is used up. Free some space, or ask for more",
    errno.EFBIG: "a file this large is not allowed here. Raise the limit, or move the project",
    errno.EROFS: "the disk is mounted read-only. Mount it writable, or move the project",
    errno.EACCES: "make it readable and writable for this user, or work in a clone",
    errno.EEXIST: "another file is in the way. Move it away",
    errno.ENOTDIR: "another file is in the way. Move it away",
    errno.ENAMETOOLONG: "take a shorter name",
    errno.EPERM: "make it readable and writable for this user, or work in a clone",
    errno.EMFILE: "too many files are open. End other programs, or raise `ulimit -n` (of a service: LimitNOFILE)",
    errno.ENFILE: "too many files are open. End other programs",
    errno.EIO: "the disk does not answer as it should. Try again; if that fails, move the file away",
    errno.ESTALE: "the network's disk does not answer as it should. Try again; if that fails, mount it again",
}

_READING = (errno.EACCES, errno.EPERM, errno.EMFILE, errno.ENFILE, errno.EIO, errno.ESTALE)  # also of a reader


@contextmanager
def disk_errors(place: Path) -> Iterator[None]:
    """Turn errors of the disk into user errors. Other errors pass unchanged.

    Raises:
        WorkspaceError: no space, no permission or read-only; names the file, or `place` if the system does not.
    """
    try:
        yield
    except OSError as error:
        fix = DISK_FIXES.get(error.errno or 0)
        if fix is None:
            raise
        refused = "read or written" if error.errno in _READING else "written"
        raise WorkspaceError(f"{error.filename or place}: cannot be {refused} ({error.strerror}): {fix}") from error


def _project_of_experiment(root: Path) -> Path | None:
    """Return the project of an experiment that DVC runs in a clone of the git repository, below .dvc/tmp/exps."""
    for folder in root.parents:
        if folder.parts[-3:] == (".dvc", "tmp", "exps"):
            with_dvc = folder.parents[2]  # the repository, or the project in it (`dvc init --subdir`)
            top, clone = _repository(with_dvc), _repository(root)
            return top / root.relative_to(clone) if top and clone and top != clone else with_dvc
    return None


def _repository(folder: Path) -> Path | None:
    """Return the git repository that holds `folder`."""
    return next((parent for parent in (folder, *folder.parents) if (parent / ".git").exists()), None)


def _project_of_worktree(root: Path) -> Path | None:
    """Return the same folder in the main working tree, if git added the one that holds `root` by `git worktree`."""
    top = _repository(root)
    if top is None or not (top / ".git").is_file():
        return None
    own = top / (top / ".git").read_text(encoding="utf-8").removeprefix("gitdir: ").strip()
    common = own / "commondir"  # a submodule has none
    if not common.is_file():
        return None
    return (own / common.read_text(encoding="utf-8").strip()).resolve().parent / root.relative_to(top)


class _In:
    """A path in one of the workspace's folders, which a subclass may move."""

    def __init__(self, folder: Literal["root", "data", "reports", "state"], name: str) -> None:
        self._folder, self._name = folder, name

    def __get__(self, workspace: "Workspace", _: type) -> Path:
        folder: Path = getattr(workspace, self._folder)
        return folder / self._name


@dataclass(frozen=True)
class Workspace:
    """One project folder. It names every path that stages share."""

    root: Path

    lock = _In("root", "ratchet.lock")  # which Ratchet a project without its code runs on; in git
    schema = _In("state", "params.schema.json")  # of the settings, for editors, in such a project
    code = _In("data", "code.json")  # digests of the code that decides each stage
    settings = _In("data", "settings.json")  # settings that decide a result, with the defaults filled in
    packed = _In("data", "packed")
    quarantine = _In("data", "quarantine.parquet")
    releases = _In("data", "releases.csv")  # quarantined samples that a user let in; committed to git
    running = _In("data", "running")  # checkpoints of unfinished trainings, which DVC does not track
    checkpoints = _In("data", "checkpoints")
    model = _In("data", "model")
    baseline = _In("data", "baseline")  # the simple model that the model is compared with
    variants = _In("data", "variants")  # the model's program and its variants
    registration = _In("data", "registration.json")
    reports = _In("data", "reports")
    report = _In("reports", "report.html")
    card = _In("reports", "data.html")  # the data card
    overrides = _In("state", "overrides.json")  # settings of params.yaml that a run has replaced (run_settings)
    settings_as_read = _In("state", "settings-as-read.yaml")  # params.yaml as the run that holds the folder has read it

    @property
    def params(self) -> Path:
        return self.root / "params.yaml"

    @property
    def data(self) -> Path:
        """Folder that the stages write to."""
        return self.root / "data"

    @property
    def pretrained(self) -> Path:
        """Folder of pretrained weights."""
        return self.root / "data" / "pretrained"

    @property
    def state(self) -> Path:
        """State of this machine: locks, process ids, server logs and databases. Never committed."""
        return self.root / ".ratchet"

    @classmethod
    def find(cls, start: Path | None = None) -> "Workspace":
        """Find the folder with params.yaml, at or above `start` (the working folder) or RATCHET_ROOT.

        Raises:
            WorkspaceError: there is none, or its path has a question mark.
        """
        named = os.environ.get(ROOT_VARIABLE)
        here = (Path(named) if named else start or Path.cwd()).resolve()
        for folder in (here, *here.parents):
            if (folder / "params.yaml").is_file():
                return cls(folder).with_usable_path()
        raise WorkspaceError(
            f"no params.yaml in {here} or above it: run this inside the project folder, or set {ROOT_VARIABLE} to it"
        )

    def with_usable_path(self) -> "Workspace":
        """Return this folder.

        Raises:
            WorkspaceError: the project's path has a question mark, at which the address of a database ends: the ledger
                would be a file outside.
        """
        if "?" in str(root := self.project.root):
            raise WorkspaceError(
                f"{root}: its ledger would be outside, because the address of a database ends at a question mark. "
                "Allowed: a path without `?`. Fix: rename the folder"
            )
        return self

    @property
    def project(self) -> "Workspace":
        """The project that owns MLflow's records, ledger and servers.

        It is another folder for a checkout of a revision, for an experiment that DVC runs in a temporary folder (`dvc
        exp run --temp`, `--queue`), and for a git worktree: their records would end with the folder.
        """
        note = self.state / "project"
        if note.exists():
            return Workspace(Path(note.read_text(encoding="utf-8")))
        if (owner := _project_of_experiment(self.root)) is not None:
            return Workspace(owner).project  # perhaps of a worktree
        owner = _project_of_worktree(self.root)
        return Workspace(owner) if owner and (owner / "params.yaml").is_file() else self

    @property
    def has_code(self) -> bool:
        """True for the repository of Ratchet and clones of it, whose own code runs; False on an installed Ratchet."""
        if (rules := self.root / "dvc.yaml").is_file() and b"- ratchet.lock" in rules.read_bytes():
            return False
        return (self.root / "src" / "ratchet").is_dir() or not self.lock.exists()

    def make_importable(self) -> None:
        """Let this process and those that it starts import the project's own modules.

        They come last in a project that runs on an installed Ratchet: it may have a folder `tasks` of its own.
        """
        if self.has_code:
            sys.path.insert(0, str(self.root))
        else:
            sys.path.append(str(self.root))
            os.environ.update(SAFE_PATH)

    def import_path(self, *others: str | None) -> str:
        """Return the PYTHONPATH for a process that works in this folder; `others`: folders that come later."""
        own = [str(self.root), str(self.root / "src")] if self.has_code else []
        return os.pathsep.join([*own, *filter(None, others)])

    @property
    def is_checkout(self) -> bool:
        """True for the checkout of a revision, which runs of every revision use."""
        return (self.state / "project").exists()

    def database(self, uri: str) -> str:
        """Return a database's address with an absolute path, so that every process uses the same file."""
        scheme, slashes, path = uri.partition(":///")
        if scheme not in ("sqlite", "journal") or not slashes or path.startswith("/"):
            return uri
        return f"{scheme}:///{self.project.root / path}"

    @property
    def production(self) -> "Workspace":
        """Checkout in which runs of a given revision work, so that this folder is not changed."""
        return Workspace(self.state / "production")

    @property
    def mlruns(self) -> Path:
        return self.project.root / "mlruns"

    @contextmanager
    def hold(self, purpose: str, *, wait: float = 0.0) -> Iterator[str | None]:
        """Be the only run in this workspace. The lock ends with the process.

        A process that the holder starts (RATCHET_HOLDER in its environment) may enter too. Settings that a killed run
        left in params.yaml are restored first. Yield a message about that or about records in danger, or None.

        Raises:
            WorkspaceBusy: another run holds it after `wait` seconds; the message says which.
            WorkspaceError: the folder cannot be written, or the disk is full.
        """
        from filelock import FileLock, Timeout

        if os.environ.get(HOLDER_VARIABLE) == str(self.root):
            yield None
            return
        holder = self.state / "holder.json"
        with disk_errors(self.root):
            self.state.mkdir(exist_ok=True)
            lock = FileLock(self.state / "workspace.lock")
            try:
                lock.acquire(timeout=wait)
            except Timeout:
                raise WorkspaceBusy(self._busy()) from None
        try:
            with disk_errors(self.root):
                self.settings_as_read.unlink(missing_ok=True)  # of a killed run
                own = {"pid": os.getpid(), "purpose": purpose, "since": time.time(), **this_machine()}
                holder.write_text(json.dumps(own))
            os.environ[HOLDER_VARIABLE] = str(self.root)
            yield self._restored() or self._ends_with_worktree()
        finally:
            os.environ.pop(HOLDER_VARIABLE, None)
            holder.unlink(missing_ok=True)
            lock.release()

    def _restored(self) -> str | None:
        if not self.overrides.exists():
            return None
        from ratchet.settings import run_settings

        with disk_errors(self.root):
            return run_settings.restore(self.params, self.overrides)

    def _ends_with_worktree(self) -> str | None:
        """Return a message before the first records of a git worktree that no other folder can keep."""
        if self.mlruns.exists() or self.project != self or _project_of_worktree(self.root) is None:
            return None
        return (
            f"{self.root}: is a git worktree, and the repository has no main folder of this project. So MLflow's "
            "records and the ledger, unless they are on servers, are in its mlruns, which `git worktree remove` "
            "deletes. Fix: use a clone"
        )

    def restore_if_idle(self) -> str | None:
        """Restore the settings that an incomplete run replaced, unless a run holds the workspace.

        Return a message about the restored settings, or None if there are none.

        Raises:
            SettingsError: the note of the replaced settings is damaged.
        """
        if not self.overrides.exists():
            return None
        try:
            with self.hold("restoring params.yaml") as restored:
                return restored
        except WorkspaceBusy:
            return None

    def holder(self) -> str | None:
        """Describe the run that holds the workspace; None if no run holds it."""
        from filelock import FileLock, Timeout

        if not (self.state / "workspace.lock").exists():
            return None
        try:
            with FileLock(self.state / "workspace.lock", timeout=0):
                return None
        except Timeout:
            return (self._describe_holder() or (None,))[0]

    def _describe_holder(self) -> tuple[str, str] | None:
        """Return the run that holds the workspace, and how to stop it."""
        try:
            who = json.loads((self.state / "holder.json").read_text())
        except (OSError, ValueError):  # the holder is about to write or remove it
            return None
        since = time.strftime("%H:%M:%S", time.localtime(who["since"]))
        if "machine" not in who or shares_processes(who):
            return f"{who['purpose']} (process {who['pid']}) since {since}", f"stop it with `kill {who['pid']}`"
        return f"{who['purpose']} (process {who['pid']} of {who['machine']}) since {since}", "stop it there"

    def _busy(self) -> str:
        if (held := self._describe_holder()) is None:
            return f"{self.root}: another run holds this workspace: wait for it to end"
        return f"{self.root}: held by {held[0]}: wait for it to end, {held[1]}, or work in a second clone"
