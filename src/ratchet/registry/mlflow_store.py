"""The connection to MLflow: address, timeouts, errors and the experiment."""

import errno
import json
import logging
import os
import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, TypeVar

from ratchet import files
from ratchet.empty_database import cached_database, copy_database
from ratchet.errors import RegistryError, TrackingRefused, TrackingUnavailable, first_line, is_momentary
from ratchet.registry.relocation import require_here
from ratchet.settings.model import TrackingSettings
from ratchet.workspace import DISK_FIXES, Workspace

if TYPE_CHECKING:
    from mlflow import MlflowClient

__all__ = [
    "VIEW",
    "VIEW_TAG",
    "active",
    "address",
    "all_pages",
    "artifacts",
    "check_experiment",
    "connect",
    "experiment_id",
    "file_errors",
    "make_database",
    "or_none",
    "reachable",
    "run_file",
    "run_files",
]

NO_RESULT = "of a check at the start, and of records in MLflow"

T = TypeVar("T")
_GONE = (
    "RESOURCE_DOES_NOT_EXIST",
    "INVALID_PARAMETER_VALUE",
    "NOT_FOUND",
)  # MLflow's error codes for a thing that does not exist
_SILENT = (
    "INTERNAL_ERROR",
    "TEMPORARILY_UNAVAILABLE",
    "DEADLINE_EXCEEDED",
    "CANCELLED",
    "UNKNOWN",
    "REQUEST_LIMIT_EXCEEDED",
)  # MLflow's error codes for a server or database that does not answer; the others are answers
_FROM_SERVER = re.compile(r"^(?P<status>\d{3}) (?:Client|Server) Error: .*", re.M)
_FROM_S3 = re.compile(r"^An error occurred \((?P<status>\d{3})?\w*\) when calling .*", re.M)
_DATABASE_ERRORS = (("database or disk is full", errno.ENOSPC), ("readonly database", errno.EACCES))  # of SQLite
_OF_DISKS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)
_LATER = (408, 429)  # HTTP statuses of a client error that a later attempt may not get
_SQLITE = "sqlite:///"
VIEW = "gate"
"""Id of the saved view of the runs page with result and verdict first: `viewStateShareKey` in the page's address.

MLflow has no other way to choose columns: without it, every experiment begins with Source, Models and Dataset.
"""
VIEW_TAG = f"mlflow.sharedViewState.{VIEW}"
_VIEW_COLUMNS = (
    "tags.`ratchet.result`",
    "tags.`ratchet.gate`",
    "attributes.`Dataset`",
    "attributes.`Models`",
    "metrics.`test/accuracy`",
    "metrics.`test/r2`",
    "metrics.`test/micro_f1`",
    "metrics.`test/bits_per_character`",
    "attributes.`Description`",
)


def address(workspace: Workspace, settings: TrackingSettings) -> str:
    """Return the tracking address, which is the same from every folder."""
    return workspace.database(settings.uri)


def artifacts(workspace: Workspace, settings: TrackingSettings) -> str:
    """Return the address of the artifacts of a new experiment; that of a folder is absolute."""
    if settings.artifacts == "auto":
        return (workspace.mlruns / "artifacts").as_uri()
    place = settings.artifacts
    return place if "://" in place else (workspace.project.root / place).as_uri()


def connect(workspace: Workspace, settings: TrackingSettings) -> "MlflowClient":
    """Return a client with short timeouts: the journal keeps what a server does not accept now.

    Raises:
        TrackingUnavailable: MLflow does not support the address, or the database cannot be opened.
        TrackingRefused: the project folder was moved or copied.
    """
    require_here(workspace, settings)
    _shorten_timeouts()
    from mlflow import MlflowClient

    _reduce_logging()
    uri = address(workspace, settings)
    with reachable(uri):
        make_database(uri)
        return MlflowClient(tracking_uri=uri, registry_uri=uri)


