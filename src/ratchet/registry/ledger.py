"""The ledger: an append-only table of every act on a model, with user, time and reason.

Each entry has a seal over its content and the entry before. An entry that is edited, removed or inserted breaks this
chain. The chain cannot show that its end was cut off, so the last seal is also kept elsewhere: in MLflow with each
model, and as heads in files (`heads`).
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ratchet import urls
from ratchet.errors import LedgerBroken, RegistryError
from ratchet.registry.access import user
from ratchet.registry.chain import COLUMNS, FIRST, Chain, Fault, LedgerEntry, Row
from ratchet.registry.heads import Head, HeadFiles, head_faults
from ratchet.settings.model import Params
from ratchet.workspace import Workspace

if TYPE_CHECKING:
    from sqlalchemy import Engine

__all__ = ["FIRST", "RECOVER", "Chain", "Fault", "Ledger", "LedgerEntry"]

RECOVER = '`ratchet recover` keeps the evidence and begins again (docs/governance.md, "A broken ledger")'
_MAX_TRIES = 50  # to write while other processes write
_TABLE = """
CREATE TABLE IF NOT EXISTS ledger (
    number INTEGER PRIMARY KEY, at TEXT NOT NULL, who TEXT NOT NULL, what TEXT NOT NULL, model TEXT NOT NULL,
    version TEXT, why TEXT NOT NULL, content TEXT NOT NULL, before TEXT NOT NULL, seal TEXT NOT NULL
)
"""
_GUARDS = {
    f"ledger_no_{act}": f"BEFORE {act} ON ledger BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END"
    for act in ("update", "delete")
}
_CREATE = {
    "sqlite": [
        "BEGIN IMMEDIATE",  # as below
        _TABLE,
        *(f"CREATE TRIGGER IF NOT EXISTS {name} {action}" for name, action in _GUARDS.items()),
    ],
    "postgresql": [
        "SELECT pg_advisory_xact_lock(hashtext('ratchet.ledger'))",  # or two processes could create it at once
        _TABLE,
        "CREATE OR REPLACE FUNCTION ledger_only_grows() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE EXCEPTION 'the ledger is append-only'; END $$",
        "CREATE OR REPLACE TRIGGER ledger_guard BEFORE UPDATE OR DELETE OR TRUNCATE ON ledger "
        "FOR EACH STATEMENT EXECUTE FUNCTION ledger_only_grows()",
    ],
}
"""By kind of database: the statements that create the table, with triggers against changes by mistake.

