"""Studies in Optuna's own storage: SQLite on one machine, PostgreSQL for several, or a journal file.

A killed process leaves each trial as it was or as it is to be: a trial is added with all its settings at once, and its
end is one change. What a worker does next is decided under the lock of its study, by one worker at a time.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import fields, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ratchet import urls
from ratchet.errors import StudyError, StudyUnavailable, first_line
from ratchet.search.optuna_view import frozen, optuna_state, quiet, trial_of
from ratchet.search.records import Curve, State, Study, Trial
from ratchet.settings.search_settings import SearchSettings
from ratchet.settings.search_space import Dimension
from ratchet.typed_json import parse, to_plain
from ratchet.workspace import Workspace

if TYPE_CHECKING:
    from filelock import FileLock
    from optuna.storages import BaseStorage
    from sqlalchemy import Engine

__all__ = ["LeaseLost", "StudyStore", "patiently"]

T = TypeVar("T")
_BUSY_SECONDS = 60.0  # that a worker waits for another one
_FIRST_WAIT, _LONGEST_WAIT = 0.5, 15.0  # seconds between two attempts to reach the storage
_LONGEST_WRITE = 10  # seconds until the lock of a process that was killed in a write to a journal is removed
_LONGEST_SILENCE = 120.0  # seconds that a hung process or a lost machine can hold the lock in PostgreSQL
_ALLOWED = "sqlite:///mlruns/search.db, postgresql://HOST/DATABASE or journal:///mlruns/search.log"


_FIELDS = (*(field.name for field in fields(Study) if field.name not in ("trials", "created")), "created")


class LeaseLost(Exception):
    """Another worker has taken the trial."""


class StudyStore:
    """One study in the storage.

    Raises (every method):
        StudyUnavailable: the storage does not answer.
    """

    def __init__(self, workspace: Workspace | None, uri: str, name: str) -> None:
        """Open the study `name`. `workspace` is the project to which a relative path belongs.

        The address sqlite:// is in the memory of this process.
        """
        self.uri = workspace.database(uri) if workspace else uri
        self.name = name
        self._engine: Engine | None = None

    def create(self, study: Study) -> bool:
        """Write a new study; return False if there is one with its name.

        Raises:
            StudyError: another program has written one with its name.
        """
        from optuna.study import StudyDirection

        with self.lock():
            if self.read() is not None:
                return False
            directions = [StudyDirection.MAXIMIZE if larger else StudyDirection.MINIMIZE for larger in study.maximize]
            with self._errors():
                if self.name not in self.names():
                    self._storage.create_new_study(directions, self.name)
                elif self._storage.get_all_trials(self._study):
                    raise StudyError(
                        f"{self.name}: {urls.redacted(self.uri)} has a study of this name that ratchet did not write. "
                        "Fix: begin another study: `ratchet set search.study=NAME`"
                    )
            self.save(**_plain(replace(study, created=study.created or time.time())))
        return True

    def names(self) -> list[str]:
        """Return the names of all studies, the oldest first."""
        with self._errors():
            return [study.study_name for study in self._storage.get_all_studies()]

    def read(self) -> Study | None:
        """Return the study with its trials; None: there is none."""
        with self._errors():
            try:
                attributes = self._storage.get_study_user_attrs(self._study)
            except KeyError:
                return None
            if "created" not in attributes:  # written last: a study of another program, or one that is not yet whole
                return None
            content = {name: attributes[name] for name in _FIELDS}
            allowed = SearchSettings.model_fields  # a study of an earlier release may have more
            content["search"] = {name: value for name, value in content["search"].items() if name in allowed}
            trials = [trial_of(stored) for stored in self._storage.get_all_trials(self._study, deepcopy=False)]
        return replace(parse(Study, json.dumps(content)), trials=trials)

    def require(self) -> Study:
        """Return the study with its trials.

        Raises:
            StudyError: there is none with this name.
        """
        study = self.read()
        if study is None:
            raise StudyError(
                f"{self.name}: no such study in {urls.redacted(self.uri)}. Allowed: "
                f"{', '.join(self.names()) or 'there are none; `ratchet search` begins one'}"
            )
        return study

    def save(self, **changes: Any) -> None:
        """Write fields of the study, in this order."""
        with self._errors():
            for name, value in changes.items():
                plain = value.model_dump(mode="json") if isinstance(value, SearchSettings) else value
                self._storage.set_study_user_attr(self._study, name, plain)

    def add(self, trial: Trial, space: Sequence[Dimension]) -> Trial:
        """Add a trial that waits for a worker, with the next number, and return it."""
        with self._errors():
            identity = self._storage.create_new_trial(self._study, frozen(trial, space, state="waiting"))
            return trial_of(self._storage.get_trial(identity))

    def trial(self, number: int) -> Trial:
        """Return a trial."""
        with self._errors():
            return trial_of(self._storage.get_trial(self._identity(number)))

    def note(
        self, number: int, *, curve: Curve = (), marks: Mapping[str, Any] | None = None, **attributes: Any
    ) -> None:
        """Record something about an open trial: points of its curve, marks of the pruner, or attributes.

        Raises:
            LeaseLost: it has ended.
        """
        with self._errors():
            identity = self._identity(number)
            for step, value in curve:
                self._storage.set_trial_intermediate_value(identity, step, value)
            for name, value in attributes.items():
                self._storage.set_trial_user_attr(identity, name, value)
            for name, value in (marks or {}).items():
                self._storage.set_trial_system_attr(identity, name, value)

    def move(self, number: int, state: State, values: Sequence[float] | None = None) -> None:
        """Change the state of an open trial.

        Raises:
            LeaseLost: it has ended.
        """
        with self._errors():
            self._storage.set_trial_state_values(self._identity(number), optuna_state(state), values)

    def _identity(self, number: int) -> int:
        return self._storage.get_trial_id_from_study_id_trial_number(self._study, number)

    @cached_property
    def _study(self) -> int:
        """The storage's number of the study. KeyError: there is none."""
        return self._storage.get_study_id_from_name(self.name)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Be the only worker that decides about studies of this storage. A killed process leaves it."""
        from sqlalchemy import text

        with ExitStack() as held:
            with self._errors():
                assert self._storage is not None  # now it is open
                if self._file is not None:
                    held.enter_context(self._file_lock("search-lock"))
                elif self._engine is not None:
                    connection = held.enter_context(self._engine.connect())
                    connection.execute(text("SELECT pg_advisory_xact_lock(hashtext('ratchet.search'))"))
            yield

    def _file_lock(self, name: str) -> "FileLock":
        from filelock import FileLock

        path = Path(f"{self._file}.{name}")
        path.touch()  # an error now: a lock in a folder that cannot be written is waited for
        return FileLock(path, timeout=_BUSY_SECONDS)

    @property
    def _file(self) -> Path | None:
        """File of the storage; None: it is a server."""
        scheme, _, path = self.uri.partition(":///")
        return Path(path) if scheme in ("sqlite", "journal") and path else None

    @cached_property
    def _storage(self) -> "BaseStorage":
        """The storage, with its tables."""
        from optuna import logging, storages
        from optuna.storages.journal import JournalFileBackend, JournalFileSymlinkLock

        logging.set_verbosity(logging.WARNING)
        if self.uri == "sqlite://":
            return storages.InMemoryStorage()
        if self._file is None and not self.uri.startswith("postgresql"):
            raise StudyError(f"search.storage: found {urls.redacted(self.uri)}. Allowed: {_ALLOWED}")
        try:
            if self._file is not None:
                self._file.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StudyError(
                f"search.storage: found {self.uri}, whose folder cannot be made ({error.strerror}). Fix: name a "
                "file in a folder that this user can write"
            ) from error
        with quiet():
            if self.uri.startswith("journal:"):
                lock = JournalFileSymlinkLock(str(self._file), grace_period=_LONGEST_WRITE)
                return storages.JournalStorage(JournalFileBackend(str(self._file), lock))
            return self._database()

    def _database(self) -> "BaseStorage":
        from optuna import storages
        from sqlalchemy import create_engine, text
        from sqlalchemy.exc import ArgumentError, NoSuchModuleError

        # A worker that hangs in a transaction, or whose machine is lost, would hold the lock.
        limit = f"-c idle_in_transaction_session_timeout={_LONGEST_SILENCE:.0f}s"
        arguments: dict[str, Any] = {"timeout": _BUSY_SECONDS} if self._file else {"options": limit}
        options = {"connect_args": arguments, "pool_pre_ping": not self._file}
        try:
            self._engine = create_engine(self.uri, **options)
        except (ArgumentError, ImportError, NoSuchModuleError) as error:
            raise StudyError(
                f"search.storage: found {urls.redacted(self.uri)} ({first_line(error)}). Allowed: {_ALLOWED}"
            ) from error
        with ExitStack() as held:  # two processes can make the tables at once
            if self._file:
                held.enter_context(self._file_lock("tables-lock"))
            else:
                connection = held.enter_context(self._engine.connect())
                connection.execute(text("SELECT pg_advisory_xact_lock(hashtext('ratchet.search.tables'))"))
            try:
                return storages.get_storage(storages.RDBStorage(self.uri, options))
            except RuntimeError as error:  # tables of another version of Optuna
                raise StudyError(f"search.storage: found {urls.redacted(self.uri)}. {error}") from error

    @contextmanager
    def _errors(self) -> Iterator[None]:
        from optuna.exceptions import StorageInternalError, UpdateFinishedTrialError
        from sqlalchemy.exc import DBAPIError

        try:
            yield
        except UpdateFinishedTrialError as error:
            raise LeaseLost from error
        except (StorageInternalError, DBAPIError, OSError) as error:
            cause = error.__cause__ if isinstance(error, StorageInternalError) else error
            reason = first_line(cause or error)[:200]
            raise StudyUnavailable(
                f"search.storage: {urls.redacted(self.uri)} does not answer ({reason}). Fix: start the database or "
                "free some disk space; a search waits for it"
            ) from error


def patiently(call: Callable[[], T], *, stop: Callable[[], bool], say: Callable[[str], None]) -> T:
    """Return the result of a call to the storage, and wait as long as that does not answer.

    Raises:
        StudyUnavailable: `stop` returned True meanwhile.
    """
    wait, is_first = _FIRST_WAIT, True
    while True:
        try:
            return call()
        except StudyUnavailable as error:
            if stop():
                raise
            if is_first:
                say(f"{error}")
                is_first = False
        until = time.monotonic() + wait
        while time.monotonic() < until and not stop():
            time.sleep(0.1)
        wait = min(2 * wait, _LONGEST_WAIT)


def _plain(study: Study) -> dict[str, Any]:
    """Return the fields of a new study, "created" last: with it the study is whole."""
    plain = to_plain(replace(study, trials=()))
    return {name: plain[name] for name in _FIELDS}
