"""The ledger: only complete entries are added, by any number of writers, and every other change is detected."""

import multiprocessing
import re
import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.exc import DBAPIError
from waiting import until

from ratchet.errors import RegistryError
from ratchet.registry.ledger import _CREATE, FIRST, Chain, Ledger
from ratchet.workspace import Workspace


def chain_faults(ledger: Ledger) -> list[str]:
    return [fault.text for fault in ledger.read().faults]


@pytest.fixture
def sqlite(tmp_path: Path) -> Ledger:
    return Ledger(Workspace(tmp_path), "sqlite:///mlruns/ledger.db")


@pytest.fixture
def database(postgres: Any, tmp_path: Path) -> Ledger:
    """A PostgreSQL database without a ledger yet."""
    with create_engine(postgres.uri).begin() as connection:
        connection.execute(text("DROP TABLE IF EXISTS ledger"))
    return Ledger(Workspace(tmp_path), postgres.uri)


@pytest.fixture(params=["sqlite", "database"])
def ledger(request: pytest.FixtureRequest) -> Ledger:
    """Each kind of database, one after the other."""
    ledger: Ledger = request.getfixturevalue(request.param)
    return ledger


@pytest.fixture
def filled(sqlite: Ledger) -> Ledger:
    ledger = sqlite
    for number in range(1, 8):
        ledger.append("promote", model="pets", version=str(number), who="ann", why=f"reason {number}", model_sha="ab")
    return ledger


def tamper(tmp_path: Path, *statements: str) -> None:
    """Change the table as an attacker who knows the triggers."""
    with sqlite3.connect(tmp_path / "mlruns" / "ledger.db") as connection:
        connection.execute("DROP TRIGGER ledger_no_update")
        connection.execute("DROP TRIGGER ledger_no_delete")
        for statement in statements:
            connection.execute(statement)
    connection.close()


def test_entries_are_read_as_written_and_form_a_chain(ledger: Ledger) -> None:
    first = ledger.append("register", model="pets", version="1", who="ann", why="ünïcode", digests={"b": 1, "a": [2]})
    second = ledger.append("promote", model="cars", version=None)
    assert ledger.entries() == [first, second]
    assert (first.number, first.before, second.before) == (1, FIRST, first.seal)
    assert (first.who, first.why, first.content) == ("ann", "ünïcode", {"digests": {"b": 1, "a": [2]}})
    assert second.who
    assert ledger.entries(model="cars") == [second]
    assert chain_faults(ledger) == []


@pytest.mark.parametrize("statement", ["UPDATE ledger SET who = 'bob'", "DELETE FROM ledger WHERE number = 1"])
def test_an_entry_can_be_neither_changed_nor_removed(ledger: Ledger, statement: str) -> None:
    entry = ledger.append("promote", model="pets", version="1")
    engine = create_engine(ledger.uri)
    with engine.connect() as connection, pytest.raises(DBAPIError, match="the ledger is append-only"):
        connection.execute(text(statement))
    engine.dispose()
    assert ledger.entries() == [entry]


def test_postgresql_refuses_to_truncate_it(database: Ledger) -> None:
    entry = database.append("promote", model="pets", version="1")
    engine = create_engine(database.uri)
    with engine.connect() as connection, pytest.raises(DBAPIError, match="the ledger is append-only"):
        connection.execute(text("TRUNCATE ledger"))
    engine.dispose()
    assert database.entries() == [entry]


@pytest.mark.parametrize(
    ("statements", "patterns"),
    [
        (["UPDATE ledger SET who = 'bob' WHERE number = 3"], [r"ledger entry 3 \(promote pets, .*\) was edited"]),
        (["UPDATE ledger SET content = '{}' WHERE number = 1"], ["ledger entry 1 .* was edited"]),
        (["DELETE FROM ledger WHERE number = 4"], ["ledger entry 4 was removed"]),
        (["DELETE FROM ledger WHERE number IN (1, 2)"], ["ledger entries 1 to 2 were removed"]),
        (
            ["DELETE FROM ledger WHERE number = 4", "UPDATE ledger SET number = number - 1 WHERE number > 4"],
            ["ledger entry 4 does not follow", "ledger entry 4 .* edited", "entry 5 .* edited", "entry 6 .* edited"],
        ),
    ],
)
def test_each_change_is_detected_and_named(
    filled: Ledger, tmp_path: Path, statements: list[str], patterns: list[str]
) -> None:
    tamper(tmp_path, *statements)
    faults = chain_faults(filled)
    assert len(faults) == len(patterns)
    assert all(re.search(pattern, fault) for pattern, fault in zip(patterns, faults, strict=True))


def test_a_resealed_entry_breaks_the_link_to_the_next(filled: Ledger, tmp_path: Path) -> None:
    from dataclasses import replace

    forged = replace(filled.entries()[2], who="bob")
    tamper(tmp_path, f"UPDATE ledger SET who = 'bob', seal = '{forged.sealed()}' WHERE number = 3")
    assert chain_faults(filled) == ["ledger entry 4 does not follow the one before it: one of the two was replaced"]