The chain detects changes by those who remove the triggers.
"""

# The transaction waits while a model is judged. Servers before 17 have only the first of these settings.
_ENDLESS = """
SELECT set_config(name, '0', true) FROM pg_settings
WHERE name IN ('idle_in_transaction_session_timeout', 'transaction_timeout')
"""


class Ledger:
    """The ledger in a database.

    Raises (every method):
        RegistryError: the database does not answer.
    """

    def __init__(self, workspace: Workspace, uri: str) -> None:
        """Open the ledger at `uri`."""
        self._depth = 0
        self.uri = workspace.database(uri)
        self.heads = HeadFiles(workspace, urls.redacted(uri))
        self._chain = Chain()

    @classmethod
    def of(cls, workspace: Workspace, params: Params) -> "Ledger":
        """Return the ledger that params.yaml names."""
        return cls(workspace, params.registry.ledger)

    def append(
        self,
        what: str,
        *,
        model: str,
        version: str | None = None,
        who: str = "",
        why: str = "",
        derive: Callable[[Chain], Mapping[str, Any]] = lambda chain: {},
        verify: bool = True,
        **content: Any,
    ) -> LedgerEntry:
        """Write one act, done by `who` (this user by default), after verifying the whole ledger.

        `derive` returns more content from the chain, or forbids the act by raising. No other entry is written between
        this call and the new entry. Only a recovery sets `verify` to False.

        Raises:
            LedgerBroken: the ledger is not what was written.
        """
        for attempt in range(_MAX_TRIES):
            if verify:
                self.require_intact()
            chain = self._chain if verify else self.read()  # exactly what was verified
            last = chain.entries[-1] if chain.entries else None
            number, before = (last.number + 1, last.seal) if last else (1, FIRST)
            values = {**content, **derive(chain)}
            at = datetime.now(UTC).isoformat(timespec="microseconds")
            entry = LedgerEntry(number, at, who or user(), what, model, version, why, values, before, "")
            entry = replace(entry, seal=entry.sealed())
            if self._insert(entry):
                self.heads.write(chain.entries[0].seal if chain.entries else entry.seal, entry)
                return entry
            time.sleep(0.002 * attempt)
        raise RegistryError(f"{self._name}: other processes write to it all the time. Fix: run the same command again")

    def _insert(self, entry: LedgerEntry) -> bool:
        """Write a row; return False if another process has written this number or holds the database."""
        from sqlalchemy import text
        from sqlalchemy.exc import DBAPIError, IntegrityError

        insert = text(f"INSERT INTO ledger ({', '.join(COLUMNS)}) VALUES ({', '.join(f':{name}' for name in COLUMNS)})")
        with self._errors():
            try:
                with self._engine.begin() as connection:
                    connection.execute(insert, entry.row())
            except DBAPIError as error:
                if isinstance(error, IntegrityError) or "locked" in str(error):
                    return False
                raise
        return True

    def read(self) -> Chain:
        """Read and verify the whole ledger. Rows that did not change since the last time are not verified again."""
        self._chain = self._chain.read_again(self._rows())
        return self._chain

    def faults(self) -> list[Fault]:
        """Return the faults of the chain, and its disagreements with the heads kept outside of it."""
        heads = self.heads.known()  # before the chain: another process can add an entry and then its head at any time
        chain = self.read()
        return [*chain.faults, *head_faults(chain.entries, *heads)]

    def require_intact(self) -> None:
        """Read and verify the whole ledger.

        Raises:
            LedgerBroken: it has a fault; the message names the first one and the command that recovers.
        """
        faults = self.faults()
        if faults:
            more = f" (and {len(faults) - 1} more: `ratchet audit` lists them)" if faults[1:] else ""
            raise LedgerBroken(
                f"{self._name} is broken: {faults[0].text}{more}. Nothing was changed. Fix: restore the ledger from a "
                f"backup; without one, {RECOVER}"
            )

    def dropped_guards(self) -> list[str]:
        """Return the names of the triggers against changes that the database lacks, or has in another form."""
        from sqlalchemy import text

        is_sqlite = self._engine.dialect.name == "sqlite"
        query = (
            "SELECT name, sql FROM sqlite_master WHERE type = 'trigger' AND tbl_name = 'ledger'"
            if is_sqlite
            else "SELECT tgname, tgname FROM pg_trigger WHERE tgrelid = 'ledger'::regclass AND tgenabled = 'O'"
        )
        with self._errors(), self._engine.connect() as connection:
            present = {str(name): str(sql) for name, sql in connection.execute(text(query))}
        wanted = _GUARDS if is_sqlite else {"ledger_guard": "ledger_guard"}
        return [name for name, action in wanted.items() if not present.get(name, "").endswith(action)]

    def restore_guards(self) -> list[str]:
        """Create the triggers that the database lacks; return their names."""
        from sqlalchemy import text

        dropped, is_sqlite = self.dropped_guards(), self._engine.dialect.name == "sqlite"
        statements = [
            statement
            for name in dropped
            for statement in (f"DROP TRIGGER IF EXISTS {name}", f"CREATE TRIGGER {name} {_GUARDS.get(name, '')}")
        ]
        if dropped and not is_sqlite:
            statements = [*_CREATE["postgresql"], "ALTER TABLE ledger ENABLE TRIGGER ledger_guard"]
        with self._errors(), self._engine.begin() as connection:
            for statement in statements:
                connection.execute(text(statement))
        return dropped

    @property
    def is_begun(self) -> bool:
        """Whether there is a ledger, or was one on this machine. Creates nothing."""
        path = self.uri.removeprefix("sqlite:///")
        return path == self.uri or Path(path).exists() or bool(self.heads.logged())

    def lost(self) -> str | None:
        """Return a message if the ledger is empty although this project has written to it; None otherwise."""
        logged = self.heads.logged()
        if not logged or self.read().entries:
            return None
        return f"{self._name} is empty, and {logged[-1].where} has its entry {logged[-1].number}"

    @property
    def head(self) -> Head | None:
        """The last entry, as files outside the database keep it."""
        entries = self.read().entries
        return Head(entries[0].seal, entries[-1].number, entries[-1].seal) if entries else None

    def publish(self) -> None:
        """Add the last entry to the file that Git keeps."""
        entries = self.read().entries
        if entries:
            self.heads.publish(entries[0].seal, entries[-1])

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Hold the ledger, so that no other process on any machine acts meanwhile; released when the process ends.

        The same object can enter it again within. In PostgreSQL a transaction has the lock, so that also behind a
        pooler it ends with the session.
        """
        if self._depth:
            yield
            return
        with self._lock():
            self._depth += 1
            try:
                yield
            finally:
                self._depth -= 1

    @contextmanager
    def _lock(self) -> Iterator[None]:
        from sqlalchemy import text

        if self._engine.dialect.name == "sqlite":
            from filelock import FileLock

            with FileLock(f"{self._engine.url.database}.lock"):
                yield
            return
        with self._errors():
            connection = self._engine.connect()
            connection.execute(text(_ENDLESS))
            connection.execute(text("SELECT pg_advisory_xact_lock(hashtext('ratchet.exclusive'))"))
        try:
            yield
        finally:
            connection.invalidate()  # ends its session, and with it the lock
            connection.close()

    def entries(self, *, model: str | None = None) -> list[LedgerEntry]:
        """Return the valid entries, or those of a model: all except the ones that a recovery set aside.

        A broken ledger returns them too. Acts check it with `require_intact` first.
        """
        chain = self.read()
        return chain.valid[:] if model is None else chain.of_model(model)

    def set_aside(self, *, model: str) -> list[LedgerEntry]:
        """Return a model's entries that recoveries set aside."""
        chain = self.read()
        valid = {entry.number for entry in chain.valid}
        return [entry for entry in chain.entries if entry.model == model and entry.number not in valid]

    def _rows(self) -> list[Row]:
        from sqlalchemy import text

        query = text(f"SELECT {', '.join(COLUMNS)} FROM ledger ORDER BY number")
        with self._errors(), self._engine.connect() as connection:
            return [tuple(row) for row in connection.execute(query)]

    @cached_property
    def _engine(self) -> "Engine":
        """The database, with the table created in it."""
        from sqlalchemy import create_engine, inspect, text
        from sqlalchemy.exc import ArgumentError

        try:
            engine = create_engine(self.uri)
            if engine.dialect.name not in _CREATE:
                raise ArgumentError(f"{engine.dialect.name} is not supported")
        except (ArgumentError, ImportError) as error:
            raise RegistryError(
                f"params.yaml: registry.ledger: found {self._name}: not the address of a supported database ({error}); "
                "allowed: sqlite:///mlruns/ledger.db, or postgresql://HOST/DATABASE"
            ) from error
        if engine.dialect.name == "sqlite" and engine.url.database:
            Path(engine.url.database).parent.mkdir(parents=True, exist_ok=True)
        with self._errors():
            # Not again for a table that exists: an audit must see that its triggers were dropped.
            if not inspect(engine).has_table("ledger"):
                with engine.begin() as connection:
                    for statement in _CREATE[engine.dialect.name]:
                        connection.execute(text(statement))
        return engine

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Turn errors of the database into one that names it."""
        from sqlalchemy.exc import DBAPIError

        try:
            yield
        except DBAPIError as error:
            cause = str(error.orig or error).strip().splitlines()[0]
            raise RegistryError(f"{self._name}: cannot be used ({cause}). Fix: start or repair it") from error

    @property
    def _name(self) -> str:
        """The address without secrets, for messages."""
        return f"the ledger {urls.redacted(self.uri)}"
