"""Stage train: data/packed -> data/model and data/checkpoints, recorded in MLflow."""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ratchet import files
from ratchet.cost import CostMeter
from ratchet.data.manifest import Manifest, split_ids
from ratchet.errors import NotFinite, TrainingError
from ratchet.settings.model import Params
from ratchet.workspace import Workspace
from tasks.progress import Watch
from tasks.stopping import Budget, BudgetSpent, TrainingStopped, on_request
from tasks.trained_model import TrainedModel, record_training
from tasks.training_job import TrainingJob
from tasks.unfinished import note, unfinished

if TYPE_CHECKING:
    from ratchet import training
    from ratchet.registry.runs import Run
    from tasks.curves import Curves

__all__ = ["train"]


def train(params: Params, workspace: Workspace, *, watch: Watch, flow_run: str | None = None) -> TrainedModel:
    """Train, or continue an interrupted training of the same key, and write the best model.

    Checkpoints of a running training are in data/running/KEY, which DVC does not own: it removes the outputs of a stage
    before it runs the stage. Those kept at the end become the output data/checkpoints.

    Raises:
        TrainingStopped: SIGTERM or Ctrl-C came; the same command continues.
        BudgetSpent: the budget is used up; with a larger one the same command continues.
        TrainingError: training cannot continue, or another process runs the same training.
    """
    meter = CostMeter()
    from ratchet import training
    from ratchet.registry.runs import Run, total_cost

    for leftover in workspace.running.glob(".draft-*"):
        shutil.rmtree(leftover)  # of a killed training that had written all its outputs
    manifest = Manifest.read(workspace.packed)
    job = TrainingJob.of(params, workspace, manifest)
    inputs = _inputs(job, workspace)
    store = training.CheckpointStore(
        workspace.running / job.key, keep_last=job.plan.keep_last, keep_best=job.plan.keep_best
    )
    # A copy, because the user may edit the code during training.
    saved_spec = training.keep_code(job.spec, store.folder)
    with (
        contextlib.closing(inputs.train),  # ends its workers, which the traceback of an error would keep
        contextlib.closing(inputs.validation),
        Run(workspace, params, job.key) as run,
        on_request() as stop_requested,
    ):
        budget = Budget(params.budget, total_cost(run.journal), meter)
        total_steps, _ = training.run_steps(len(inputs.train), job.plan)
        _require_budget(budget, run, step=store.newest_step(), total=total_steps)
        for message in unfinished(workspace, job):
            watch.say(message)
        note(store.folder, job, total=total_steps)
        record_training(run, params, workspace, manifest, flow_run=flow_run, inputs=job.identity)
        # In the thread that writes checkpoints: training does not wait for the disk.
        store.before_write = run.journal.sync
        events = training.fit(
            inputs,
            store=store,
            profile_to=run.journal.folder / "profile",
            stop=lambda: stop_requested() or budget.is_spent(),
        )
        finished = _run(events, run, params, workspace, watch, budget)
    if run.away:
        watch.say(run.away)
    _write_outputs(workspace, store.folder, finished, job, saved_spec)
    return TrainedModel.load(workspace)


def _inputs(job: TrainingJob, workspace: Workspace) -> "training.TrainingInputs":
    from ratchet import training

    train_split, validation = (
        training.open_split(workspace.packed, name, workers=job.plan.workers, sample_timeout=job.plan.sample_timeout)
        for name in ("train", "validation")
    )
    return training.TrainingInputs(
        train_split, validation, job.spec, job.plan, pretrained=job.pretrained, identity=job.identity
    )


def _require_budget(budget: Budget, run: "Run", *, step: int, total: int) -> None:
    """Refuse to start with too little budget.

    Raises:
        BudgetSpent: too little is left for any progress.
    """
    try:
        budget.require_some(step, total)
    except BudgetSpent as refusal:
        _record_stop(run, refusal)  # the attempt before may have been killed before it recorded this
        raise


def _run(
    events: "Iterator[training.Event]", run: "Run", params: Params, workspace: Workspace, watch: Watch, budget: Budget
) -> "training.Finished":
    """Train to the end, and record status and cost in every case."""
    meter = budget.meter
    try:
        with _curves(workspace, params, run) as curves:
            finished = _Listener(run, watch, curves, budget).follow(events)
    except NotFinite as error:
        run.status("FAILED")
        raise TrainingError(f"{error}; samples of the batch: {_sample_ids(workspace, error.rows)}") from error
    except TrainingStopped as stopped:
        _record_stop(run, stopped)
        raise
    except BaseException:
        run.status("FAILED")
        raise
    finally:
        run.cost(meter.attempt, meter.spent())
    _record_cost(run)
    run.status("FINISHED")
    return finished


def _record_stop(run: "Run", stopped: TrainingStopped) -> None:
    if isinstance(stopped, BudgetSpent):
        run.trouble(stopped.step, "budget", str(stopped))
    run.status("KILLED")


def _sample_ids(workspace: Workspace, rows: tuple[int, ...]) -> str:
    """Return the ids of the samples of a batch."""
    ids = split_ids(workspace.packed, "train")
    return ", ".join(ids[row] for row in rows)


