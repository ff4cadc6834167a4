"""Clean-up of old runs, checkpoints, searches and DVC objects: find what nothing needs, and move it to the trash."""

import time
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from ratchet.errors import RegistryError, WorkspaceError
from ratchet.registry.journal import STATE, Journal
from ratchet.registry.run_trash import RunTrash, bytes_on_disk, has_records, model_ids
from ratchet.registry.trial_runs import trial_journals
from ratchet.search.store import StudyStore
from ratchet.settings.model import Params
from ratchet.trash import TrashFolder, trash_folders
from ratchet.workspace import Workspace
from tasks.cleanup_needs import Needs, checkouts

__all__ = ["CleanUp", "Old", "Policy", "held"]

_OBJECTS = Path("files", "md5")
_WAIT = 5.0  # seconds, for a run that is about to end
_DAY = 86_400.0  # seconds without a change after which a process was killed, though a run is RUNNING in MLflow
_TEMPORARY = ("simulations/*", "scale/*", "search/*", "folds/*", "production.new")  # in .ratchet


@dataclass(frozen=True)
class Policy:
    """Limits of what is old: it changed `seconds` ago, and is not among the last `keep_last` trainings."""

    seconds: float
    keep_last: int
    remote: bool  # also what is in the project's own DVC remote, .ratchet/remote


@dataclass(frozen=True)
class Old:
    """One thing that nothing needs: its paths in the project, its MLflow runs, and its time (seconds since 1970)."""

    category: str
    paths: tuple[Path, ...]
    changed: float
    size: int  # bytes
    runs: tuple[str, ...] = ()

    @property
    def locks(self) -> list[Path]:
        """Locks that a training holds as long as it runs."""
        return [
            lock
            for path in self.paths
            for lock in (path / "training.lock", path / "lock", *path.glob("*/*/training.lock"))
        ]


