"""The ledger: it grows by whole entries whoever writes, and whatever is done to it behind its back is found."""

import multiprocessing
import re
import sqlite3
from pathlib import Path

import pytest

from ratchet.errors import RegistryError
from ratchet.registry.ledger import FIRST, Ledger, faults
from ratchet.workspace import Workspace


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(Workspace(tmp_path), "sqlite:///mlruns/ledger.db")


@pytest.fixture
def filled(ledger: Ledger) -> Ledger:
    for number in range(1, 8):
        ledger.append("promote", model="pets", version=str(number), who="ann", why=f"reason {number}", model_sha="ab")
    return ledger


def behind_its_back(tmp_path: Path, *statements: str) -> None:
    """Change the table as somebody would who knows how."""
    with sqlite3.connect(tmp_path / "mlruns" / "ledger.db") as connection:
        connection.execute("DROP TRIGGER ledger_no_update")
        connection.execute("DROP TRIGGER ledger_no_delete")
        for statement in statements:
            connection.execute(statement)
    connection.close()


def test_entries_come_back_as_they_were_written_and_follow_one_another(ledger: Ledger) -> None:
    first = ledger.append("register", model="pets", version="1", who="ann", why="ünïcode", digests={"b": 1, "a": [2]})
    second = ledger.append("promote", model="cars", version=None)
    assert ledger.entries() == [first, second]
    assert (first.number, first.before, second.before) == (1, FIRST, first.seal)
    assert (first.who, first.why, first.content) == ("ann", "ünïcode", {"digests": {"b": 1, "a": [2]}})
    assert second.who
    assert ledger.entries(model="cars") == [second]
    assert faults(ledger.entries()) == []


def test_an_entry_can_be_neither_changed_nor_removed(filled: Ledger, tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "mlruns" / "ledger.db") as connection:
        for statement in ("UPDATE ledger SET who = 'bob'", "DELETE FROM ledger WHERE number = 7"):
            with pytest.raises(sqlite3.IntegrityError, match="the ledger only grows"):
                connection.execute(statement)
    connection.close()
    assert len(filled.entries()) == 7


@pytest.mark.parametrize(
    ("statements", "told"),
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
def test_what_is_done_behind_its_back_is_found_and_named(
    filled: Ledger, tmp_path: Path, statements: list[str], told: list[str]
) -> None:
    behind_its_back(tmp_path, *statements)
    found = faults(filled.entries())
    assert len(found) == len(told)
    assert all(re.search(words, one) for words, one in zip(told, found, strict=True))


def test_a_rewritten_entry_with_a_seal_of_its_own_breaks_the_link_to_the_next(filled: Ledger, tmp_path: Path) -> None:
    from dataclasses import replace

    forged = replace(filled.entries()[2], who="bob")
    behind_its_back(tmp_path, f"UPDATE ledger SET who = 'bob', seal = '{forged.sealed()}' WHERE number = 3")
    assert faults(filled.entries()) == ["ledger entry 4 does not follow the one before it: one of the two was replaced"]


def _write(root: str, name: str, count: int) -> None:
    ledger = Ledger(Workspace(Path(root)), "sqlite:///mlruns/ledger.db")
    for number in range(count):
        ledger.append("approve", model=name, version=str(number), who=name)


def test_concurrent_writers_lose_nothing_and_break_nothing(ledger: Ledger, tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_write, args=(str(tmp_path), f"writer {n}", 25)) for n in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    assert faults(ledger.entries()) == []
    for number in range(4):
        assert [entry.version for entry in ledger.entries(model=f"writer {number}")] == [str(n) for n in range(25)]


@pytest.mark.parametrize(
    ("uri", "told"),
    [
        ("no address", r"registry\.ledger: found the ledger no address: no address of a database"),
        ("sqlite:////proc/nowhere/ledger.db", "cannot be used|No such file"),
    ],
)
def test_a_database_that_cannot_be_had_is_told(tmp_path: Path, uri: str, told: str) -> None:
    with pytest.raises((RegistryError, OSError), match=told):
        Ledger(Workspace(tmp_path), uri).entries()


def test_a_password_is_not_shown(tmp_path: Path) -> None:
    with pytest.raises(RegistryError) as refusal:
        Ledger(Workspace(tmp_path), "nosuch://ann:secret@db.example/ledger").entries()
    assert "secret" not in str(refusal.value)
