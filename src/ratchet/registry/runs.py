"""One training, one MLflow run: told to the journal, sent by another thread."""

import logging
import threading
from collections.abc import Sequence
from itertools import groupby
from types import TracebackType
from typing import TYPE_CHECKING, Any

from filelock import FileLock, Timeout

from ratchet.cost import Cost, add
from ratchet.errors import TrackingUnavailable, TrainingError
from ratchet.registry.access import user
from ratchet.registry.journal import Entry, Journal
from ratchet.registry.mlflow_store import address, connect, experiment_id, reachable
from ratchet.settings.model import Params
from ratchet.workspace import Workspace

if TYPE_CHECKING:
    from mlflow import MlflowClient

__all__ = ["Run", "send_all", "spent"]

UID_TAG = "ratchet.uid"
_MODEL_WIDTH = 14  # characters of a model's name in a run's: MLflow's table shows 21
_BATCH = 900  # MLflow takes 1,000 metrics a call
_PATIENCE = 30.0  # seconds that leaving waits for MLflow
_PATIENCE_STOPPED = 10.0  # the same of a run that ends early: a cancelled one has 30 s in all before it is killed

log = logging.getLogger(__name__)


class Run:
    """A run as the stages see it: whatever is told is on disk at once and in MLflow soon.

    As a context it is the only one that carries out this training, and sends in the background; leaving waits a limited
    time, and `away` then says why not all was sent.
    """

    def __init__(self, workspace: Workspace, params: Params, key: str) -> None:
        self.workspace, self.params, self.key = workspace, params, key
        folder = workspace.mlruns / "journal" / key
        for draft in folder.glob(".draft-*"):
            draft.unlink(missing_ok=True)  # a killed one's
        self.journal = Journal(folder, store=params.tracking.uri)
        self.away: str | None = None
        self._news = threading.Event()
        self._leaving = threading.Event()
        self._thread = threading.Thread(target=self._send_on, name="mlflow-sender", daemon=True)
        self._mine = FileLock(folder / "training.lock")

    def __enter__(self) -> "Run":
        """Raises TrainingError if another process carries it out: the folder of `nightly` shares the journals."""
        try:
            self._mine.acquire(timeout=0)
        except Timeout:
            self.journal.close()
            raise TrainingError(
                f"this very training ({self.key}) is under way in another folder of this project: wait for it to end, "
                "then run the same again: what it has made is not made anew"
            ) from None
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leaving.set()
        self._news.set()
        self._thread.join(_PATIENCE if kind is None else _PATIENCE_STOPPED)
        if self._thread.is_alive():
            self.away = (
                f"MLflow at {self.params.tracking.uri} is slow: the rest waits in mlruns/journal for `ratchet sync`"
            )
        self.journal.close()
        self._mine.release()

    def settings(self, values: dict[str, object]) -> None:
        """Settings as MLflow parameters; they are written once and never again: MLflow's are immutable."""
        self._tell("params", {"values": {key: _written(value)[:6000] for key, value in values.items()}})

    def tags(self, values: dict[str, str]) -> None:
        self._tell("tags", {"values": {key: value[:5000] for key, value in values.items()}}, again=True)

    def metrics(self, values: dict[str, float], *, step: int, attempt: int = 0) -> None:
        """Points of one step; a repetition by a resumed training is dropped, one of another `attempt` is not."""
        if values:
            again = {"attempt": attempt} if attempt else {}
            self._tell("metrics", {"step": step, "values": values, **again})

    def measured(self, values: dict[str, float]) -> None:
        """Points of step 0 that another evaluation may replace; the same values again are dropped."""
        content = {"step": 0, "values": values}
        earlier = [entry.content for entry in self.journal.entries(0) if entry.kind == "metrics"]
        last = next((one for one in reversed(earlier) if one["values"].keys() == values.keys()), None)
        if last != content:
            self._tell("metrics", content, again=True)

    def cost(self, attempt: str, cost: Cost) -> None:
        """What an attempt at this run has spent so far: its last word counts. `spent` adds the attempts up."""
        self._tell("cost", {"attempt": attempt, **cost.to_json()}, again=True)

    def trouble(self, step: int, kind: str, text: str) -> None:
        """What went wrong at a step and how it was mended, for whoever looks at the run later."""
        self._tell("trouble", {"step": step, "kind": kind, "text": text})

    def dataset(self, *, name: str, digest: str, source: str, profile: dict[str, Any]) -> None:
        """The data set that went in, by its DVC hash."""
        self._tell("dataset", {"name": name, "digest": digest, "source": source, "profile": profile})

    def status(self, status: str) -> None:
        """RUNNING, FINISHED, FAILED or KILLED, as MLflow calls them."""
        self._tell("status", {"status": status}, again=True)

    def send(self) -> str:
        """Send everything now; the MLflow run's id.

        Raises:
            TrackingAway: MLflow does not answer.
        """
        return _send(self.journal, self.workspace, self.params)

    def _tell(self, kind: str, content: dict[str, Any], *, again: bool = False) -> None:
        self.journal.write(kind, content, again=again)
        self._news.set()

    def _send_on(self) -> None:
        while True:
            leaving = self._leaving.is_set()
            self._news.clear()
            try:
                self.send()
                self.away = None
            except TrackingUnavailable as error:
                if self.away is None:
                    log.warning("%s", error)
                self.away = str(error)
            except Exception as error:  # ours, not MLflow's: training must not suffer for it, and must not hide it
                log.exception("MLflow was not told: the rest waits in mlruns/journal")
                self.away = f"MLflow was not told ({error!r}): the rest waits in mlruns/journal for `ratchet sync`"
            if leaving:
                return
            self._leaving.wait(2.0 if self.away is None else 10.0)  # points in between go together
            if not self._leaving.is_set():
                self._news.wait()