@contextlib.contextmanager
def _curves(workspace: Workspace, params: Params, run: "Run") -> "Iterator[Curves | None]":
    """Write TensorBoard's files, if `tracking.tensorboard` is set."""
    if not params.tracking.tensorboard:
        yield None
        return
    from tasks.curves import Curves

    with Curves(workspace.mlruns / "tensorboard" / run.key, run.journal) as curves:
        yield curves


class _Listener:
    """Sends the events of a training to its record, its curves and the user."""

    def __init__(self, run: "Run", watch: Watch, curves: "Curves | None", budget: Budget) -> None:
        from tasks.machine import MachineUse

        self._run, self._watch, self._curves, self._budget = run, watch, curves, budget
        self._machine = MachineUse()
        self._total, self._last_epoch = 0, ""

    def follow(self, events: "Iterator[training.Event]") -> "training.Finished":
        """Send every event, and return the last one."""
        from ratchet import training

        for event in events:
            self._record_cost(event)
            match event:
                case training.Started():
                    self._start(event)
                case training.Points():
                    self._record_metrics(event, step=event.step)
                    text = self._last_epoch or f"loss {event.values['step/loss']:.4f}"
                    self._watch.progress(event.step, self._total, text)
                case training.Epoch():
                    self._record_metrics(event, step=event.epoch, more=self._machine.metrics())
                    self._last_epoch = _epoch_summary(event)
                    self._watch.progress(event.step, self._total, self._last_epoch)
                case training.Checkpointed():
                    if self._curves is not None:
                        self._curves.update()
                case training.Notice():
                    self._watch.say(event.text)
                case training.Trouble():
                    self._run.trouble(event.step, event.kind, event.text)
                    self._watch.say(event.text)
                case training.Stopped():
                    raise self._budget.stopped(event.step, self._total, kept=event.kept)
                case training.Finished():
                    return event
        raise AssertionError("training ended without Finished or Stopped")

    def _start(self, event: "training.Started") -> None:
        from tasks.machine import MachineUse

        self._total, self._machine = event.total_steps, MachineUse(event.device)
        self._budget.meter.use(event.device)
        self._watch.say(f"{event.described}; {event.precision}; {event.parameters:,} parameters")
        if event.resumed_from:
            name = event.resumed_from.name
            self._watch.say(f"continues at step {event.step:,} of {event.total_steps:,}, from {name}")
        self._watch.progress(event.step, event.total_steps)
        self._run.tags({"ratchet.device": event.described, "ratchet.precision": event.precision})

    def _record_metrics(
        self, event: "training.Points | training.Epoch", *, step: int, more: Mapping[str, float] | None = None
    ) -> None:
        self._run.metrics(event.values, step=step, attempt=event.attempt)
        self._run.metrics({**event.rates, **(more or {})}, step=step, attempt=event.attempt)

    def _record_cost(self, event: "training.Event") -> None:
        """Record the cost from time to time, in case SIGKILL or a power cut ends this process."""
        from ratchet import training

        meter = self._budget.meter
        if isinstance(event, training.Epoch | training.Checkpointed) and meter.is_due():
            self._run.cost(meter.attempt, meter.spent())


def _record_cost(run: "Run") -> None:
    """Record the cost of all attempts together, once."""
    from ratchet.registry.runs import total_cost

    cost = total_cost(run.journal)
    for name, value in cost.metrics().items() if cost else ():
        run.metrics({name: value}, step=0)


def _epoch_summary(event: "training.Epoch") -> str:
    accuracy, loss = event.values["validation/accuracy"], event.values["validation/loss"]
    return f"epoch {event.epoch}: validation accuracy {accuracy:.4f}, loss {loss:.4f}"


def _write_outputs(
    workspace: Workspace, running: Path, finished: "training.Finished", job: TrainingJob, spec: "training.ModelSpec"
) -> None:
    """Write the outputs. If this is killed at any point, the same command finds the last checkpoint and repeats it."""
    from ratchet import training

    about = {
        "key": job.key,
        "best_epoch": finished.best_epoch,
        "best_metric": job.plan.best,
        "best_value": finished.best_value,
        "steps": finished.step,
    }
    with files.draft_directory(workspace.model) as draft:
        training.save_model(draft, finished.weights, spec, about={"training": about})
        files.write_json(draft / "history.json", finished.history)
        columns = list(finished.history[0])
        lines = [columns, *([str(row[name]) for name in columns] for row in finished.history)]
        files.write_text(draft / "history.csv", "".join(",".join(line) + "\n" for line in lines))
    with files.draft_directory(workspace.checkpoints) as draft:
        for path in running.glob("step-*.safetensors"):
            os.link(path, draft / path.name)
    # Removed atomically: from half of it the same command would make outputs without some checkpoints.
    removed = tempfile.mkdtemp(prefix=".draft-", dir=workspace.running)
    os.replace(running, removed)
    shutil.rmtree(removed)


if __name__ == "__main__":
    from tasks.stage_runner import run

    run(train, unit="steps")
