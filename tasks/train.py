"""Stage train: data/packed -> data/model and data/checkpoints, recorded in MLflow."""

import contextlib
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ratchet import files
from ratchet.checkpoint_names import checkpoint_paths
from ratchet.cost import CostMeter
from ratchet.data.manifest import Manifest, split_ids
from ratchet.errors import NotFinite, TrainingError
from ratchet.kinds import ModelSpec
from ratchet.settings.model import Params
from ratchet.typed_json import to_plain
from ratchet.workspace import Workspace
from tasks.augmentation_sheet import show_augmentation
from tasks.baseline import Baseline, validated
from tasks.changed_code import resumed
from tasks.finished import bring_back, set_aside
from tasks.hooks import Hooks
from tasks.machine import MachineUse
from tasks.metric_functions import OwnMetrics
from tasks.nodes import facts
from tasks.progress import StageProgress
from tasks.stopping import Budget, BudgetSpent, TrainingStopped, on_request
from tasks.trained_model import TrainedModel, record_training
from tasks.training_job import TrainingJob
from tasks.unfinished import NOTE, note, unfinished

if TYPE_CHECKING:
    from ratchet import training
    from ratchet.registry.runs import Run
    from tasks.curves import Curves

__all__ = ["train"]

_NO_COMMIT = (
    "the provenance record has no commit: as this training began, this folder had none, or git was missing. `ratchet "
    "reproduce` cannot train the model again. Fix: commit the project to git before the next training"
)


def train(
    params: Params, workspace: Workspace, *, progress: StageProgress, flow_run: str | None = None
) -> TrainedModel:
    """Train, or continue an interrupted training of the same key, and write the best model.

    Checkpoints of a running training are in data/running/KEY, which DVC does not own: it removes the outputs of a stage
    before it runs the stage. Those kept at the end become the output data/checkpoints.

    Raises:
        TrainingStopped: SIGTERM or Ctrl-C came; the same command continues.
        BudgetSpent: the budget is used up; with a larger one the same command continues.
        DataError: a packed file is damaged.
        TrainingError: training cannot continue, its code changed, or another process runs the same training.
    """
    meter = CostMeter()
    from ratchet import training
    from ratchet.registry.runs import Run, total_cost

    bring_back(workspace)
    manifest = Manifest.read(workspace.packed)
    hooks = _load_functions(params, workspace)
    job = resumed(workspace, TrainingJob.of(params, workspace, manifest))
    inputs, plan = job.inputs(workspace.packed), job.plan
    store = training.CheckpointStore(workspace.running / job.key, keep_last=plan.keep_last, keep_best=plan.keep_best)
    saved_spec = training.keep_code(job.spec, store.folder)  # a copy: the user may edit the code during training
    with (
        contextlib.closing(inputs.train),  # ends its workers, which the traceback of an error would keep
        contextlib.closing(inputs.validation),
        Run(workspace, params, job.key) as run,
        on_request() as stop_requested,
    ):
        manifest.check_files(workspace.packed, "train", "validation")
        budget = Budget(params.budget, None if run.is_closed else total_cost(run.journal), meter)
        recorder = _Recorder(params, workspace, progress, run, budget, hooks)
        recorder.begin(job, store, rows=len(inputs.train), flow_run=flow_run)
        finished, baseline = recorder.train(job, inputs, store, stop_requested)
    if run.away:
        progress.say(run.away)
    _write_outputs(workspace, store.folder, finished, job, saved_spec, baseline)
    return TrainedModel.load(workspace)


def _load_functions(params: Params, workspace: Workspace) -> Hooks:
    """Import the user's metrics and hooks, so that a fault is found before the training. Return the hooks."""
    OwnMetrics.load(params, workspace)
    return Hooks.load(params.training.hooks, workspace)