def make_database(uri: str) -> None:
    """Create a new SQLite database atomically: MLflow never opens one whose tables were not all created."""
    path = Path(uri.removeprefix(_SQLITE))
    if not uri.startswith(_SQLITE) or path.exists():
        return
    from filelock import FileLock

    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_name(f".{path.name}.lock")):
        if path.exists():  # another process has created it
            return
        draft = path.with_name(f".draft-{path.name}")
        draft.unlink(missing_ok=True)  # of a killed process
        _make_tables(draft)
        os.replace(draft, path)


def _make_tables(draft: Path) -> None:
    """Copy the empty database in the user's cache, which the first project writes: MLflow's migrations take seconds."""
    from mlflow.exceptions import MlflowException
    from mlflow.store.db import utils
    from mlflow.version import VERSION

    database: Any = utils
    empty = cached_database("mlflow", VERSION)
    engine = database.create_sqlalchemy_engine(f"{_SQLITE}{draft}")
    try:
        with suppress(sqlite3.Error, MlflowException):  # there is none, or it is damaged
            copy_database(empty, draft)
            database._verify_schema(engine)
            return
        engine.dispose()
        draft.unlink(missing_ok=True)
        database._initialize_tables(engine)
    finally:
        engine.dispose()
    with suppress(OSError, sqlite3.Error), files.draft_file(empty) as copy:  # uncached, the next project makes its own
        copy_database(draft, copy)


@contextmanager
def active(workspace: Workspace, settings: TrackingSettings) -> Iterator[None]:
    """Set MLflow's global address within the context. Its model functions take no other."""
    import mlflow

    # Setting an address also sets an environment variable. Reading one that is not set returns a default.
    before = {name: os.environ.get(name) for name in ("MLFLOW_TRACKING_URI", "MLFLOW_REGISTRY_URI")}
    uri = address(workspace, settings)
    mlflow.set_tracking_uri(uri)
    mlflow.set_registry_uri(uri)
    try:
        yield
    finally:
        mlflow.set_tracking_uri(before["MLFLOW_TRACKING_URI"])  # type: ignore[arg-type]  # None: as if never set
        mlflow.set_registry_uri(before["MLFLOW_REGISTRY_URI"])  # type: ignore[arg-type]
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)


@contextmanager
def reachable(uri: str) -> Iterator[None]:
    """Turn the errors of a server or database into one: it does not answer, or it answers and refuses.

    Raises:
        TrackingUnavailable: names the address and the fix, and for a server with users, the environment variables.
        TrackingRefused: MLflow answered; the message has its reason.
    """
    from mlflow.exceptions import MlflowException
    from requests import RequestException
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except Exception as error:
        known = isinstance(error, (MlflowException, RequestException, SQLAlchemyError, OSError))
        if not known and not _of_s3(error):
            raise
        if (answer := _answer(error)) is not None:
            raise TrackingRefused(f"tracking.uri: MLflow at {uri} refuses this: {answer}") from error
        problem, fix = (
            _refusal(error)
            or _disk_problem(error)
            or _missing_keys(error)
            or (
                f"does not accept requests ({first_line(error)[:200]})",
                "start the server or correct the address, then `ratchet sync`",
            )
        )
        raise TrackingUnavailable(
            f"tracking.uri: MLflow at {uri} {problem}. Nothing is lost: it waits in mlruns/journal. Fix: {fix}"
        ) from error


def _answer(error: Exception) -> str | None:
    """Return MLflow's reason, and the fix, if it has answered and refused; None if it is silent or asks for a login."""
    from mlflow.exceptions import MlflowException

    if status := _status(error):  # of the server's files, or of S3
        has_answered = 400 <= status < 500 and status not in _LATER
    else:
        has_answered = isinstance(error, MlflowException) and error.error_code not in _SILENT
    if not has_answered or _refusal(error) is not None:
        return None
    reason, fix = _reason(error)[:300].rstrip("."), "correct the setting or name in this message"
    if "deleted" in reason:
        noun = "experiments" if "experiment" in reason.lower() else "runs"
        fix = f"`mlflow {noun} restore` (see its --help) with MLFLOW_TRACKING_URI set to that address"
    return f"{reason}. What was recorded waits in mlruns/journal. Fix: {fix}, then run the same command again"


