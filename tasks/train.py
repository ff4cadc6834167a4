"""train: data/packed -> data/model and data/checkpoints, told to MLflow on the way."""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ratchet import files
from ratchet.cost import Meter
from ratchet.data.manifest import Manifest
from ratchet.errors import NotFinite, TrainingError
from ratchet.settings.model import Params
from ratchet.workspace import Workspace
from tasks.progress import Watch
from tasks.stopping import Budget, BudgetSpent, TrainingStopped, on_request
from tasks.training_job import TrainingJob
from tasks.unfinished import note, unfinished

if TYPE_CHECKING:
    from ratchet import training
    from ratchet.registry.runs import Run
    from tasks.curves import Curves

__all__ = ["TrainedModel", "tell_training", "train"]


@dataclass(frozen=True)
class TrainedModel:
    """What train made, in small."""

    name: str
    key: str  # names the training: a digest of its data, settings and code
    best_epoch: int
    best_metric: str
    best_value: float
    steps: int

    @classmethod
    def load(cls, workspace: Workspace) -> "TrainedModel":
        """What stands in data/model."""
        described = files.read_json(workspace.model / "model.json")
        own = described["spec"].get("factory", "none")
        return cls(name=described["spec"]["name"] if own == "none" else own, **described["training"])

    @property
    def words(self) -> str:
        """One line for the person who watches."""
        best = f"best {self.best_metric} {self.best_value:.4f} at epoch {self.best_epoch}"
        return f"{self.name}: {best}, {self.steps:,} steps"


def train(params: Params, workspace: Workspace, *, watch: Watch, flow_run: str | None = None) -> TrainedModel:
    """Train, or continue the same training where it was cut off, and leave the best model.

    Checkpoints of a training under way lie in data/running/KEY, which DVC does not own (it removes a stage's outputs
    before it runs the stage); those kept at the end become the output data/checkpoints.

    Raises:
        TrainingStopped: SIGTERM or Ctrl-C came; the same command continues.
        BudgetSpent: it has taken what the settings allow it; with more, the same command continues.
        TrainingError: training cannot go on, or another process is at this very training.
    """
    meter = Meter()
    from ratchet import training
    from ratchet.registry.runs import Run, total_cost

    for left in workspace.running.glob(".draft-*"):
        shutil.rmtree(left)  # a killed training's, which had handed over all of it
    manifest = Manifest.read(workspace.packed)
    course = TrainingJob.of(params, workspace, manifest)
    train_split, validation_split = (
        training.open_split(
            workspace.packed, name, workers=course.plan.workers, sample_timeout=course.plan.sample_timeout
        )
        for name in ("train", "validation")
    )
    store = training.CheckpointStore(
        workspace.running / course.key, keep_last=course.plan.keep_last, keep_best=course.plan.keep_best
    )
    # The code that training begins with is the code of what it makes, should it be edited meanwhile.
    kept = training.keep_code(course.spec, store.folder)
    with (
        contextlib.closing(train_split),  # its workers, which the traceback of an error would keep
        contextlib.closing(validation_split),
        Run(workspace, params, course.key) as run,
        on_request() as asked_to_stop,
    ):
        budget = Budget(params.budget, total_cost(run.journal), meter)
        _refuse_if_spent(budget, run, store, course, rows=len(train_split))
        for sentence in unfinished(workspace, course):
            watch.say(sentence)
        note(store.folder, course, total=training.run_steps(len(train_split), course.plan)[0])
        tell_training(run, params, workspace, manifest, flow_run=flow_run, inputs=course.identity)
        # By the checkpoints' writer: training does not wait for the disk.
        store.before_write = run.journal.sync
        events = training.fit(
            train_split,
            validation_split,
            course.spec,
            course.plan,
            store=store,
            identity=course.identity,
            pretrained=course.pretrained,
            profile_to=run.journal.folder / "profile",
            stop=lambda: asked_to_stop() or budget.is_spent(),
        )
        try:
            with _curves(workspace, params, run) as curves:
                finished = _follow(events, run, watch, curves, budget)
        except NotFinite as error:
            run.status("FAILED")
            raise TrainingError(f"{error}; the batch: {_ids(workspace, error.rows)}") from error
        except TrainingStopped as stopped:
            _tell_stop(run, stopped)
            raise
        except BaseException:
            run.status("FAILED")
            raise
        finally:
            run.cost(meter.attempt, meter.spent())
        _tell_cost(run)
        run.status("FINISHED")
    if run.away:
        watch.say(run.away)
    _leave(workspace, store.folder, finished, course, kept)
    return TrainedModel.load(workspace)


def _refuse_if_spent(
    budget: Budget, run: "Run", store: "training.CheckpointStore", course: TrainingJob, *, rows: int
) -> None:
    """Before anything is begun that could not be ended."""
    from ratchet.training import run_steps

    total, _ = run_steps(rows, course.plan)
    try:
        budget.require_some(store.newest_step(), total)
    except BudgetSpent as refusal:
        _tell_stop(run, refusal)  # the attempt before may have been killed, and said nothing
        raise


def _tell_stop(run: "Run", stopped: TrainingStopped) -> None:
    if isinstance(stopped, BudgetSpent):
        run.trouble(stopped.step, "budget", str(stopped))
    run.status("KILLED")


