"""Who did what to which model, when and why: a table that only grows, each entry sealed together with the one before.

An entry that is edited, left out or put in between breaks the chain from there on. What no chain can show, that its end
was cut off, shows where the last seal is written down elsewhere (the registry keeps it with each model).
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ratchet import urls
from ratchet.errors import LedgerBroken, RegistryError
from ratchet.registry.access import user
from ratchet.registry.chain import COLUMNS, FIRST, SIGNATURE, Chain, Entry, Fault, Row
from ratchet.registry.heads import Head, Heads, head_faults
from ratchet.settings.model import Params
from ratchet.workspace import Workspace

if TYPE_CHECKING:
    from sqlalchemy import Engine

__all__ = ["FIRST", "RECOVER", "Chain", "Entry", "Fault", "Ledger"]

RECOVER = '`ratchet recover` keeps the evidence and begins again (docs/governance.md, "A broken ledger")'
_TRIES = 50  # to write while others write
_TABLE = """
CREATE TABLE IF NOT EXISTS ledger (
    number INTEGER PRIMARY KEY, at TEXT NOT NULL, who TEXT NOT NULL, what TEXT NOT NULL, model TEXT NOT NULL,
    version TEXT, why TEXT NOT NULL, content TEXT NOT NULL, before TEXT NOT NULL, seal TEXT NOT NULL
)
"""
_MAKE = {
    "sqlite": [
        _TABLE,
        *(
            f"CREATE TRIGGER IF NOT EXISTS ledger_no_{act} BEFORE {act} ON ledger "
            "BEGIN SELECT RAISE(ABORT, 'the ledger only grows'); END"
            for act in ("update", "delete")
        ),
    ],
    "postgresql": [
        "SELECT pg_advisory_xact_lock(hashtext('ratchet.ledger'))",  # those who come first at once would collide
        _TABLE,
        "CREATE OR REPLACE FUNCTION ledger_only_grows() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE EXCEPTION 'the ledger only grows'; END $$",
        "CREATE OR REPLACE TRIGGER ledger_guard BEFORE UPDATE OR DELETE OR TRUNCATE ON ledger "
        "FOR EACH STATEMENT EXECUTE FUNCTION ledger_only_grows()",
    ],
}
"""By kind of database: the table, and what keeps honest programs from changing it. The chain is for the others."""


class Ledger:
    """The ledger in a database.

    Raises (every method):
        RegistryError: the database does not answer.
    """

    def __init__(self, workspace: Workspace, uri: str, *, keys: Sequence[str] = (), signed_from: int = 1) -> None:
        """`keys` are the public keys that must have signed each entry from number `signed_from` on."""
        self._turns = 0
        self.uri = workspace.database(uri)
        self.heads = Heads(workspace, urls.redacted(uri))
        self._keys = tuple(keys)
        self._chain = Chain(keys=self._keys, signed_from=signed_from)

    @classmethod
    def of(cls, workspace: Workspace, params: Params) -> "Ledger":
        """Return the ledger that params.yaml names."""
        registry = params.registry
        return cls(workspace, registry.ledger, keys=registry.ledger_keys, signed_from=registry.ledger_signed_from)

    def append(
        self,
        what: str,
        *,
        model: str,
        version: str | None,
        who: str = "",
        why: str = "",
        only_if: Callable[[list[Entry]], None] = lambda entries: None,
        **content: Any,
    ) -> Entry:
        """Write down one act, done by `who` (this user by default); concurrent writers take turns.

        The whole ledger is verified first. `only_if` gets the model's entries and forbids the act by raising; no other
        entry comes between its consent and this one.

        Raises:
            LedgerBroken: the ledger is not what was written.
            RegistryError: params.yaml demands a signature and there is no key for one.
        """

        def checked(chain: Chain) -> dict[str, Any]:
            only_if(chain.of_model(model))
            return content

        return self._write(what, model=model, version=version, who=who, why=why, content=checked, whole=True)

    def begin_again(self, *, who: str, why: str, content: Callable[[Chain], dict[str, Any]]) -> Entry:
        """Write a recovery of the whole ledger, broken or not; `content` is made of the chain as it is then."""
        return self._write("recover", model="*", version=None, who=who, why=why, content=content)

    def _write(
        self,
        what: str,
        *,
        model: str,
        version: str | None,
        who: str,
        why: str,
        content: Callable[[Chain], dict[str, Any]],
        whole: bool = False,
    ) -> Entry:
        from sqlalchemy import text
        from sqlalchemy.exc import DBAPIError, IntegrityError

        from ratchet.registry.signatures import sign

        insert = text(f"INSERT INTO ledger ({', '.join(COLUMNS)}) VALUES ({', '.join(f':{name}' for name in COLUMNS)})")
        for tried in range(_TRIES):
            if whole:
                self.require_whole()
            chain = self._chain if whole else self.read()  # as it was verified
            values = content(chain)
            at = datetime.now(UTC).isoformat(timespec="microseconds")
            last = chain.entries[-1] if chain.entries else None
            number, before = (last.number + 1, last.seal) if last else (1, FIRST)
            entry = Entry(number, at, who or user(), what, model, version, why, values, before, "")
            signature = sign(entry.unsigned(), self._keys)
            if signature:
                entry = Entry(**{**vars(entry), "content": {**values, SIGNATURE: signature}})
            entry = Entry(**{**vars(entry), "seal": entry.sealed()})
            try:
                with self._engine.begin() as connection:
                    connection.execute(insert, entry.row())
            except IntegrityError:  # another was faster and has the number
                time.sleep(0.002 * tried)
            except DBAPIError as error:
                if "locked" not in str(error):
                    raise self._away(error) from error
                time.sleep(0.002 * tried)
            else:
                self.heads.write(chain.entries[0].seal if chain.entries else entry.seal, entry)
                return entry
        raise RegistryError(f"{self._name}: others write to it without a pause: run the same again")

    def read(self) -> Chain:
        """Read and verify all of it. Rows that are equal to those verified before are not verified again."""
        self._chain = self._chain.read_again(self._rows())
        return self._chain

    def faults(self) -> list[Fault]:
        """Return where the ledger is not what was written: the chain itself, and the heads kept outside of it."""
        # Heads first: another process can add an entry and its head at any time, in this order.
        logged, others = self.heads.logged(), [*self.heads.here(), *self.heads.committed()[0]]
        chain = self.read()
        return [*chain.faults, *head_faults(chain.entries, logged, others)]

    def require_whole(self) -> None:
        """Read all of it, and refuse to go on with a fault.

        Raises:
            LedgerBroken: names the first fault, and the command that recovers.
        """
        found = self.faults()
        if found:
            more = f" (and {len(found) - 1} more: `ratchet audit` lists them)" if found[1:] else ""
            raise LedgerBroken(
                f"{self._name} is broken: {found[0].text}{more}. Nothing was changed. Fix: restore the ledger from a "
                f"backup; without one, {RECOVER}"
            )

    def lost(self) -> str | None:
        """Return a sentence if the ledger is empty and this project wrote to it; None otherwise."""
        logged = self.heads.logged()
        if not logged or self.read().entries:
            return None
        return f"{self._name} is empty, and {logged[-1].where} has its entry {logged[-1].number}"

    @property
    def head(self) -> Head | None:
        """The last entry, as files outside the database keep it."""
        return Head.of(self.read().entries)

    def publish(self) -> None:
        """Add the last entry to the file that Git keeps."""
        entries = self.read().entries
        if entries:
            self.heads.publish(entries[0].seal, entries[-1])

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Be the only one, on whatever machine, who reads this ledger to act by it; dies with the process.

        Within a turn another of the same object's is none of its own.
        """
        if self._turns:
            yield
            return
        with self._lock():
            self._turns += 1
            try:
                yield
            finally:
                self._turns -= 1

    @contextmanager
    def _lock(self) -> Iterator[None]:
        from sqlalchemy import text
        from sqlalchemy.exc import DBAPIError

        if self._engine.dialect.name == "sqlite":
            from filelock import FileLock

            with FileLock(f"{self._engine.url.database}.lock"):
                yield
            return
        try:
            connection = self._engine.connect()
            connection.execute(text("SELECT pg_advisory_lock(hashtext('ratchet.turn'))"))
        except DBAPIError as error:
            raise self._away(error) from error
        try:
            yield
        finally:
            connection.invalidate()  # ends its session, and with it the lock
            connection.close()

    def entries(self, *, model: str | None = None) -> list[Entry]:
        """Return the entries that count, or a model's, from the first on: all but those that a recovery set aside.

        A ledger that is broken gives them, too: acts refuse it by `require_whole`.
        """
        chain = self.read()
        return chain.valid[:] if model is None else chain.of_model(model)

    def set_aside(self, *, model: str) -> list[Entry]:
        """Return a model's entries that recoveries set aside."""
        chain = self.read()
        counted = {entry.number for entry in chain.valid}
        return [entry for entry in chain.entries if entry.model == model and entry.number not in counted]

    def _rows(self) -> list[Row]:
        from sqlalchemy import text
        from sqlalchemy.exc import DBAPIError

        query = text(f"SELECT {', '.join(COLUMNS)} FROM ledger ORDER BY number")
        try:
            with self._engine.connect() as connection:
                return [tuple(row) for row in connection.execute(query)]
        except DBAPIError as error:
            raise self._away(error) from error

    @cached_property
    def _engine(self) -> "Engine":
        """The database, with the table in it."""
        from sqlalchemy import create_engine, inspect, text
        from sqlalchemy.exc import ArgumentError, DBAPIError

        try:
            engine = create_engine(self.uri)
            if engine.dialect.name not in _MAKE:
                raise ArgumentError(f"{engine.dialect.name} is not supported")
        except (ArgumentError, ImportError) as error:
            raise RegistryError(
                f"params.yaml: registry.ledger: found {self._name}: no address of a database ({error}); allowed: "
                "sqlite:///mlruns/ledger.db, or postgresql://HOST/DATABASE"
            ) from error
        if engine.dialect.name == "sqlite" and engine.url.database:
            Path(engine.url.database).parent.mkdir(parents=True, exist_ok=True)
        try:
            if engine.dialect.name == "sqlite" or not inspect(engine).has_table("ledger"):
                with engine.begin() as connection:
                    for statement in _MAKE[engine.dialect.name]:
                        connection.execute(text(statement))
        except DBAPIError as error:
            raise self._away(error) from error
        return engine

    def _away(self, error: Exception) -> RegistryError:
        cause = getattr(error, "orig", None) or error
        return RegistryError(f"{self._name}: cannot be used ({str(cause).strip().splitlines()[0]}): start or mend it")

    @property
    def _name(self) -> str:
        """The address, without a secret."""
        return f"the ledger {urls.redacted(self.uri)}"
