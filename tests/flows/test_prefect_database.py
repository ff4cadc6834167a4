"""Prefect's new SQLite database: a copy of the empty one in the user's cache, by a process as that of its server."""

import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import prefect
import pytest

MAKE = "import sys; from flows.server.database import make_database; make_database(sys.argv[1])"


def execute(path: Path, statement: str) -> list[Any]:
    with closing(sqlite3.connect(path)) as database, database:
        return database.execute(statement).fetchall()


def made(folder: Path) -> set[str]:
    """Make a database in a new folder beside the cache; return the names of its tables."""
    folder.mkdir()
    uri = f"sqlite+aiosqlite:///{folder / 'prefect.db'}"
    own = {"XDG_CACHE_HOME": str(folder.parent / "cache"), "PREFECT_HOME": str(folder)}
    environment = os.environ | own | {"PREFECT_SERVER_DATABASE_CONNECTION_URL": uri}
    subprocess.run([sys.executable, "-c", MAKE, uri], env=environment, check=True, capture_output=True)
    assert not list(folder.glob(".draft-*"))
    return {name for (name,) in execute(folder / "prefect.db", "SELECT name FROM sqlite_master WHERE type = 'table'")}


@pytest.mark.system
def test_a_damaged_cache_reaches_no_project(tmp_path: Path) -> None:
    first = made(tmp_path / "first")
    assert {"alembic_version", "flow_run"} <= first
    cached = tmp_path / "cache" / "ratchet" / "prefect" / f"{prefect.__version__}.db"
    execute(cached, "CREATE TABLE mark (number INTEGER)")
    assert made(tmp_path / "second") == first | {"mark"}, "it is a copy"
    size = execute(cached, "PRAGMA page_size")[0][0]
    page = execute(cached, "SELECT rootpage FROM sqlite_master WHERE name = 'flow_run'")[0][0]
    with cached.open("r+b") as file:
        file.seek((page - 1) * size)
        file.write(b"\xff" * size)
    assert made(tmp_path / "third") == first
    assert execute(cached, "PRAGMA integrity_check") == [("ok",)]
    assert made(tmp_path / "fourth") == first