def _refusal(error: Exception) -> tuple[str, str] | None:
    """Return the problem and the fix if a server with users refuses this one; None for another error."""
    status = 0 if _FROM_S3.search(str(error)) else _status(error)  # S3 has keys, not users
    code = status or getattr(error, "error_code", None)
    user = os.environ.get("MLFLOW_TRACKING_USERNAME")
    names = "MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD"
    if code in ("UNAUTHENTICATED", "CUSTOMER_UNAUTHORIZED", 401):
        if not user or not os.environ.get("MLFLOW_TRACKING_PASSWORD"):
            return f"asks for a login, and {names} are not both set", "export them, then run the same command again"
        return f"does not know {user} with this password", f"export the right {names}, then run the same command again"
    if code in ("PERMISSION_DENIED", 403):
        who = f"{user} (MLFLOW_TRACKING_USERNAME)" if user else "a user without a name"
        fix = "have its administrator give the permission EDIT of the experiment and of the registered model"
        return f"does not allow this to {who}", f"{fix}, then run the same command again"
    return None


def _disk_problem(error: Exception) -> tuple[str, str] | None:
    """Return the problem and the fix if a disk of this machine refused a file, or SQLite its database."""
    number = next((number for text, number in _DATABASE_ERRORS if text in str(error)), None)
    path = "its database"
    if number is None and isinstance(error, OSError):
        path = error.filename2 or error.filename  # of a copy, of another file; a connection has none
        number = error.errno if path or error.errno in _OF_DISKS else None
    if number not in DISK_FIXES:
        return None
    return f"cannot write {path or 'a file'} ({os.strerror(number)})", f"{DISK_FIXES[number]}. Then `ratchet sync`"


def _missing_keys(error: Exception) -> tuple[str, str] | None:
    """Return the problem and the fix if this machine has no keys for S3."""
    if not (_of_s3(error) and "credentials" in str(error)):
        return None
    names = "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
    return f"has its files in S3 ({first_line(error)})", f"export {names}, then run the same command again"


