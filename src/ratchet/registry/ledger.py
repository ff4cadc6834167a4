"""Who did what to which model, when and why: a table that only grows, each entry sealed together with the one before.

An entry that is edited, left out or put in between breaks the chain from there on. What no chain can show, that its end
was cut off, shows where the last seal is written down elsewhere (the registry keeps it with each model).
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ratchet.errors import RegistryError
from ratchet.registry.access import user
from ratchet.workspace import Workspace

if TYPE_CHECKING:
    from sqlalchemy import Engine

__all__ = ["Entry", "Ledger", "faults"]

FIRST = "0" * 64  # what stands before the first entry
_TRIES = 50  # to write while others write
_COLUMNS = ("number", "at", "who", "what", "model", "version", "why", "content", "before", "seal")
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


@dataclass(frozen=True)
class Entry:
    """One act. `at` is UTC as ISO 8601; `content` is plain data: digests, figures, what was before."""

    number: int
    at: str
    who: str
    what: str
    model: str
    version: str | None
    why: str
    content: Mapping[str, Any]
    before: str  # the seal of the entry before
    seal: str

    def sealed(self) -> str:
        """The seal that this entry must have: SHA-256 (hex) over all else."""
        told = [getattr(self, name) for name in _COLUMNS[:-1]]
        return sha256(json.dumps(told, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()).hexdigest()


def faults(entries: Sequence[Entry]) -> list[str]:
    """What is wrong with the chain, in words, one for each place where it breaks."""
    found, before = [], FIRST
    for place, entry in enumerate(entries, start=1):
        name = f"ledger entry {entry.number}"
        if entry.number != place and (place == 1 or entry.number != entries[place - 2].number + 1):
            last = entries[place - 2].number if place > 1 else 0
            one = entry.number == last + 2
            gone = f"entry {last + 1} was" if one else f"entries {last + 1} to {entry.number - 1} were"
            found.append(f"ledger {gone} removed")
        elif entry.before != before:
            found.append(f"{name} does not follow the one before it: one of the two was replaced")
        if entry.seal != entry.sealed():
            found.append(f"{name} ({entry.what} {entry.model}, {entry.at}) was edited after it was written")
        before = entry.seal
    return found


def _content(text: str) -> dict[str, Any]:
    """What an entry holds; of one that was spoilt nothing, which its seal will tell."""
    try:
        content = json.loads(text)
    except ValueError:
        return {}
    return content if isinstance(content, dict) else {}


class Ledger:
    """The ledger in a database.

    Raises (every method):
        RegistryError: the database does not answer.
    """

    def __init__(self, workspace: Workspace, uri: str) -> None:
        self._turns = 0
        self.uri = workspace.database(uri)

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
        """Write down one act, `who` did it being this user where nobody is named; concurrent writers take turns.

        `only_if` is asked with the model's entries, and forbids the act by raising; no other entry comes between its
        leave and this one.
        """
        from sqlalchemy import text
        from sqlalchemy.exc import DBAPIError, IntegrityError

        who = who or user()
        insert = text(
            f"INSERT INTO ledger ({', '.join(_COLUMNS)}) VALUES ({', '.join(f':{name}' for name in _COLUMNS)})"
        )
        for tried in range(_TRIES):
            last = self._last()  # before it is asked: whatever comes after it takes its number
            only_if(self.entries(model=model))
            at = datetime.now(UTC).isoformat(timespec="microseconds")
            number, before = (last.number + 1, last.seal) if last else (1, FIRST)
            entry = Entry(number, at, who, what, model, version, why, content, before, "")
            entry = Entry(**{**vars(entry), "seal": entry.sealed()})
            row = vars(entry) | {"content": json.dumps(content, sort_keys=True, ensure_ascii=False)}
            try:
                with self._engine.begin() as connection:
                    connection.execute(insert, row)
            except IntegrityError:  # another was faster and has the number
                time.sleep(0.002 * tried)
            except DBAPIError as error:
                if "locked" not in str(error):
                    raise self._away(error) from error
                time.sleep(0.002 * tried)
            else:
                return entry
        raise RegistryError(f"{self._name}: others write to it without a pause: run the same again")

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
        """All entries, or a model's, from the first on."""
        chosen = "" if model is None else "WHERE model = :model "
        return self._read(f"{chosen}ORDER BY number", {} if model is None else {"model": model})

    def _last(self) -> Entry | None:
        found = self._read("ORDER BY number DESC LIMIT 1", {})
        return found[0] if found else None

    def _read(self, which: str, values: Mapping[str, Any]) -> list[Entry]:
        from sqlalchemy import text
        from sqlalchemy.exc import DBAPIError

        query = text(f"SELECT {', '.join(_COLUMNS)} FROM ledger {which}")
        try:
            with self._engine.connect() as connection:
                rows = connection.execute(query, dict(values)).mappings().all()
        except DBAPIError as error:
            raise self._away(error) from error
        return [Entry(**{**row, "content": _content(row["content"])}) for row in rows]

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
        """The address without a password."""
        start, at, rest = self.uri.rpartition("@")
        scheme, _, login = start.partition("://")
        return f"the ledger {scheme}://{login.partition(':')[0]}@{rest}" if at else f"the ledger {self.uri}"
