"""The absolute paths in MLflow's database: they must follow a project folder that was moved or copied.

MLflow stores where the files of each experiment, run, model and version are. After a move these paths lead nowhere; in
a copy they lead to the files of the original. Neither may be read or written without a word.
"""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit
from urllib.request import url2pathname

from ratchet.errors import RegistryError, TrackingRefused, TrackingUnavailable, first_line
from ratchet.settings.model import TrackingSettings
from ratchet.workspace import Workspace

if TYPE_CHECKING:
    from sqlalchemy import Connection

__all__ = ["former_roots", "local_path", "moved_fault", "relocate", "require_here"]

NO_RESULT = "of a check at the start, and of the places of files in MLflow"

_SQLITE = "sqlite:///"
_AUTO = "mlruns/artifacts"  # tracking.artifacts=auto
_COLUMNS = (
    ("experiments", "artifact_location"),
    ("runs", "artifact_uri"),
    ("logged_models", "artifact_location"),
    ("model_versions", "source"),
    ("model_versions", "storage_location"),
)
"""Tables and columns of MLflow's database that have addresses of files."""


def local_path(place: str) -> Path | None:
    """Return the path of an address of files; None if they are not on this machine."""
    if place.startswith("file:"):
        return Path(url2pathname(urlsplit(place).path))
    return Path(place) if place.startswith("/") else None


def former_roots(workspace: Workspace, tracking: TrackingSettings) -> list[Path]:
    """Return the other folders that the project had when its own database recorded its experiments."""
    root, database = workspace.mlruns.parent, _own_database(workspace, tracking)
    if database is None:
        return []
    try:
        with closing(sqlite3.connect(f"{database.as_uri()}?mode=ro", uri=True)) as connection:
            places = connection.execute("select artifact_location from experiments").fetchall()
    except sqlite3.Error:  # MLflow itself says what is wrong with it
        return []
    paths = [path for (place,) in places if (path := local_path(place or "")) is not None]
    roots = {
        Path(*path.parts[: -len(Path(name).parts)])
        for path in paths
        for name in (_AUTO, tracking.artifacts)
        if not ("://" in name or Path(name).is_absolute()) and path.parts[-len(Path(name).parts) :] == Path(name).parts
    }
    return sorted(former for former in roots if former.resolve() != root.resolve())


def moved_fault(workspace: Workspace, tracking: TrackingSettings) -> str | None:
    """Describe a project folder that was moved or copied since MLflow recorded its files; None: it was not."""
    for former in former_roots(workspace, tracking):
        state = "still exists, and is not used" if os.path.exists(former) else "does not exist"  # or is another's
        return (
            f"the files of MLflow's runs and models are recorded at {former}, which {state}; this project is at "
            f"{workspace.project.root}. Fix: if it was moved or copied from there, `ratchet relocate`"
        )
    return None


def require_here(workspace: Workspace, tracking: TrackingSettings) -> None:
    """Check that MLflow's files are recorded in this project folder, if its database is there.

    Raises:
        TrackingRefused: they are in the folder that it was moved or copied from.
    """
    if fault := moved_fault(workspace, tracking):
        raise TrackingRefused(f"tracking.uri: {fault}")


def relocate(workspace: Workspace, tracking: TrackingSettings, former: Path | None = None) -> Iterator[str]:
    """Make MLflow's database follow the project folder, all paths or none. Yield a line about each former folder.

    Args:
        former: the folder that the project had; None: those that its own database names.

    Raises:
        RegistryError: MLflow is a server, or records nothing in `former`.
        TrackingUnavailable: the database cannot be read or written.
    """
    from sqlalchemy import NullPool, create_engine, make_url
    from sqlalchemy.exc import SQLAlchemyError

    uri, root = workspace.database(tracking.uri), workspace.project.root
    if uri.startswith(("http://", "https://")):
        raise RegistryError(
            f"tracking.uri: {uri} is a server. Allowed: a database. Fix: run `ratchet relocate` in the project folder "
            "whose database that server uses"
        )
    roots = [former] if former else former_roots(workspace, tracking)
    if not roots or (uri.startswith(_SQLITE) and not Path(make_url(uri).database or "").exists()):
        return  # a connection would create the database
    try:
        with create_engine(uri, poolclass=NullPool).begin() as connection:
            for folder in roots:
                if moved := _move(connection, folder, root):
                    yield f"{moved:,} paths in {folder} are now in {root}"
                elif places := _places_outside(connection, root):
                    raise RegistryError(
                        f"{folder}: MLflow has no files recorded in this folder, but in {', '.join(places)}. Fix: name "
                        "the folder that the project had, `ratchet relocate FOLDER`"
                    )
    except (SQLAlchemyError, ImportError) as error:  # ImportError: of the database's driver
        raise TrackingUnavailable(
            f"tracking.uri: {uri} cannot be read or written ({first_line(error)[:200]}). Nothing was changed. Fix: "
            "start the database or correct the address, then `ratchet relocate` again"
        ) from error


def _move(connection: "Connection", former: Path, root: Path) -> int:
    """Make the paths in `former` those in `root`. Return how many they are."""
    from sqlalchemy import inspect, text

    tables, changed = set(inspect(connection).get_table_names()), 0
    for table, column in _COLUMNS:
        if table not in tables:  # of an older MLflow
            continue
        for place in connection.execute(text(f"select distinct {column} from {table}")).scalars().all():
            if moved := _moved(place or "", former, root):
                update = text(f"update {table} set {column} = :moved where {column} = :place")
                changed += connection.execute(update, {"moved": moved, "place": place}).rowcount
    return changed


def _places_outside(connection: "Connection", root: Path) -> list[str]:
    """Return up to three places of experiments' files that are not in `root`."""
    from sqlalchemy import text

    places = connection.execute(text("select distinct artifact_location from experiments")).scalars().all()
    paths = [path for place in places if (path := local_path(place or "")) and not path.is_relative_to(root)]
    return sorted(map(str, paths))[:3]


def _own_database(workspace: Workspace, tracking: TrackingSettings) -> Path | None:
    """Return MLflow's database if it is a file in the project folder. Projects can share any other."""
    uri = workspace.database(tracking.uri)
    path = Path(uri.removeprefix(_SQLITE))
    is_own = uri.startswith(_SQLITE) and path.is_file() and path.is_relative_to(workspace.project.root)
    return path if is_own else None


def _moved(place: str, former: Path, root: Path) -> str | None:
    """Return an address in `former` as one in `root`; None for any other, also one that has followed already."""
    path = local_path(place)
    if path is None or not path.is_relative_to(former):
        return None
    if root.is_relative_to(former) and path.is_relative_to(root):
        return None
    moved = root / path.relative_to(former)
    return moved.as_uri() if place.startswith("file:") else str(moved)
