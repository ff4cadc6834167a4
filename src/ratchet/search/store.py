"""The database of studies: SQLite on one machine, PostgreSQL for several.

Every change is one transaction, which begins with a write to the row of the study. So transactions of one study follow
each other, and a killed process leaves either all of a change or nothing. Trials are rows with a JSON document; columns
repeat only what statements select by.
"""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ratchet import urls
from ratchet.errors import StudyError, StudyUnavailable, first_line
from ratchet.search.records import Study, Trial
from ratchet.typed_json import parse, to_plain
from ratchet.workspace import Workspace

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine, Table

__all__ = ["Change", "StudyStore", "patiently"]

T = TypeVar("T")
_BUSY_SECONDS = 60.0  # that SQLite waits for another writer
_FIRST_WAIT, _LONGEST_WAIT = 0.5, 15.0  # seconds between two attempts to reach the database
_LONGEST_SILENCE = 120.0  # seconds between two signs of workers that count as searched
_COLUMNS = ("stop", "active", "beat", "changes")  # of a study, beside its document


@dataclass
class Change:
    """A transaction on one study. `study` has its trials; `now` is the database's time, seconds since 1970."""

    study: Study
    now: float
    _store: "StudyStore"
    _connection: "Connection"
    _number: int

    def put(self, trial: Trial) -> Trial:
        """Write a trial, new or changed, and return it."""
        store = self._store
        row = {
            "state": trial.state, "owner": trial.owner, "expires": trial.expires, "changed": self._number,
            "content": _text(trial),
        }  # fmt: skip
        known = any(each.number == trial.number for each in self.study.trials)
        where = (store.table.c.study == self.study.name) & (store.table.c.number == trial.number)
        statement = (
            store.table.update().where(where).values(**row)
            if known
            else store.table.insert().values(study=self.study.name, number=trial.number, key=trial.key, **row)
        )
        self._connection.execute(statement)
        trials = {**{each.number: each for each in self.study.trials}, trial.number: trial}
        self.study = replace(self.study, trials=tuple(trials.values()))
        return trial

    def save(self, **changes: Any) -> None:
        """Write fields of the study."""
        self.study = replace(self.study, **changes)
        flags = {name: value for name, value in changes.items() if name in _COLUMNS}
        table = self._store.studies
        row = {**flags, "content": _text(replace(self.study, trials=(), stop=False, active=0.0))}
        self._connection.execute(table.update().where(table.c.name == self.study.name).values(**row))


