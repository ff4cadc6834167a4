"""A new SQLite database of Prefect's server. Its migrations take seconds, and a copy of an empty database none."""

import asyncio
import sqlite3
from contextlib import closing, suppress
from pathlib import Path

import prefect
from filelock import FileLock

from ratchet import files
from ratchet.empty_database import cached_database, copy_database

__all__ = ["make_database"]

_SQLITE = "sqlite+aiosqlite:///"


def make_database(uri: str) -> None:
    """Create the database as a copy of the empty one in the user's cache, which the first project writes."""
    path = Path(uri.removeprefix(_SQLITE))
    if not uri.startswith(_SQLITE) or path.exists():
        return
    empty = cached_database("prefect", prefect.__version__)
    with FileLock(path.with_name(f".{path.name}.lock")):
        if path.exists():  # another server was faster, and may have written to it
            return
        with suppress(sqlite3.Error), files.draft_file(path) as draft:  # there is none, or it is damaged
            copy_database(empty, draft)
            return
        from prefect.server.database import provide_database_interface

        asyncio.run(provide_database_interface().create_db())
        # Uncached, the next project takes its seconds.
        with (
            suppress(OSError, sqlite3.Error),
            closing(sqlite3.connect(path)) as database,
            files.draft_file(empty) as draft,
        ):
            database.execute("VACUUM INTO ?", [str(draft)])