@dataclass
class _Recorder:
    """Sends the events of a training to its record, its curves and the user."""

    params: Params
    workspace: Workspace
    progress: StageProgress
    run: "Run"
    budget: Budget
    hooks: Hooks
    curves: "Curves | None" = None
    machine: MachineUse = field(default_factory=MachineUse)
    total: int = 0
    has_trained: bool = False
    best: str = ""  # metric that chooses the best epoch
    last_epoch: str = ""

    def begin(self, job: TrainingJob, store: "training.CheckpointStore", *, rows: int, flow_run: str | None) -> None:
        """Record the training before its first step.

        Raises:
            BudgetSpent: too little of the budget is left for any progress.
        """
        from ratchet import training

        total, _ = training.run_steps(rows, job.plan)
        self.hooks.store = store
        self.best = job.plan.best
        try:
            self.budget.require_some(store.newest_step(), total)
        except BudgetSpent as refusal:
            self._record_stop(refusal)  # the attempt before may have been killed before it recorded this
            raise
        for message in unfinished(self.workspace, job):
            self.progress.say(message)
        for change in job.code_changes:
            self.progress.say(f"the training in {store.folder} goes on with changed code: {change}")

        def before_write() -> None:
            """Record what the checkpoint is of. The note of an earlier run stays until this one has trained."""
            if self.has_trained or not (store.folder / NOTE).exists():
                note(store.folder, job, total=total)
            self.run.journal.sync()

        store.before_write = before_write  # in the thread that writes checkpoints: training does not wait for it
        if self.run.is_closed:
            self.progress.say("a version was registered from this training: its record in MLflow stays as it is")
        else:
            code_changes = job.code_changes
            record = record_training(
                self.run, self.params, self.workspace, flow_run=flow_run, inputs=job.identity, code_changes=code_changes
            )
            if record.git_commit is None:
                self.progress.say(_NO_COMMIT)

    def train(
        self,
        job: TrainingJob,
        inputs: "training.TrainingInputs",
        store: "training.CheckpointStore",
        stop_requested: Callable[[], bool],
    ) -> "tuple[training.Finished, Baseline]":
        """Train the network and fit the baseline, or only fit the baseline where that is the model."""
        from ratchet import doctor, training

        show_augmentation(self.workspace, job, inputs.train)
        if job.variant == "baseline":
            inputs.check()
            baseline = Baseline.fit(job, inputs.train)
            return self.record(baseline.events(job, inputs)), baseline
        events = training.fit_in_processes(
            inputs,
            packed=self.workspace.packed,
            store=store,
            profile_to=self.run.journal.folder / "profile",
            facts=facts(job),
            stop=lambda: stop_requested() or self.budget.is_spent(),
            before_step=self.begin_step,
            examine=doctor.examine,
        )
        return self.record(events), Baseline.fit(job, inputs.train)

    def begin_step(self) -> None:
        """Note that a step is made."""
        self.has_trained = True

    def record(self, events: "Iterator[training.Event]") -> "training.Finished":
        """Train to the end, and record status and cost in every case."""
        from ratchet.registry.runs import total_cost

        run, meter = self.run, self.budget.meter
        try:
            with self._open_curves() as self.curves:
                finished = self._follow(events)
        except NotFinite as error:
            run.status("FAILED")
            ids = split_ids(self.workspace.packed, "train")
            samples = ", ".join(ids[row] for row in error.rows)
            raise TrainingError(f"{error}; samples of the batch: {samples}") from error
        except TrainingStopped as stopped:
            self._record_stop(stopped)
            raise
        except BaseException:
            run.status("FAILED")
            raise
        finally:
            run.cost(meter.attempt, meter.spent())
            run.tags({"ratchet.hooks": self.hooks.summary} if self.hooks.hooks else {})
        cost = total_cost(run.journal)
        for name, value in cost.metrics().items() if cost else ():
            run.metrics({name: value}, step=0)
        run.status("FINISHED")
        return finished

    def _record_stop(self, stopped: TrainingStopped) -> None:
        if isinstance(stopped, BudgetSpent):
            self.run.trouble(stopped.step, "budget", str(stopped))
        self.run.status("KILLED")

    def _open_curves(self) -> "contextlib.AbstractContextManager[Curves | None]":
        """Open TensorBoard's files, if `tracking.tensorboard` is set."""
        if not self.params.tracking.tensorboard:
            return contextlib.nullcontext()
        from tasks.curves import Curves

        return Curves(self.workspace.mlruns / "tensorboard" / self.run.key, self.run.journal)

    def _follow(self, events: "Iterator[training.Event]") -> "training.Finished":
        """Send every event, and return the last one."""
        from ratchet import training

        for event in events:
            self._record_cost(event)
            for step, message in self.hooks.follow(event):
                self.run.trouble(step, "hook", message)
                self.progress.say(message)
            match event:
                case training.Started():
                    self._start(event)
                case training.Points():
                    self._record_metrics(event, step=event.step)
                    text = self.last_epoch or f"loss {event.values['step/loss']:.4f}"
                    self.progress.update(event.step, self.total, text)
                case training.Epoch():
                    self._record_metrics(event, step=event.epoch, more=self.machine.metrics())
                    self.last_epoch = _epoch_summary(event, self.best)
                    self.progress.update(event.step, self.total, self.last_epoch)
                case training.Checkpointed():
                    if self.curves is not None:
                        self.curves.update()
                case training.Notice():
                    self.progress.say(event.text)
                case training.Trouble():
                    self.run.trouble(event.step, event.kind, event.text)
                    self.progress.say(event.text)
                case training.Stopped():
                    raise self.budget.stopped(event.step, self.total, saved_step=event.saved_step)
                case training.Finished():
                    return event
        raise AssertionError("training ended without Finished or Stopped")

    def _start(self, event: "training.Started") -> None:
        self.total, self.machine = event.total_steps, MachineUse(event.device)
        self.budget.meter.use(event.device, processes=event.processes)
        self.progress.say(f"{event.device_name}; {event.precision}; {event.parameters:,} parameters")
        if event.resumed_from:
            name = event.resumed_from.name
            self.progress.say(f"continues at step {event.step:,} of {event.total_steps:,}, from {name}")
        self.progress.update(event.step, event.total_steps)
        self.run.tags({"ratchet.device": event.device_name, "ratchet.precision": event.precision})

    def _record_metrics(
        self, event: "training.Points | training.Epoch", *, step: int, more: Mapping[str, float] | None = None
    ) -> None:
        self.run.metrics(event.values, step=step, attempt=event.attempt)
        self.run.metrics({**event.rates, **(more or {})}, step=step, attempt=event.attempt)

    def _record_cost(self, event: "training.Event") -> None:
        """Record the cost from time to time, in case SIGKILL or a power cut ends this process."""
        from ratchet import training

        meter = self.budget.meter
        if isinstance(event, training.Epoch | training.Checkpointed) and meter.is_due():
            self.run.cost(meter.attempt, meter.spent())


