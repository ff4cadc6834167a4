"""The MLflow server or database: its address, its experiment, and how long we wait for it."""

import json
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ratchet.errors import RegistryError, TrackingUnavailable, first_line
from ratchet.settings.model import TrackingSettings
from ratchet.workspace import Workspace

if TYPE_CHECKING:
    from mlflow import MlflowClient

__all__ = [
    "GONE",
    "VIEW",
    "active",
    "address",
    "all_pages",
    "artifacts",
    "connect",
    "experiment_id",
    "files_of",
    "make_database",
    "or_none",
    "reachable",
]

T = TypeVar("T")
GONE = ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE", "NOT_FOUND")  # what MLflow says of what is not there
_SQLITE = "sqlite:///"
VIEW = "accuracy"
"""Id of the saved view of the runs page that shows accuracy first: `viewStateShareKey` in the page's address."""
_VIEW_TAG = f"mlflow.sharedViewState.{VIEW}"
_VIEW_METRICS = ("test/accuracy", "test/log_loss", "validation/accuracy")


def address(workspace: Workspace, settings: TrackingSettings) -> str:
    """The tracking address, from every folder the same."""
    return workspace.database(settings.uri)


def artifacts(workspace: Workspace, settings: TrackingSettings) -> str:
    """Where the files of a new experiment go, as an address: a folder's is absolute."""
    if settings.artifacts == "auto":
        return (workspace.mlruns / "artifacts").as_uri()
    place = settings.artifacts
    return place if "://" in place else (workspace.project.root / place).as_uri()


def connect(workspace: Workspace, settings: TrackingSettings) -> "MlflowClient":
    """A client that gives up in seconds: the journal keeps what a server that is away does not take.

    Raises:
        TrackingAway: the address is none that MLflow knows, or the database cannot be opened.
    """
    _be_brief()
    from mlflow import MlflowClient

    _be_quiet()
    uri = address(workspace, settings)
    with reachable(uri):
        make_database(uri)
        return MlflowClient(tracking_uri=uri, registry_uri=uri)


def make_database(uri: str) -> None:
    """Let a new SQLite database appear whole: one cut off while its tables were made, MLflow refuses for ever."""
    path = Path(uri.removeprefix(_SQLITE))
    if not uri.startswith(_SQLITE) or path.exists():
        return
    from filelock import FileLock
    from mlflow.store.db import utils

    database: Any = utils
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_name(f".{path.name}.lock")):
        if path.exists():  # another process was faster
            return
        draft = path.with_name(f".draft-{path.name}")
        draft.unlink(missing_ok=True)  # a killed one's
        engine = database.create_sqlalchemy_engine(f"{_SQLITE}{draft}")
        try:
            database._initialize_tables(engine)
        finally:
            engine.dispose()
        os.replace(draft, path)


@contextmanager
def active(workspace: Workspace, settings: TrackingSettings) -> Iterator[None]:
    """MLflow's own module-level address set to ours inside: its model functions know no other way."""
    import mlflow

    # MLflow notes an address that was set in the environment, too, and asking for one that was not gives a default.
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
    """MLflow's many ways of not answering, as one error.

    Raises:
        TrackingAway: naming the address and the way out, and of a server that asks for a password, the variables.
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
        what, way_out = _barred(error) or (
            f"does not take what it is sent ({first_line(error)[:200]})",
            "start the server or mend the address, then `ratchet sync`",
        )
        raise TrackingUnavailable(
            f"tracking.uri: MLflow at {uri} {what}: nothing is lost, it waits in mlruns/journal; {way_out}"
        ) from error


def _barred(error: Exception) -> tuple[str, str] | None:
    """What a server says that asks who we are, and the way out; None where the error is something else."""
    answer = getattr(error, "response", None)  # of an error of requests: what the server's files are read with
    code = getattr(error, "error_code", None) or getattr(answer, "status_code", None)
    user = os.environ.get("MLFLOW_TRACKING_USERNAME")
    names = "MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD"
    if code in ("UNAUTHENTICATED", "CUSTOMER_UNAUTHORIZED", 401):
        if not user or not os.environ.get("MLFLOW_TRACKING_PASSWORD"):
            return f"asks who you are, and {names} are not both set", "export them, then run the same again"
        return f"does not know {user} with this password", f"export the right {names}, then run the same again"
    if code in ("PERMISSION_DENIED", 403):
        who = f"{user} (MLFLOW_TRACKING_USERNAME)" if user else "one who gives no name"
        way_out = "have its administrator give the permission, EDIT of the experiment and of the registered model"
        return f"does not permit this to {who}", f"{way_out}, then run the same again"
    return None


def _of_s3(error: Exception) -> bool:
    """Is it an error of S3's client? That is not imported for the question."""
    return type(error).__module__.partition(".")[0] in ("boto3", "botocore")


