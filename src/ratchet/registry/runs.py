"""The MLflow run of a training. Values are written to the journal at once, and another thread sends them."""

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from itertools import accumulate, groupby
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from filelock import FileLock, Timeout

from ratchet.cost import TrainingCost, add
from ratchet.errors import RegistryError, TrackingRefused, TrackingUnavailable, TrainingBusy
from ratchet.registry.access import user
from ratchet.registry.journal import STATE, Journal, JournalEntry
from ratchet.registry.mlflow_store import address, connect, experiment_id, or_none, reachable
from ratchet.registry.trial_runs import JOURNAL, REPLACED_TAG, UID_TAG, delete_replaced, trial_journals, trial_records
from ratchet.settings.model import Params
from ratchet.workspace import Workspace

if TYPE_CHECKING:
    from mlflow import MlflowClient

__all__ = ["NAME", "SENDER", "Run", "send_all", "total_cost"]

NAME = "mlflow.runName"
"""The tag that MLflow shows as a run's name."""
SENDER = "mlflow-sender"
"""Name of the thread that sends. It can outlive a run that MLflow is slow to take."""
_MODEL_WIDTH = 14  # characters of the model's name in the run's name: MLflow's table shows 21
_LOCK = "training.lock"  # in the journal's folder
_SENDING = "sending.lock"  # in the journal's folder
_DOUBLE = ("IntegrityError", "UniqueViolation", "/gkpj")  # names of SQLite and MySQL, of PostgreSQL, and of SQLAlchemy
_SENDING_WAIT = 60.0  # seconds without progress of another process, or thread, that sends the journal
_BATCH = 900  # metrics after which is recorded what was sent
_REQUEST = 1_000  # metrics that MLflow accepts
_EXIT_WAIT = 30.0  # seconds that leaving the context waits for MLflow
_EXIT_WAIT_STOPPED = 10.0  # the same for a run that ends early: a cancelled one is killed after 30 s in all

log = logging.getLogger(__name__)