def _epoch_summary(event: "training.Epoch", best: str) -> str:
    """Return the loss and, if it is another metric, the one that chooses the best epoch."""
    names = dict.fromkeys([best, "validation/loss"])
    metrics = ", ".join(f"{name.removeprefix('validation/')} {event.values[name]:.4f}" for name in names)
    return f"epoch {event.epoch}: validation {metrics}"


def _write_outputs(
    workspace: Workspace,
    running: Path,
    finished: "training.Finished",
    job: TrainingJob,
    spec: "ModelSpec",
    baseline: Baseline,
) -> None:
    """Write the outputs. If this is killed at any point, the same command finds the last checkpoint and repeats it."""
    from ratchet import training

    about: dict[str, Any] = {
        "key": job.key,
        "best_epoch": finished.best_epoch,
        "best_metric": job.plan.best,
        "best_value": finished.best_value,
        "steps": finished.step,
    }
    if job.code_changes:
        about["code_changes"] = [to_plain(change) for change in job.code_changes]
    baseline.write(workspace)
    weights, name = finished.weights, {}
    if job.variant != "network":
        name = {"baseline": {"name": baseline.name}}
    if job.variant == "baseline":
        spec = baseline.spec
    elif job.variant == "blend":
        job = replace(job, spec=spec)  # the user may have edited the loss
        spec, model = baseline.blended(spec, finished.weights)
        held_out = training.open_split(workspace.packed, "validation", spec.input)
        about["best_value"] = validated(model, held_out, job)[job.plan.best]
        weights = dict(model.state_dict())
    with files.draft_directory(workspace.model) as draft:
        training.save_model(draft, weights, spec, about={"training": about, **name})
        files.write_json(draft / "history.json", finished.history)
        columns = list(finished.history[0])
        lines = [columns, *([str(row[name]) for name in columns] for row in finished.history)]
        files.write_text(draft / "history.csv", "".join(",".join(line) + "\n" for line in lines))
    _link_checkpoints(running, workspace.checkpoints)
    set_aside(workspace, running)


def _link_checkpoints(running: Path, to: Path) -> None:
    with files.draft_directory(to) as draft:
        for path in checkpoint_paths(running):
            if path.is_dir():
                shutil.copytree(path, draft / path.name, copy_function=files.link_or_copy)
            else:
                files.link_or_copy(path, draft / path.name)


if __name__ == "__main__":
    from tasks.stage_runner import run

    run(train, unit="steps")