def test_a_forbidden_act_is_not_written(ledger: Ledger) -> None:
    def none_yet(chain: Chain) -> dict[str, str]:
        if chain.of_model("pets"):
            raise LookupError("there is one")
        return {"place": "first"}

    ledger.append("promote", model="cars", version="1")
    ledger.append("promote", model="pets", version="1", derive=none_yet)
    with pytest.raises(LookupError):
        ledger.append("promote", model="pets", version="2", derive=none_yet)
    (entry,) = ledger.entries(model="pets")
    assert (entry.version, entry.content) == ("1", {"place": "first"})


def _claim(root: str, uri: str, name: str, outcomes: Any) -> None:
    """Ten times, try to write the next entry; of all processes only one can."""
    ledger = Ledger(Workspace(Path(root)), uri)
    for number in range(10):

        def not_yet(chain: Chain, number: int = number) -> dict[str, str]:
            if len(chain.entries) > number:
                raise LookupError
            return {}

        try:
            ledger.append("promote", model="pets", version=f"{name}{number}", derive=not_yet)
        except LookupError:
            outcomes.put(0)
        else:
            outcomes.put(1)


@pytest.mark.system
def test_one_of_several_concurrent_writers_succeeds(ledger: Ledger, tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    outcomes: Any = context.Queue()
    writers = [
        context.Process(target=_claim, args=(str(tmp_path), ledger.uri, f"writer {n}", outcomes)) for n in range(4)
    ]
    for writer in writers:
        writer.start()
    written = sum(outcomes.get() for _ in range(40))
    for writer in writers:
        writer.join()
    assert written == len(ledger.entries()) == 10
    assert chain_faults(ledger) == []


def _increment(root: str, uri: str, place: str) -> None:
    """Increment a number fifty times; without exclusion some increments would be lost."""
    ledger, path = Ledger(Workspace(Path(root)), uri), Path(place)
    for _ in range(50):
        with ledger.exclusive(), ledger.exclusive():  # it can be entered twice
            path.write_text(str(int(path.read_text()) + 1))


@pytest.mark.system
def test_processes_exclude_each_other(ledger: Ledger, tmp_path: Path) -> None:
    counter = tmp_path / "counter"
    counter.write_text("0")
    ledger.entries()
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=_increment, args=(str(tmp_path), ledger.uri, str(counter))) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    assert counter.read_text() == "150"


def test_two_processes_may_create_the_ledger(ledger: Ledger) -> None:
    assert ledger.entries() == []
    with ledger._engine.begin() as connection:  # of another process, which saw no table before
        for statement in _CREATE[connection.dialect.name]:
            connection.execute(text(statement))
    ledger.append("approve", model="pets", version="0")
    assert chain_faults(ledger) == []


def test_a_postgresql_stop_loses_no_written_entry(database: Ledger, postgres: Any) -> None:
    written = [database.append("approve", model="pets", version="0")]
    stopper = threading.Timer(0.5, postgres.stop)
    stopper.start()

    def write_on() -> None:
        while True:
            written.append(database.append("approve", model="pets", version=str(len(written))))

    with pytest.raises(RegistryError, match=r"the ledger postgresql://postgres@127\.0\.0\.1:\d+/postgres: cannot be"):
        write_on()
    stopper.join()
    with pytest.raises(RegistryError, match=r"cannot be used \(.*\). Fix: start or repair it"):
        database.entries()
    postgres.start()
    entries = database.entries()
    assert entries[: len(written)] == written
    assert len(entries) - len(written) in (0, 1)  # the last one can be written although no answer came
    database.append("approve", model="pets", version="last")
    assert chain_faults(database) == []


def test_the_lock_in_postgresql_outlives_a_limit_of_idle_transactions(database: Ledger, tmp_path: Path) -> None:
    """A transaction holds it, so that it ends with its session also behind a pooler; some servers end idle ones."""
    limited = Ledger(Workspace(tmp_path), f"{database.uri}?options=-c%20idle_in_transaction_session_timeout%3D50")
    engine = create_engine(database.uri, isolation_level="AUTOCOMMIT")
    query = text(
        "SELECT state, clock_timestamp() - state_change > interval '0.5 s' FROM pg_stat_activity JOIN pg_locks "
        "USING (pid) WHERE locktype = 'advisory'"
    )
    with engine.connect() as other:
        with limited.exclusive():
            until(lambda: all(is_later for _, is_later in other.execute(query).all()))
            assert other.execute(query).all() == [("idle in transaction", True)]
        until(lambda: not other.execute(query).all())
    engine.dispose()


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("no address", r"registry\.ledger: found the ledger no address: not the address of a supported database"),
        ("mssql+pyodbc://server/ledger", "not the address of a supported database"),
        ("sqlite:////proc/nowhere/ledger.db", "cannot be used|No such file"),
    ],
)
def test_an_unusable_database_is_an_error(tmp_path: Path, uri: str, message: str) -> None:
    with pytest.raises((RegistryError, OSError), match=message):
        Ledger(Workspace(tmp_path), uri).entries()


def test_a_password_is_not_shown(tmp_path: Path) -> None:
    with pytest.raises(RegistryError) as refusal:
        Ledger(Workspace(tmp_path), "nosuch://ann:secret@db.example/ledger").entries()
    assert "secret" not in str(refusal.value)