@dataclass
class CleanUp:
    """The things that nothing needs, and notes about what was left out."""

    project: Workspace
    params: Params
    policy: Policy
    now: float = field(default_factory=time.time)
    notes: list[str] = field(default_factory=list)

    @property
    def since(self) -> float:
        return self.now - self.policy.seconds

    def find(self) -> list[Old]:
        """Find everything that is old and that nothing needs. Nothing is changed.

        Raises:
            WorkspaceError: this is not the project's main folder, or git fails.
            LedgerBroken, RegistryError, DataError: it is not known what is needed.
            TrackingUnavailable: MLflow does not answer.
        """
        if self.project.project != self.project:
            raise WorkspaceError(
                f"{self.project.root}: its records are those of {self.project.project.root}. Fix: run this there"
            )
        needs = Needs.of(self.project, self.params)
        runs = [old for old in self._runs(needs) if self._is_free(old)]
        kept_runs = needs.records.keys() - {run for old in runs for run in old.runs}
        searches = self._searches(needs, kept_runs)
        others = (*searches, *self._temporary(), *self._objects(needs, kept_runs))
        return [*runs, *(old for old in others if self._is_free(old))]

    def _runs(self, needs: Needs) -> Iterator[Old]:
        """Yield old trainings: run, files, journal, and checkpoints of one that was interrupted."""
        folders = [path.parent for path in (self.project.mlruns / "journal").glob(f"[0-9a-f]*/{STATE}")]
        folders.sort(key=_changed, reverse=True)
        for place, folder in enumerate(folders):
            key = folder.name.partition("-")[0]
            if place < self.policy.keep_last or key in needs.keys:
                continue
            checkpoints = self.project.running / folder.name
            paths = (folder, *([checkpoints] if checkpoints.exists() else []))
            if old := self._run("MLflow runs", paths, [folder], needs):
                yield old

    def _searches(self, needs: Needs, kept_runs: Collection[str]) -> Iterator[Old]:
        """Yield studies that have ended: the runs and folders of the trials, and the study's run."""
        needed = {(record.search or "").partition("/")[0] for record in needs.kept_records(kept_runs)}
        for folder in (self.project.root / self.params.search.folder).glob("[!.]*/"):
            if _changed(folder) >= self.since or folder.name in needed:
                continue
            if not has_records(self.project.database(self.params.search.storage)):
                return  # its database is gone: nothing says whether they have ended
            study = StudyStore(self.project, self.params.search.storage, folder.name).read()
            if study is not None and study.state == "ended":
                journals = [journal for journal in trial_journals(folder) if (journal / STATE).exists()]
                own = self.project.mlruns / "journal" / f"study-{folder.name}"
                of_study = [own] if (own / STATE).exists() else []
                if old := self._run("search trials", (folder, *of_study), [*journals, *of_study], needs):
                    yield old

    def _run(self, category: str, paths: tuple[Path, ...], journals: list[Path], needs: Needs) -> Old | None:
        """Return old paths with the runs of their journals; None if one is needed, or not wholly in MLflow."""
        changed = max(map(_changed, paths))
        if self._trash is None or changed >= self.since:
            return None
        size, runs = sum(map(bytes_on_disk, paths)), list[str]()
        for folder in journals:
            journal = _read_journal(folder, self.params.tracking.uri)
            if journal is None or not journal.run_id or not journal.is_sent or journal.sealed:
                return None  # it waits for `ratchet sync`, or is a version
            run = self._trash.find_run(journal.run_id)
            is_running = run is not None and run.info.status == "RUNNING" and self.now - _changed(folder) < _DAY
            if run is None or is_running or self._is_needed(run, needs):
                return None
            size += self._trash.size(run)
            runs.append(journal.run_id)
        return Old(category, paths, changed, size, tuple(runs))

    def _is_needed(self, run: Any, needs: Needs) -> bool:
        """Return whether a version needs a run, or a person deleted it and may restore it."""
        names = (run.info.run_id, *model_ids(run))
        is_ours = run.info.lifecycle_stage == "active" or run.info.run_id in self._trashed  # before a kill
        return not is_ours or any(name in needs.text for name in names)

    @cached_property
    def _trash(self) -> RunTrash | None:
        has_any = has_records(self.project.database(self.params.tracking.uri))
        return RunTrash(self.project, self.params) if has_any else None

    @cached_property
    def _trashed(self) -> set[str]:
        return {run for folder in trash_folders(self.project) for run in folder.runs}

    def _temporary(self) -> Iterator[Old]:
        """Yield folders of simulations, folds and workers that ended. Workers that join a search hold no lock."""
        for pattern in _TEMPORARY:
            for path in self.project.state.glob(pattern):
                if _changed(path) < min(self.since, self.now - _DAY):
                    yield Old("temporary files", (path,), _changed(path), bytes_on_disk(path))

    def _objects(self, needs: Needs, kept_runs: Collection[str]) -> Iterator[Old]:
        """Yield old objects of DVC's cache that nothing names. One with a second link takes no space of its own."""
        if not (self.project.root / ".dvc").is_dir():
            return  # a folder of another DVC project, whose cache and remote it shares
        caches = {"DVC cache": self._cache_folder()}
        if self.policy.remote:
            caches["DVC remote"] = self.project.state / "remote"
        hashes: Collection[str] | None = None
        for category, cache in caches.items():
            for path in (cache / _OBJECTS).glob("[0-9a-f][0-9a-f]/*") if cache else ():
                facts = path.lstat()
                if facts.st_mtime >= self.since or facts.st_nlink > 1 or path.is_dir():
                    continue
                if hashes is None:  # reads git's history
                    hashes = needs.hashes(self.project, kept_runs, since=self.since)
                if path.parent.name + path.name not in hashes:
                    yield Old(category, (path,), facts.st_mtime, facts.st_size)

    def _cache_folder(self) -> Path | None:
        """Return DVC's cache; None, and a note, if other projects may use it, or files of the project lead there."""
        from dvc.config import Config

        folder = self.project.root / ".dvc"
        with _dvc_errors(self.project.root):
            config = Config(str(folder))["cache"]
        place = Path(str(config.get("dir") or folder / "cache"))
        is_linked = "symlink" in (config.get("type") or ())
        if is_linked or config.get("shared") or (folder / place).resolve() != folder / "cache":
            reason = "files here are links to" if is_linked else "other projects may use"
            self.notes.append(f"DVC's cache is {place}, which {reason}: nothing is moved from there")
            return None
        return folder / "cache"

    def _is_free(self, old: Old) -> bool:
        if all(map(self._is_movable, old.paths)):
            return not any(map(_is_held, old.locks))
        note = f"{old.category}: what is outside of the project's folder or on another disk stays"
        self.notes += [note] if note not in self.notes else []
        return False

    def _is_movable(self, path: Path) -> bool:
        """Return whether a path is in the project's folder, and on the disk of its trash."""
        root = self.project.root
        trash = self.project.state if self.project.state.exists() else root
        inside = path.is_relative_to(root) and path.parent == path.parent.resolve()
        return inside and path.parent.stat().st_dev == trash.stat().st_dev

    def apply(self, items: list[Old]) -> None:
        """Move what `find` returned to the trash, inside `held`."""
        if not items:
            return
        names = [path.relative_to(self.project.root).as_posix() for old in items for path in old.paths]
        folder = TrashFolder.begin(self.project, names, [run for old in items for run in old.runs])
        for old in items:
            with ExitStack() as stack:
                for lock in old.locks:
                    if lock.exists():
                        stack.enter_context(FileLock(lock, timeout=0))
                for run in old.runs:
                    assert self._trash is not None, "it has runs"
                    self._trash.delete(run)
                for path in old.paths:  # after the runs: a killed clean-up finds the rest by its journal
                    folder.put(path.relative_to(self.project.root).as_posix())