class Run:
    """A run: what is logged is on disk at once and in MLflow soon.

    As a context it excludes other processes from the same training and sends in the background. Leaving waits a limited
    time. If MLflow does not have everything by then, `away` says why.
    """

    def __init__(self, workspace: Workspace, params: Params, key: str, *, folder: Path | None = None) -> None:
        """Open the journal in `folder`, or in mlruns/journal/KEY.

        What is logged is dropped if the run is a registered version: the ledger has its values.
        """
        self.workspace, self.params, self.key = workspace, params, key
        folder = folder or workspace.mlruns / "journal" / key
        self.journal = Journal(folder, store=params.tracking.uri)
        self.is_closed = self.journal.sealed is not None
        self.away: str | None = None
        self.may_send: Callable[[], bool] = lambda: True  # False: another process records this training by now
        self.is_replaced: Callable[[], bool] = lambda: False  # whether that one does so in a copy of the journal
        self._pending = threading.Event()
        self._leaving = threading.Event()
        self._thread = threading.Thread(target=self._send_on, name=SENDER, daemon=True)
        self._training_lock = FileLock(folder / _LOCK)

    def __enter__(self) -> "Run":
        """Begin to send."""
        try:
            self._training_lock.acquire(timeout=1)  # `ratchet sync` holds it for a moment, to look
        except Timeout:
            self.journal.close()
            raise TrainingBusy(
                f"training {self.key} is already running in another folder of this project. Fix: wait for it to "
                "finish, then run again; finished stages are reused"
            ) from None
        self.journal.clear_drafts()
        try:
            _refuse_deleted_run(self.journal, self.workspace, self.params)
        except TrackingRefused:
            self.journal.close()
            self._training_lock.release()
            raise
        except TrackingUnavailable as error:  # the journal keeps what a silent server does not take
            log.debug("%s", error)
        if not self.journal.is_sent:
            self._pending.set()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leaving.set()
        self._pending.set()
        self._thread.join(_EXIT_WAIT if kind is None else _EXIT_WAIT_STOPPED)
        if self._thread.is_alive():
            self.away = (
                f"MLflow at {self.params.tracking.uri} is slow: the rest waits in mlruns/journal for `ratchet sync`"
            )
        self.journal.close()
        self._training_lock.release()

    def settings(self, values: dict[str, object]) -> None:
        """Log settings as MLflow parameters. Only the first call counts, because MLflow's are immutable."""
        self._write("params", {"values": {key: _format(value)[:6000] for key, value in values.items()}})

    def tags(self, values: dict[str, str]) -> None:
        """Set tags."""
        self._write("tags", {"values": {key: value[:5000] for key, value in values.items()}}, again=True)

    def metrics(self, values: dict[str, float], *, step: int, attempt: int = 0) -> None:
        """Log the metrics of one step. A repetition by a resumed training is dropped, except in another `attempt`."""
        if values:
            again = {"attempt": attempt} if attempt else {}
            self._write("metrics", {"step": step, "values": values, **again})

    def measured(self, values: dict[str, float]) -> None:
        """Log the metrics of an evaluation at step 0. Another evaluation replaces them; equal values are dropped."""
        content = {"step": 0, "values": values}
        earlier = [entry.content for entry in self.journal.entries(0) if entry.kind == "metrics"]
        last = next((entry for entry in reversed(earlier) if entry["values"].keys() == values.keys()), None)
        if last != content:
            self._write("metrics", content, again=True)

    def cost(self, attempt: str, cost: TrainingCost) -> None:
        """Record the cost of an attempt so far. The last record of an attempt counts; `total_cost` adds them up."""
        self._write("cost", {"attempt": attempt, **cost.to_json()}, again=True)

    def trouble(self, step: int, kind: str, text: str) -> None:
        """Record an incident at a step and how it was handled, as a tag of the run."""
        self._write("trouble", {"step": step, "kind": kind, "text": text})

    def dataset(self, *, name: str, digest: str, source: str, profile: dict[str, Any]) -> None:
        """Log the training data with its DVC hash."""
        self._write("dataset", {"name": name, "digest": digest, "source": source, "profile": profile})

    def status(self, status: str) -> None:
        """Set the status: RUNNING, FINISHED, FAILED or KILLED."""
        self._write("status", {"status": status}, again=True)

    def send(self) -> str:
        """Send everything now and return the MLflow run's id.

        Raises:
            TrackingUnavailable: MLflow does not answer, also to another process that sends the journal.
        """
        try:
            return _send(self.journal, self.workspace, self.params)
        except Timeout:
            raise TrackingUnavailable(
                f"{self.journal.folder}: another process, or this training's own sender, has been sending it to MLflow "
                f"at {self.params.tracking.uri}, and nothing has arrived for {_SENDING_WAIT:.0f} s. Fix: see why "
                "MLflow does not answer, then run the same command again"
            ) from None

    def _write(self, kind: str, content: dict[str, Any], *, again: bool = False) -> None:
        if self.is_closed:
            return
        self.journal.write(kind, content, again=again)
        self._pending.set()

    def _send_on(self) -> None:
        while True:
            if not self._leaving.is_set():
                self._pending.wait()
            leaving = self._leaving.is_set()
            self._pending.clear()
            try:
                if self.may_send():
                    self.send()
                elif self.is_replaced():  # this process may have created its run after the other one looked for it
                    self._delete()
                self.away = None
            except TrackingUnavailable as error:
                if self.away is None:
                    log.warning("%s", error)
                self.away = str(error)
            except Exception as error:  # a fault of ratchet: it must not stop the training, and must not be hidden
                log.exception("sending to MLflow failed: the rest waits in mlruns/journal")
                self.away = f"sending to MLflow failed ({error!r}): the rest waits in mlruns/journal for `ratchet sync`"
            if leaving:
                return
            self._leaving.wait(2.0 if self.away is None else 10.0)  # so that metrics go in batches

    def _delete(self) -> None:
        """Delete the run of a journal that another one replaces."""
        client = connect(self.workspace, self.params.tracking)
        with reachable(address(self.workspace, self.params.tracking)):
            experiment = experiment_id(client, self.workspace, self.params.tracking)
            delete_replaced(client, experiment, self.journal.uid)


def _refuse_deleted_run(journal: Journal, workspace: Workspace, params: Params) -> Any | None:
    """Return the run which the journal names, and check that it takes new values, or is replaced."""
    if journal.run_id is None:
        return None
    uri, client = address(workspace, params.tracking), connect(workspace, params.tracking)
    with reachable(uri):
        run = or_none(lambda: client.get_run(str(journal.run_id)))
    if run is not None and (run.info.lifecycle_stage == "active" or REPLACED_TAG in run.data.tags):
        return run
    state = journal.folder / STATE
    restore = f"`MLFLOW_TRACKING_URI={uri} mlflow runs restore --run-id {journal.run_id}`, or for a new run of it: "
    raise TrackingRefused(
        f"MLflow at {uri}: run {journal.run_id}, in which {journal.folder} is recorded, is deleted. Fix: "
        f"{restore if run else ''}`rm {state}`, then run the same command again"
    )