def spent(journal: Journal) -> Cost | None:
    """What all attempts at a run have cost, each as far as it was told; None: none was told."""
    attempts = {entry.content["attempt"]: entry.content for entry in journal.entries(0) if entry.kind == "cost"}
    return add(Cost.from_json(content) for content in attempts.values())


def send_all(workspace: Workspace, params: Params) -> list[tuple[str, str]]:
    """Send what every journal still holds; (key, MLflow run id) of those that had something.

    Raises:
        TrackingAway: MLflow does not answer.
    """
    sent = []
    for folder in sorted((workspace.mlruns / "journal").glob("*/")):
        journal = Journal(folder, store=params.tracking.uri)
        try:
            if not journal.is_sent:
                sent.append((folder.name, _send(journal, workspace, params)))
        finally:
            journal.close()
    return sent


def _send(journal: Journal, workspace: Workspace, params: Params) -> str:
    client = connect(workspace, params.tracking)
    with reachable(address(workspace, params.tracking)):
        run_id = journal.run_id or _find_or_create(client, journal, workspace, params)
        entries = journal.entries(journal.sent)
        for kind, group in groupby(entries, key=lambda entry: entry.kind):
            alike = list(group)
            _SENDERS[kind](client, run_id, alike)
            journal.mark_sent(run_id, alike[-1].end)
        if journal.run_id is None:
            journal.mark_sent(run_id, journal.sent)
    return run_id


def _find_or_create(client: "MlflowClient", journal: Journal, workspace: Workspace, params: Params) -> str:
    """By its tag first: a process killed after making the run, before noting its id, must not make a second."""
    experiment = experiment_id(client, workspace, params.tracking)
    found = client.search_runs([experiment], f"tags.`{UID_TAG}` = '{journal.uid}'", max_results=1)
    if found:
        return str(found[0].info.run_id)
    model = params.model.called.rpartition(":")[2]  # of a factory its function
    told = journal.entries(0)
    tags = {
        UID_TAG: journal.uid,
        # What MLflow's pages show as "Created by" and "Source".
        "mlflow.user": user(),
        "mlflow.source.type": "PROJECT",
        "mlflow.source.name": workspace.root.name,
    }
    made = client.create_run(
        experiment,
        # When training began, not when MLflow first heard of it: a run that fails at once would end before it began.
        start_time=told[0].time if told else None,
        tags=tags,
        run_name=f"{model[:_MODEL_WIDTH]}-{journal.uid[:6]}",
    )
    return str(made.info.run_id)


def _written(value: object) -> str:
    """A setting as params.yaml writes it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return f"[{', '.join(_written(one) for one in value)}]"
    return str(value)


def _send_metrics(client: "MlflowClient", run_id: str, entries: Sequence[Entry]) -> None:
    from mlflow.entities import Metric

    points = [
        Metric(name, value, entry.time, entry.content["step"])
        for entry in entries
        for name, value in entry.content["values"].items()
    ]
    for start in range(0, len(points), _BATCH):
        client.log_batch(run_id, metrics=points[start : start + _BATCH])


def _send_params(client: "MlflowClient", run_id: str, entries: Sequence[Entry]) -> None:
    from mlflow.entities import Param

    values = {name: value for entry in entries for name, value in entry.content["values"].items()}
    settings = [Param(name, value) for name, value in values.items()]
    for start in range(0, len(settings), 100):
        client.log_batch(run_id, params=settings[start : start + 100])


def _send_tags(client: "MlflowClient", run_id: str, entries: Sequence[Entry]) -> None:
    from mlflow.entities import RunTag

    values = {name: value for entry in entries for name, value in entry.content["values"].items()}
    client.log_batch(run_id, tags=[RunTag(name, value) for name, value in values.items()])


def _send_trouble(client: "MlflowClient", run_id: str, entries: Sequence[Entry]) -> None:
    """A tag for each, by its step and its place in the journal: a step may be in trouble more than once."""
    from mlflow.entities import RunTag

    told = [(f"ratchet.trouble.{entry.content['step']}.{entry.end}", entry.content) for entry in entries]
    client.log_batch(run_id, tags=[RunTag(name, f"{one['kind']}: {one['text']}"[:5000]) for name, one in told])


def _send_dataset(client: "MlflowClient", run_id: str, entries: Sequence[Entry]) -> None:
    import json

    from mlflow.entities import Dataset, DatasetInput, InputTag

    for entry in entries:
        content = entry.content
        dataset = Dataset(
            name=content["name"],
            digest=content["digest"][:36],
            source_type="local",
            source=json.dumps({"uri": content["source"]}),
            profile=json.dumps(content["profile"]),
        )
        client.log_inputs(run_id, [DatasetInput(dataset, [InputTag("mlflow.data.context", "training")])])


def _send_status(client: "MlflowClient", run_id: str, entries: Sequence[Entry]) -> None:
    status = entries[-1].content["status"]
    if status == "RUNNING":
        client.update_run(run_id, status)
    else:
        began = client.get_run(run_id).info.start_time
        client.set_terminated(run_id, status, max(entries[-1].time, began))  # the clock may have been set back


def _send_nothing(client: "MlflowClient", run_id: str, entries: Sequence[Entry]) -> None:
    """What attempts cost is added up here, and sent as points when training ends."""


_SENDERS = {
    "cost": _send_nothing,
    "metrics": _send_metrics,
    "params": _send_params,
    "tags": _send_tags,
    "dataset": _send_dataset,
    "status": _send_status,
    "trouble": _send_trouble,
}