@contextmanager
def files_of(thing: str, uri: str, way_out: str = "restore them") -> Iterator[None]:
    """The reading of files that MLflow keeps, told apart: they are damaged or gone, or the server does not answer.

    Raises:
        RegistryError: naming `thing`, as what cannot be read.
        TrackingAway: as `reachable` does.
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
        raise RegistryError(f"{thing}: its files cannot be read ({error}): {way_out}") from error


def _gone(error: Exception) -> bool | None:
    """Does it say that there is no such file, or that nobody answers? None: it is no error of MLflow's or a store's."""
    from mlflow.exceptions import MlflowException
    from requests import RequestException

    if isinstance(error, MlflowException):
        return error.error_code in GONE
    if _of_s3(error):
        return getattr(error, "response", {}).get("Error", {}).get("Code") in ("404", "NoSuchKey", "NoSuchBucket")
    return not isinstance(error, RequestException) if isinstance(error, OSError) else None


def or_none(ask: Callable[[], T]) -> T | None:
    """What MLflow answers; None where it says that there is no such thing."""
    from mlflow.exceptions import MlflowException

    try:
        return ask()
    except MlflowException as error:
        if error.error_code not in GONE:
            raise
        return None


def all_pages(search: Callable[..., Any]) -> list[Any]:
    """Everything that one of the client's searches finds, page after page."""
    page = search()
    found = list(page)
    while page.token:
        page = search(page_token=page.token)
        found += page
    return found


def experiment_id(client: "MlflowClient", workspace: Workspace, settings: TrackingSettings) -> str:
    """The experiment's id; if missing it is made. Where its files go, a server says, unless tracking.artifacts does."""
    from mlflow.exceptions import MlflowException

    found = client.get_experiment_by_name(settings.experiment)
    if found is not None:
        if _VIEW_TAG not in found.tags:
            client.set_experiment_tag(found.experiment_id, _VIEW_TAG, _view())
        return str(found.experiment_id)
    is_server = settings.uri.startswith(("http://", "https://"))
    place = None if is_server and settings.artifacts == "auto" else artifacts(workspace, settings)
    try:
        return str(client.create_experiment(settings.experiment, place, tags={_VIEW_TAG: _view()}))
    except MlflowException:
        found = client.get_experiment_by_name(settings.experiment)  # another run was faster
        if found is None:
            raise
        return str(found.experiment_id)


def _view() -> str:
    """A saved view of MLflow's runs page, as the page itself writes one."""
    columns = [f"metrics.`{name}`" for name in _VIEW_METRICS]
    state = {"orderByKey": "attributes.`Created`", "orderByAsc": False, "selectedColumns": columns}
    return json.dumps({"name": VIEW.capitalize(), "createdAt": 0, "updatedAt": 0, "state": json.dumps(state)})


def _be_brief() -> None:
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
    os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")
    os.environ.setdefault("GIT_PYTHON_REFRESH", "quiet")


def _be_quiet() -> None:
    """MLflow sets its loggers as it is imported, so this comes after."""
    for name in ("mlflow", "alembic"):  # the making of tables is no news
        logging.getLogger(name).setLevel(logging.WARNING)