@contextmanager
def held(project: Workspace) -> Iterator[list[str]]:
    """Hold the project, its other checkouts, and DVC's lock, so that no run, `dvc` command or other clean-up works.

    Yield a message about each file of settings that a killed run had changed, and that is restored.

    Raises:
        WorkspaceBusy: a run holds one of them.
        WorkspaceError: DVC is busy.
    """
    from dvc.repo import Repo, lock_repo

    notes = []
    with ExitStack() as stack:
        for place in (project, *checkouts(project)):
            if place == project or place.state.is_dir():
                notes.append(stack.enter_context(place.hold("ratchet gc", wait=_WAIT)))
        if (project.root / ".dvc").is_dir():
            with _dvc_errors(project.root):
                repo = Repo(str(project.root))
                stack.callback(repo.close)
                stack.enter_context(lock_repo(repo))
        yield [note for note in notes if note]


@contextmanager
def _dvc_errors(root: Path) -> Iterator[None]:
    from dvc.exceptions import DvcException
    from dvc.lock import LockError

    try:
        yield
    except LockError as error:
        raise WorkspaceError(f"{root}: DVC is busy here ({error}). Fix: wait until it has ended") from error
    except DvcException as error:
        raise WorkspaceError(f"{root}: DVC does not work here ({error}). Fix: correct .dvc/config") from error


def _changed(path: Path) -> float:
    """Return the latest change of a file or folder and of all in it, seconds since 1970."""
    try:
        return max(float(each.lstat().st_mtime) for each in (path, *(path.rglob("*") if path.is_dir() else ())))
    except FileNotFoundError:  # in use
        return time.time()


def _read_journal(folder: Path, store: str) -> Journal | None:
    """Return a journal, closed; None if it is damaged."""
    try:
        journal = Journal(folder, store=store)
    except RegistryError:
        return None
    journal.close()
    return journal


def _is_held(lock: Path) -> bool:
    if not lock.exists():
        return False
    try:
        with FileLock(lock, timeout=0):
            return False
    except Timeout:
        return True
