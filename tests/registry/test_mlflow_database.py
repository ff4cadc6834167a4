"""MLflow's new SQLite database: a copy of the empty one in the user's cache."""

import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from ratchet.registry.mlflow_store import connect, make_database
from ratchet.settings.model import TrackingSettings
from ratchet.workspace import Workspace

MARK = "CREATE TABLE mark (number INTEGER)"


def execute(path: Path, statement: str) -> list[Any]:
    with closing(sqlite3.connect(path)) as database, database:
        return database.execute(statement).fetchall()


def content(path: Path) -> set[Any]:
    """Names of tables and the version of their schema."""
    names = "SELECT name FROM sqlite_master WHERE type = 'table'"
    return set(execute(path, f"{names} UNION ALL SELECT version_num FROM alembic_version"))


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database that was made when there was none in the cache, which is beside it."""
    path = tmp_path_factory.mktemp("first") / "first.db"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(path.parent / "cache"))
        make_database(f"sqlite:///{path}")
    return path


@pytest.fixture
def cached(first: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The database in a cache of this test's."""
    cache = shutil.copytree(first.parent / "cache", tmp_path / "cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    [path] = (cache / "ratchet" / "mlflow").iterdir()
    return path


def test_a_second_database_is_a_copy_of_the_first(first: Path, cached: Path, tmp_path: Path) -> None:
    """A table that is added to the cached database shows up in the copy. MLflow works with the copy."""
    assert content(cached) == content(first)
    execute(cached, MARK)
    workspace = Workspace((tmp_path / "second").resolve())
    assert [each.name for each in connect(workspace, TrackingSettings()).search_experiments()] == ["Default"]
    assert content(workspace.mlruns / "mlflow.db") == content(first) | {("mark",)}
    assert execute(cached, "SELECT * FROM experiments") == []


def overwrite(path: Path, table: str) -> None:
    """Fill the first page of a table with bytes that are none of SQLite's."""
    size = execute(path, "PRAGMA page_size")[0][0]
    page = execute(path, f"SELECT rootpage FROM sqlite_master WHERE name = '{table}'")[0][0]
    with path.open("r+b") as file:
        file.seek((page - 1) * size)
        file.write(b"\xff" * size)


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: overwrite(path, "alembic_version"),
        lambda path: overwrite(path, "metrics"),
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(path.read_bytes()[:100_000]),
        lambda path: execute(path, "UPDATE alembic_version SET version_num = '1'"),
    ],
    ids=["no version", "a table", "empty", "cut", "another schema"],
)
def test_a_damaged_cache_is_replaced(
    damage: Callable[[Path], object], first: Path, cached: Path, tmp_path: Path
) -> None:
    damage(cached)
    make_database(f"sqlite:///{tmp_path}/second.db")
    assert content(tmp_path / "second.db") == content(cached) == content(first)
    assert list(cached.parent.iterdir()) == [cached]
    assert sorted(path.suffix for path in tmp_path.iterdir() if path.is_file()) == [".db", ".lock"]


def test_without_a_cache_the_database_is_made(first: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cache").write_text("a file, in which there can be no folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    make_database(f"sqlite:///{tmp_path}/alone.db")
    assert content(tmp_path / "alone.db") == content(first)