def total_cost(journal: Journal) -> TrainingCost | None:
    """Return the cost of all attempts at a run, as far as recorded; None if nothing was recorded."""
    attempts = {entry.content["attempt"]: entry.content for entry in journal.entries(0) if entry.kind == "cost"}
    return add(TrainingCost.from_json(content) for content in attempts.values())


def send_all(workspace: Workspace, params: Params) -> list[tuple[str, str]]:
    """Send what is left in all journals; return (key, MLflow run id) of each that had something.

    The id is empty if another process sends it: its training, or another sync.

    Raises:
        TrackingUnavailable: MLflow does not answer.
        TrackingRefused: MLflow refuses some journals, or they are damaged; the others are sent.
    """
    sent, refused = [], []
    studies = sorted((workspace.project.root / params.search.folder).glob("[!.]*/"))
    trials = [folder for study in studies for folder in trial_journals(study)]
    for folder in (*sorted((workspace.mlruns / "journal").glob("*/")), *trials):
        is_trial = folder.name == JOURNAL
        name = folder.parent.name if is_trial else folder.name
        try:
            with FileLock(folder / _LOCK, timeout=0):
                pass  # not held while MLflow takes its time: a training that begins now may, and sends what is left
            with closing(Journal(folder, store=params.tracking.uri)) as journal:
                if not journal.is_sent:
                    sent.append((name, _send(journal, workspace, trial_records(params) if is_trial else params)))
        except Timeout:
            sent.append((name, ""))
        except (TrackingRefused, RegistryError) as error:
            refused.append(str(error))
    if refused:
        raise TrackingRefused("\n".join([f"{len(sent)} sent, {len(refused)} refused:", *dict.fromkeys(refused)]))
    return sent


def _send(journal: Journal, workspace: Workspace, params: Params) -> str:
    """Send what no process has sent. One at a time does it: two would create two runs, or send an older status.

    Raises:
        Timeout: another process is sending it, and MLflow takes nothing.
    """
    with _sending(journal):
        try:
            return _send_entries(connect(workspace, params.tracking), journal, workspace, params)
        except TrackingRefused:
            run = _refuse_deleted_run(journal, workspace, params)  # names the run and the ways to go on
            if run is None or run.info.lifecycle_stage == "active":
                raise
            journal.mark_sent(run.info.run_id, journal.entries(0)[-1].end)  # another run has all of it
            return str(run.info.run_id)


@contextmanager
def _sending(journal: Journal) -> Iterator[None]:
    """Wait while another process, or thread, that sends the journal makes progress. Then hold the journal."""
    lock = FileLock(journal.folder / _SENDING, timeout=_SENDING_WAIT)
    while not lock.is_locked:
        journal.refresh()
        sent = journal.sent
        try:
            lock.acquire()
        except Timeout:
            journal.refresh()
            if journal.sent == sent:
                raise
    try:
        journal.refresh()
        yield
    finally:
        lock.release()


