"""A new SQLite database of Prefect's server. Its migrations take seconds, and a copy of an empty database none."""

import asyncio
import os
import shutil
import sqlite3
from contextlib import closing, suppress
from pathlib import Path

import prefect
from filelock import FileLock

from ratchet import files

__all__ = ["make_database"]

_SQLITE = "sqlite+aiosqlite:///"


def make_database(uri: str) -> None:
    """Create the database as a copy of the empty one in the user's cache, which the first project writes."""
    path = Path(uri.removeprefix(_SQLITE))
    if not uri.startswith(_SQLITE) or path.exists():
        return
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "ratchet", "prefect")
    empty = cache / f"{prefect.__version__}.db"
    if empty.exists():
        with FileLock(path.with_name(f".{path.name}.lock")):
            if not path.exists():  # else another server was faster, and may have written to its copy
                with files.draft_file(path) as draft:
                    shutil.copyfile(empty, draft)
        return
    from prefect.server.database import provide_database_interface

    asyncio.run(provide_database_interface().create_db())
    with suppress(OSError, sqlite3.Error), closing(sqlite3.connect(path)) as database, files.draft_file(empty) as draft:
        database.execute("VACUUM INTO ?", [str(draft)])  # without the cache, the next project takes its seconds