def tell_training(
    run: Any,
    params: Params,
    workspace: Workspace,
    manifest: Manifest,
    *,
    flow_run: str | None,
    inputs: Mapping[str, str] | None = None,
) -> None:
    """What MLflow is to know of a training before its first step; `inputs` are the digests that name it."""
    from ratchet.data.versions import read_version
    from ratchet.provenance.record import begin_record

    told = {
        "seed": params.seed,
        **{f"model.{name}": value for name, value in params.model.model_dump().items()},
        **{f"training.{name}": value for name, value in params.training.model_dump().items()},
        **{f"data.{name}": value for name, value in params.data.model_dump().items()},
    }
    run.settings(told)
    version = read_version(workspace.root)
    rows = {name: split.rows for name, split in manifest.splits.items()}
    run.dataset(
        name=manifest.name,
        digest=version.dvc_hash if version else manifest.digest,
        source=params.data.source if params.data.source == "digits" else params.data.path,
        profile={"classes": len(manifest.classes), "rows": rows, "quarantined": manifest.quarantined},
    )
    record = begin_record(run.journal.folder, workspace, params, flow_run=flow_run, inputs=inputs)
    run.tags({"ratchet.key": run.key, "ratchet.provenance": record.id})
    if record.git_commit:
        run.tags({"mlflow.source.git.commit": record.git_commit})  # MLflow's own name: shown beside the source
    if flow_run:
        run.tags({"ratchet.prefect_flow_run": flow_run})
    run.status("RUNNING")


def _ids(workspace: Workspace, rows: tuple[int, ...]) -> str:
    """The samples of a batch, by the ids that the index and the user's files have."""
    from tasks.evaluate import split_ids

    ids = split_ids(workspace, "train")
    return ", ".join(ids[row] for row in rows)


@contextlib.contextmanager
def _curves(workspace: Workspace, params: Params, run: "Run") -> "Iterator[Curves | None]":
    """TensorBoard's files, where they are asked for."""
    if not params.tracking.tensorboard:
        yield None
        return
    from tasks.curves import Curves

    with Curves(workspace.mlruns / "tensorboard" / run.key, run.journal) as curves:
        yield curves


def _follow(
    events: "Iterator[training.Event]", run: "Run", watch: Watch, curves: "Curves | None", budget: Budget
) -> "training.Finished":
    """Hand every event to the journal and to whoever watches; the Finished one comes back."""
    from ratchet import training
    from tasks.machine import MachineUse

    total, last_epoch, machine, meter = 0, "", MachineUse(), budget.meter
    for event in events:
        if isinstance(event, training.Epoch | training.Checkpointed) and meter.is_due():
            run.cost(meter.attempt, meter.spent())  # for the case that nothing more is told: SIGKILL, a power cut
        match event:
            case training.Started():
                total, machine = event.total_steps, MachineUse(event.device)
                meter.use(event.device)
                watch.say(f"{event.described}; {event.precision}; {event.parameters:,} parameters")
                if event.resumed_from:
                    watch.say(f"continues at step {event.step:,} of {total:,}, from {event.resumed_from.name}")
                watch.progress(event.step, total)
                run.tags({"ratchet.device": event.described, "ratchet.precision": event.precision})
            case training.Points():
                run.metrics(event.values, step=event.step, attempt=event.attempt)
                run.metrics(event.rates, step=event.step, attempt=event.attempt)
                watch.progress(event.step, total, last_epoch or f"loss {event.values['step/loss']:.4f}")
            case training.Epoch():
                run.metrics(event.values, step=event.epoch, attempt=event.attempt)
                run.metrics({**event.rates, **machine.figures()}, step=event.epoch, attempt=event.attempt)
                last_epoch = _epoch_words(event)
                watch.progress(event.step, total, last_epoch)
            case training.Checkpointed():
                if curves is not None:
                    curves.update()
            case training.Notice():
                watch.say(event.text)
            case training.Trouble():
                run.trouble(event.step, event.kind, event.text)
                watch.say(event.text)
            case training.Stopped():
                raise budget.stopped(event.step, total, kept=event.kept)
            case training.Finished():
                return event
    raise AssertionError("training ended without a last word")


def _tell_cost(run: "Run") -> None:
    """What all attempts cost together, each figure once, whatever is done again."""
    from ratchet.registry.runs import total_cost

    cost = total_cost(run.journal)
    for name, value in cost.metrics().items() if cost else ():
        run.metrics({name: value}, step=0)


def _epoch_words(event: "training.Epoch") -> str:
    accuracy, loss = event.values["validation/accuracy"], event.values["validation/loss"]
    return f"epoch {event.epoch}: validation accuracy {accuracy:.4f}, loss {loss:.4f}"


def _leave(
    workspace: Workspace, running: Path, finished: "training.Finished", course: TrainingJob, spec: "training.ModelSpec"
) -> None:
    """Write the outputs. Killed at any point here, the same command finds the last checkpoint and does this again."""
    from ratchet import training

    about = {
        "key": course.key,
        "best_epoch": finished.best_epoch,
        "best_metric": course.plan.best,
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
    # All of it goes at once: of half of it, the same command would make outputs with a checkpoint missing.
    gone = tempfile.mkdtemp(prefix=".draft-", dir=workspace.running)
    os.replace(running, gone)
    shutil.rmtree(gone)


if __name__ == "__main__":
    from tasks.stage_runner import run

    run(train, unit="steps")