def _send_entries(client: "MlflowClient", journal: Journal, workspace: Workspace, params: Params) -> str:
    with reachable(address(workspace, params.tracking)):
        run_id = journal.run_id or _find_or_create(client, journal, workspace, params)
        entries = journal.entries(journal.sent)
        points = accumulate(len(entry.content["values"]) if entry.kind == "metrics" else 0 for entry in entries)
        groups = groupby(zip(entries, points, strict=True), key=lambda each: (each[0].kind, each[1] // _BATCH))
        for (kind, _), group in groups:
            batch = [entry for entry, _ in group]
            if kind != "cost":  # of an attempt; their sum is logged as metrics when training ends
                _SENDERS[kind](client, run_id, batch)
            journal.mark_sent(run_id, batch[-1].end)
        if journal.run_id is None:
            journal.mark_sent(run_id, journal.sent)
    return run_id


def _find_or_create(client: "MlflowClient", journal: Journal, workspace: Workspace, params: Params) -> str:
    """Return the MLflow run's id. It is found by its tag if a process was killed before it stored the id."""
    experiment = experiment_id(client, workspace, params.tracking)
    existing = client.search_runs([experiment], f"tags.`{UID_TAG}` = '{journal.uid}'", max_results=1)
    if existing:
        return str(existing[0].info.run_id)
    called = params.model.called
    model = (params.data.kind if called == "auto" else called).rpartition(":")[2]  # the function's name, for a factory
    entries = journal.entries(0)
    written = {
        name: value for entry in entries if entry.kind == "tags" for name, value in entry.content["values"].items()
    }
    tags = {
        **{name: value for name, value in written.items() if name != NAME},  # so that a run which no journal has shows
        UID_TAG: journal.uid,  # whose it is
        # MLflow's pages show these as "Created by" and "Source".
        "mlflow.user": user(),
        "mlflow.source.type": "PROJECT",
        "mlflow.source.name": workspace.root.name,
    }
    run = client.create_run(
        experiment,
        # The time of the first entry: a run that fails at once would otherwise end before it starts.
        start_time=entries[0].time if entries else None,
        tags=tags,
        run_name=f"{model[:_MODEL_WIDTH]}-{journal.uid[:6]}",
    )
    return str(run.info.run_id)


def _format(value: object) -> str:
    """Return a setting as params.yaml writes it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_format, value))}]"
    return str(value)


def _send_metrics(client: "MlflowClient", run_id: str, entries: Sequence[JournalEntry]) -> None:
    from mlflow.entities import Metric

    points = [
        Metric(name, value, entry.time, entry.content["step"])
        for entry in entries
        for name, value in entry.content["values"].items()
    ]
    for start in range(0, len(points), _REQUEST):
        client.log_batch(run_id, metrics=points[start : start + _REQUEST])


def _send_params(client: "MlflowClient", run_id: str, entries: Sequence[JournalEntry]) -> None:
    from mlflow.entities import Param

    values = {name: value for entry in entries for name, value in entry.content["values"].items()}
    settings = [Param(name, value) for name, value in values.items()]
    for start in range(0, len(settings), 100):
        client.log_batch(run_id, params=settings[start : start + 100])


def _send_tags(client: "MlflowClient", run_id: str, entries: Sequence[JournalEntry]) -> None:
    """Set tags. The name of an incident's tag has step and position in the journal: a step can have several."""
    from mlflow.entities import RunTag

    values: dict[str, str] = {}
    for entry in entries:
        content = entry.content
        if entry.kind == "tags":
            values |= content["values"]
        else:
            values[f"ratchet.trouble.{content['step']}.{entry.end}"] = f"{content['kind']}: {content['text']}"[:5000]
    if (name := values.pop(NAME, None)) is not None:  # in a batch MLflow opens a second connection for it
        client.update_run(run_id, name=name)
    client.log_batch(run_id, tags=[RunTag(name, value) for name, value in values.items()])


def _send_dataset(client: "MlflowClient", run_id: str, entries: Sequence[JournalEntry]) -> None:
    import json

    from mlflow.entities import Dataset, DatasetInput, InputTag
    from mlflow.exceptions import MlflowException

    for entry in entries:
        content = entry.content
        dataset = Dataset(
            name=content["name"],
            digest=content["digest"][:36],
            source_type="local",
            source=json.dumps({"uri": content["source"]}),
            profile=json.dumps(content["profile"]),
        )
        inputs = [DatasetInput(dataset, [InputTag("mlflow.data.context", "training")])]
        try:
            client.log_inputs(run_id, inputs)
        except MlflowException as error:
            if not any(word in str(error) for word in _DOUBLE):
                raise
            client.log_inputs(run_id, inputs)  # another run has recorded the same data between MLflow's look and write


def _send_replaces(client: "MlflowClient", run_id: str, entries: Sequence[JournalEntry]) -> None:
    experiment = client.get_run(run_id).info.experiment_id
    for entry in entries:
        delete_replaced(client, experiment, entry.content["uid"])


def _send_status(client: "MlflowClient", run_id: str, entries: Sequence[JournalEntry]) -> None:
    status = entries[-1].content["status"]
    if status == "RUNNING":
        client.update_run(run_id, status)
    else:
        began = client.get_run(run_id).info.start_time
        client.set_terminated(run_id, status, max(entries[-1].time, began))  # the clock can have been set back


_SENDERS = {
    "metrics": _send_metrics,
    "params": _send_params,
    "tags": _send_tags,
    "dataset": _send_dataset,
    "status": _send_status,
    "trouble": _send_tags,
    "replaces": _send_replaces,
}
