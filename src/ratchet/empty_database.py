"""Empty SQLite databases of servers in the user's cache. Migrations take seconds, and a copy none."""

import os
import sqlite3
from contextlib import closing
from pathlib import Path

__all__ = ["cached_database", "copy_database"]

NO_RESULT = "of a server's database, before it has any rows"


def cached_database(program: str, version: str) -> Path:
    """Return the path of the empty database of a program, which the first project of a user writes."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "ratchet", program) / f"{version}.db"


def copy_database(source: Path, to: Path) -> None:
    """Copy by SQLite, which has written the copy to the disk when it returns.

    Raises:
        sqlite3.Error: there is no such file, it is damaged or has no tables.
    """
    readable = sqlite3.connect(f"{source.absolute().as_uri()}?mode=ro", uri=True)
    with closing(readable), closing(sqlite3.connect(to)) as copy:
        readable.backup(copy)  # also of damaged pages
        [(fault,)] = copy.execute("PRAGMA integrity_check(1)")
        [(tables,)] = copy.execute("SELECT count(*) FROM sqlite_master")
    if fault != "ok" or not tables:
        raise sqlite3.DatabaseError(fault)