def _status(error: Exception) -> int:
    """Return the HTTP status of an answer to a request for a file; 0: there is no answer."""
    answer = getattr(error, "response", None)
    if answer is None and _of_s3(error) and error.__context__:  # an upload's error has S3's as its context
        answer = getattr(error.__context__, "response", None)
    if isinstance(answer, dict):  # of S3
        return int(answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    if answer is not None:
        return int(getattr(answer, "status_code", 0))
    wrapped = _FROM_SERVER.search(str(error)) or _FROM_S3.search(
        str(error)
    )  # MLflow keeps the text of a failed download
    return int(wrapped["status"] or 0) if wrapped else 0


def _reason(error: Exception) -> str:
    """Return the first line of an error, or that of the failed download in it."""
    wrapped = _FROM_SERVER.search(str(error)) or _FROM_S3.search(str(error))
    return wrapped[0] if wrapped else first_line(error)


def _of_s3(error: Exception) -> bool:
    """Return whether it is an error of S3's client, without importing that."""
    return type(error).__module__.partition(".")[0] in ("boto3", "botocore")


@contextmanager
def file_errors(name: str, uri: str, fix: str = "restore them") -> Iterator[None]:
    """Distinguish errors while MLflow's files are read: they are damaged or gone, or the server does not answer.

    Raises:
        RegistryError: the files of `name` cannot be read.
        TrackingUnavailable: the server does not answer.
    """
    try:
        yield
    except Exception as error:
        gone = _gone(error)
        if gone is None:
            raise
        if not gone:
            with reachable(uri):
                raise
        raise RegistryError(f"{name}: its files cannot be read ({_reason(error)}). Fix: {fix}") from error


def _gone(error: Exception) -> bool | None:
    """Return True if the file does not exist, False if the server does not answer, None for any other error."""
    from mlflow.exceptions import MlflowException
    from requests import RequestException

    if isinstance(error, MlflowException):
        return error.error_code in _GONE or _status(error) == 404
    if _of_s3(error) or isinstance(error, RequestException):
        return _status(error) == 404
    return not is_momentary(error) if isinstance(error, OSError) else None


def run_files(client: "MlflowClient", run_id: str) -> Any:  # its methods have no types
    """Return MLflow's store of a run's files. The download by a run's id calls every failure a missing file.

    Raises:
        MlflowException: there is no such run, or MLflow does not answer.
    """
    from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

    return get_artifact_repository(client.get_run(run_id).info.artifact_uri, tracking_uri=client.tracking_uri)


def run_file(client: "MlflowClient", run_id: str, path: str, into: Path) -> Path | None:
    """Copy a file of a run into a folder; return None if there is no such run or file. To be called in `reachable`."""
    store = or_none(partial(run_files, client, run_id))
    folder = str(PurePosixPath(path).parent)
    if store is None or path not in {file.path for file in store.list_artifacts(folder)}:
        return None
    return Path(store.download_artifacts(path, str(into)))


def or_none(query: Callable[[], T]) -> T | None:
    """Return the result of a query; None if MLflow has no such thing."""
    from mlflow.exceptions import MlflowException

    try:
        return query()
    except MlflowException as error:
        if error.error_code not in _GONE:
            raise
        return None


def all_pages(search: Callable[..., Any]) -> list[Any]:
    """Return all results of one of the client's searches."""
    page = search()
    results = list(page)
    while page.token:
        page = search(page_token=page.token)
        results += page
    return results


def experiment_id(client: "MlflowClient", workspace: Workspace, settings: TrackingSettings) -> str:
    """Return the experiment's id; create it if it does not exist.

    A server decides where its files go, unless tracking.artifacts does.
    """
    from mlflow.exceptions import MlflowException

    experiment = client.get_experiment_by_name(settings.experiment)
    if experiment is not None:
        _refuse_deleted_experiment(experiment, address(workspace, settings))
        if VIEW_TAG not in experiment.tags:
            client.set_experiment_tag(experiment.experiment_id, VIEW_TAG, _view())
        return str(experiment.experiment_id)
    is_server = settings.uri.startswith(("http://", "https://"))
    place = None if is_server and settings.artifacts == "auto" else artifacts(workspace, settings)
    try:
        return str(client.create_experiment(settings.experiment, place, tags={VIEW_TAG: _view()}))
    except MlflowException:
        experiment = client.get_experiment_by_name(settings.experiment)  # another run has created it
        if experiment is None:
            raise
        return str(experiment.experiment_id)


def check_experiment(workspace: Workspace, settings: TrackingSettings) -> None:
    """Check that the experiment takes new runs. Creates nothing.

    Raises:
        TrackingRefused: it is deleted.
        TrackingUnavailable: MLflow does not answer.
    """
    uri = address(workspace, settings)
    if uri.startswith(_SQLITE) and not Path(uri.removeprefix(_SQLITE)).exists():
        return  # the first run creates it
    client = connect(workspace, settings)
    with reachable(uri):
        if (experiment := client.get_experiment_by_name(settings.experiment)) is not None:
            _refuse_deleted_experiment(experiment, uri)


def _refuse_deleted_experiment(experiment: Any, uri: str) -> None:
    if experiment.lifecycle_stage != "deleted":
        return
    raise TrackingRefused(
        f"tracking.experiment: {experiment.name} is deleted in MLflow at {uri}. Fix: `MLFLOW_TRACKING_URI={uri} mlflow "
        f"experiments restore --experiment-id {experiment.experiment_id}`, or set tracking.experiment to another name"
    )


def _view() -> str:
    """Return a saved view of MLflow's runs page in the page's own format."""
    state = {"orderByKey": "attributes.`Created`", "orderByAsc": False, "selectedColumns": _VIEW_COLUMNS}
    return json.dumps({"name": "Results", "createdAt": 0, "updatedAt": 0, "state": json.dumps(state)})


def _shorten_timeouts() -> None:
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
    os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")
    os.environ.setdefault("GIT_PYTHON_REFRESH", "quiet")


def _reduce_logging() -> None:
    """Hide messages about tables that are created. MLflow sets its loggers at import, so this comes after."""
    for name in ("mlflow", "alembic"):
        logging.getLogger(name).setLevel(logging.WARNING)