class StudyStore:
    """One study in the database.

    Raises (every method):
        StudyUnavailable: the database does not answer.
    """

    def __init__(self, workspace: Workspace | None, uri: str, name: str) -> None:
        """Open the study `name`. `workspace` is the project to which a relative SQLite path belongs."""
        self.uri = workspace.database(uri) if workspace else uri
        self.name = name
        self.trials: dict[int, Trial] = {}  # as last read or written
        self._seen = -1  # number of the last change in `trials`
        self._now = _Clock()

    def create(self, study: Study) -> bool:
        """Write a new study; return False if there is one with its name."""
        from sqlalchemy.exc import IntegrityError

        with self._errors():
            try:
                with self._engine.begin() as connection:
                    now = self._now(connection)
                    content = _text(replace(study, created=study.created or now))
                    row = {
                        "name": self.name,
                        "content": content,
                        "changes": 0,
                        "active": 0.0,
                        "beat": now,
                        "stop": False,
                    }
                    connection.execute(self.studies.insert().values(**row))
                return True
            except IntegrityError:
                return False

    def names(self) -> list[str]:
        """Return the names of all studies, the oldest first."""
        from sqlalchemy import select

        with self._errors(), self._engine.connect() as connection:
            return [
                str(name) for (name,) in connection.execute(select(self.studies.c.name).order_by(self.studies.c.id))
            ]

    def read(self) -> Study | None:
        """Return the study with its trials; None: there is none."""
        with self._errors(), self._engine.connect() as connection:
            return self._read(connection)

    def require(self) -> Study:
        """Return the study with its trials.

        Raises:
            StudyError: there is none with this name.
        """
        study = self.read()
        if study is None:
            names = self.names()
            raise StudyError(
                f"{self.name}: no such study in {urls.redacted(self.uri)}. Allowed: "
                f"{', '.join(names) or 'there are none; `ratchet search` begins one'}"
            )
        return study

    @contextmanager
    def change(self) -> Iterator[Change]:
        """Begin a transaction on the study. An exception undoes it.

        Raises:
            StudyError: there is no such study.
        """
        with self._errors():
            try:
                with self._engine.begin() as connection:
                    where = self.studies.c.name == self.name
                    statement = self.studies.update().where(where).values(changes=self.studies.c.changes + 1)
                    changes = connection.execute(statement.returning(self.studies.c.changes)).scalar()
                    if changes is None:
                        raise StudyError(f"{self.name}: no such study. Fix: `ratchet search` begins one")
                    now = self._now(connection)
                    self._count(connection, now)
                    study = self._read(connection)
                    assert study
                    change = Change(study, now, self, connection, int(changes))
                    yield change
                self.trials, self._seen = {trial.number: trial for trial in change.study.trials}, int(changes)
            except BaseException:
                self._seen, self.trials = -1, {}  # what was undone must not stay
                raise

    def beat(self, number: int, owner: str, *, lease: float) -> bool:
        """Extend the lease of a trial; return False if another worker has it. Also count the time that is searched."""
        with self._errors(), self._engine.begin() as connection:
            now, trials = self._now(connection), self.table
            where = (trials.c.study == self.name) & (trials.c.number == number) & (trials.c.owner == owner)
            self._count(connection, now)  # first the row of the study, as in `change`: no deadlock
            return bool(connection.execute(trials.update().where(where).values(expires=now + lease)).rowcount)

    def _count(self, connection: "Connection", now: float) -> None:
        """Add the seconds since the last sign of any worker to the active time; a longer pause does not count."""
        from sqlalchemy import case

        studies = self.studies
        passed = now - studies.c.beat
        counted = case((passed.between(0.0, _LONGEST_SILENCE), studies.c.active + passed), else_=studies.c.active)
        latest = case((passed > 0.0, now), else_=studies.c.beat)
        connection.execute(studies.update().where(studies.c.name == self.name).values(active=counted, beat=latest))

    def _read(self, connection: "Connection") -> Study | None:
        from sqlalchemy import select

        columns = [self.studies.c[name] for name in ("content", "stop", "active")]
        row = connection.execute(select(*columns).where(self.studies.c.name == self.name)).first()
        if row is None:
            return None
        c = self.table.c
        query = select(c.number, c.changed, c.expires, c.content).where(c.study == self.name, c.changed > self._seen)
        for number, changed, expires, content in connection.execute(query.order_by(c.number)):
            self.trials[number] = replace(parse(Trial, content), expires=expires)
            self._seen = max(self._seen, changed)
        leases = select(c.number, c.expires).where(c.study == self.name, c.state == "running")
        for number, expires in connection.execute(leases):
            if number in self.trials:  # not one that came after the statement before
                self.trials[number] = replace(self.trials[number], expires=expires)
        trials = tuple(self.trials[number] for number in sorted(self.trials))
        return replace(parse(Study, row.content), stop=bool(row.stop), active=float(row.active), trials=trials)

    @cached_property
    def studies(self) -> "Table":
        """Table of studies."""
        return self._tables[0]

    @cached_property
    def table(self) -> "Table":
        """Table of trials."""
        return self._tables[1]

    @cached_property
    def _tables(self) -> "tuple[Table, Table]":
        from sqlalchemy import Boolean, Column, Float, Integer, MetaData, String, Table, Text, UniqueConstraint

        about = MetaData()
        studies = Table(
            "ratchet_studies", about,
            Column("id", Integer, primary_key=True), Column("name", String(64), unique=True, nullable=False),
            Column("changes", Integer, nullable=False), Column("stop", Boolean, nullable=False),
            Column("active", Float(53), nullable=False), Column("beat", Float(53), nullable=False),
            Column("content", Text, nullable=False),
        )  # fmt: skip
        trials = Table(
            "ratchet_trials", about,
            Column("study", String(64), primary_key=True), Column("number", Integer, primary_key=True),
            Column("key", String(64), nullable=False), Column("state", String(16), nullable=False),
            Column("owner", String(200), nullable=False), Column("expires", Float(53), nullable=False),
            Column("changed", Integer, nullable=False, index=True), Column("content", Text, nullable=False),
            UniqueConstraint("study", "key"),
        )  # fmt: skip
        return studies, trials

    @cached_property
    def _engine(self) -> "Engine":
        """The database, with its tables."""
        from sqlalchemy import create_engine
        from sqlalchemy.exc import ArgumentError, NoSuchModuleError
        from sqlalchemy.pool import StaticPool

        try:
            sqlite = self.uri.startswith("sqlite:")
            if not sqlite and not self.uri.startswith("postgresql"):
                raise ArgumentError("only SQLite and PostgreSQL are supported")
            memory: dict[str, Any] = {"poolclass": StaticPool} if self.uri == "sqlite://" else {}
            # A worker that hangs in a transaction, or whose machine is lost, would hold the study's row.
            limit = f"-c idle_in_transaction_session_timeout={_LONGEST_SILENCE:.0f}s"
            arguments: dict[str, Any] = {"timeout": _BUSY_SECONDS} if sqlite else {"options": limit}
            engine = create_engine(self.uri, pool_pre_ping=not sqlite, connect_args=arguments, **memory)
        except (ArgumentError, ImportError, NoSuchModuleError) as error:
            raise StudyError(
                f"search.storage: found {urls.redacted(self.uri)} ({first_line(error)}). Allowed: "
                "sqlite:///mlruns/search.db or postgresql://HOST/DATABASE"
            ) from error
        if sqlite and engine.url.database:
            try:
                Path(engine.url.database).parent.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise StudyError(
                    f"search.storage: found {self.uri}, whose folder cannot be made ({error.strerror}). Fix: name a "
                    "file in a folder that this user can write"
                ) from error
        self._make_tables(engine)
        return engine

    def _make_tables(self, engine: "Engine") -> None:
        from sqlalchemy import inspect, text
        from sqlalchemy.exc import ProgrammingError

        with engine.begin() as connection:
            if engine.dialect.name == "postgresql":  # two processes can create them at once
                connection.execute(text("SELECT pg_advisory_xact_lock(hashtext('ratchet.search'))"))
            else:
                connection.execute(text("BEGIN IMMEDIATE"))
            if not inspect(connection).has_table(self.table.name):
                try:
                    self.table.metadata.create_all(connection)
                except ProgrammingError as error:
                    raise StudyError(
                        f"search.storage: {first_line(error)}. Fix: let this user create tables"
                    ) from error

    @contextmanager
    def _errors(self) -> Iterator[None]:
        from sqlalchemy.exc import DBAPIError, IntegrityError

        try:
            yield
        except IntegrityError:
            raise
        except DBAPIError as error:
            raise StudyUnavailable(
                f"search.storage: {urls.redacted(self.uri)} does not answer ({first_line(error)[:200]}). Fix: start "
                "the database or free some disk space; a search waits for it"
            ) from error


def patiently(call: Callable[[], T], *, stop: Callable[[], bool], say: Callable[[str], None]) -> T:
    """Return the result of a call to the database, and wait as long as that does not answer.

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


class _Clock:
    """The time of the database, because clocks of machines differ."""

    def __call__(self, connection: "Connection") -> float:
        from sqlalchemy import text

        if connection.dialect.name == "sqlite":
            return time.time()
        return float(connection.execute(text("SELECT extract(epoch FROM clock_timestamp())")).scalar() or 0.0)


def _text(value: Study | Trial) -> str:
    return json.dumps(to_plain(value))
