"""Train one trial of a search, or continue it at its checkpoint, until it ends."""

import contextlib
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from ratchet import files
from ratchet.cost import CostMeter
from ratchet.data.manifest import Manifest
from ratchet.errors import NotFinite, StudyError, StudyUnavailable, TrainingBusy, TrainingError, first_line
from ratchet.registry.journal import Journal
from ratchet.registry.runs import Run
from ratchet.registry.trial_runs import JOURNAL, copy_number, trial_records
from ratchet.search.records import Curve, Study, Trial
from ratchet.search.scheduler import Decision, Progress, Scheduler
from ratchet.search.store import LeaseLost, patiently
from ratchet.settings.model import Params
from ratchet.settings.search_space import apply
from ratchet.workspace import Workspace
from tasks.search_attempt import StepCounter, heartbeat
from tasks.training_job import TrainingJob

if TYPE_CHECKING:
    from ratchet import training

__all__ = ["TrialTraining", "constant_answer", "key_of", "require_device"]

T = TypeVar("T")
Reason = Decision | Literal["lost"]
_BUSY_SECONDS = 5.0  # until this worker asks for a trial again


def key_of(params: Params, workspace: Workspace, values: Mapping[str, Any], seed: int | None) -> str:
    """Return the key of a trial: that of its training.

    Settings that cannot be trained have the key of their values; the trial fails with the reason.
    """
    chosen = _chosen(params, values, seed)
    try:
        return TrainingJob.of(chosen, workspace, Manifest.read(workspace.packed)).key
    except TrainingError as error:
        if _cannot_read(error):
            raise
        return files.digest_json({"values": dict(values), "seed": seed})[:16]


def require_device(params: Params) -> None:
    """Check that this machine has the device and the GPUs of a study, unless the space decides them.

    Raises:
        TrainingError: it does not. That is no fault of any trial.
    """
    from ratchet.training.processes import count_processes

    wanted = params.training
    if not {f"training.{name}" for name in ("device", "processes", "pieces")} & params.search.space.keys():
        count_processes(wanted.processes, pieces=wanted.pieces, device=wanted.device)


def _cannot_read(error: TrainingError) -> bool:
    """Return whether this machine cannot read or write a file now.

    A missing file may be one that the settings name. Only the direct cause counts: a process that is lost, perhaps
    since the trial needs too much memory, ends by an OSError, too.
    """
    cause = error.__cause__ or error.__context__
    is_missing = isinstance(cause, FileNotFoundError | NotADirectoryError | IsADirectoryError)
    return isinstance(cause, OSError) and cause.errno is not None and not is_missing


def _chosen(params: Params, values: Mapping[str, Any], seed: int | None) -> Params:
    quick = {"training.keep_last": 1, "training.keep_best": 1, "training.doctor": "never", "training.profile": 0}
    chosen = apply(params, {**values, **quick})
    return chosen if seed is None else chosen.model_copy(update={"seed": seed})


@dataclass
class TrialTraining:
    """One attempt at a trial by this worker.

    Args:
        params: settings of the study, with the places of this machine.
    """

    study: Study
    params: Params
    workspace: Workspace
    scheduler: Scheduler
    trial: Trial
    stop: Callable[[], bool]
    say: Callable[[str], None]
    reason: Reason = "continue"
    constant: str = ""
    meter: CostMeter = field(default_factory=CostMeter)

    def __post_init__(self) -> None:
        trial = self.trial
        self._began = time.time()
        self._base = self.workspace.project.root / self.params.search.folder / self.study.name
        self.folder = self._latest_copy()
        self.chosen = _chosen(self.params, trial.values, trial.seed)
        self.progress = Progress(trial.curve, trial.steps, trial.cpu, spans=trial.spans)
        self._before = self.progress
        self._counter = StepCounter(self.folder)
        self._journal: Journal | None = None

    def run(self) -> None:
        """Train until the trial ends or this worker stops, and record that.

        Raises:
            LeaseLost: another worker has the trial.
            StudyUnavailable: the database does not answer, and this worker was asked to stop.
            RatchetError: no fault of the trial, such as a missing GPU or a full disk; another worker continues it.
        """
        objectives: tuple[float, ...] | None = None
        with heartbeat(self.scheduler, self.trial.number, self._lose):
            try:
                objectives = self._train_apart()
            except TrainingBusy:
                self.reason = "leave"
                time.sleep(min(_BUSY_SECONDS, self.scheduler.lease / 4))
            except TrainingError as error:
                if self._is_of_machine(error):
                    self._leave()
                    raise StudyError(f"trial {self.trial.number} is left to other workers: {error}") from error
                self._fail(f"the loss is not finite: {error}" if isinstance(error, NotFinite) else str(error))
                return
            except Exception as error:
                from ratchet.training.device import ran_out_of_memory

                if ran_out_of_memory(error):
                    self._fail(f"not enough memory ({first_line(error)}). Fix: a smaller model or batch in the space")
                    return
                self._leave()
                raise
            self._record(objectives)

    def _train_apart(self) -> tuple[float, ...] | None:
        """Train. If a worker that has lost the lease still runs, it holds its folder: train in a copy.

        That worker may be stopped or hang, and what it writes later must not reach this one's files, nor its run in
        MLflow. The number of a copy is that of the workers lost so far, which grows with each lease.
        """
        try:
            return self._train()
        except TrainingBusy:
            number = self.trial.losses
            if number <= copy_number(self.folder):  # a later worker has the trial: this one was stopped before it began
                raise
            copy = self._base / f"{self.trial.key}-{number}"
            draft = self._base / f".draft-{copy.name}-{os.getpid()}"
            try:
                shutil.copytree(self.folder, draft, ignore=shutil.ignore_patterns("*.lock", ".draft-*"))
                with contextlib.closing(Journal(draft / JOURNAL)) as journal:
                    journal.replace_original()
                draft.rename(copy)
            except (shutil.Error, FileNotFoundError):  # it writes just now, so it will notice soon
                shutil.rmtree(draft, ignore_errors=True)
                raise TrainingBusy(f"the files of trial {self.trial.number} are being written") from None
            self.folder, self._counter = copy, StepCounter(copy)
            return self._train()

    def _latest_copy(self) -> Path:
        key = self.trial.key
        return max(self._base.glob(f"{key}-*"), key=copy_number, default=self._base / key)

    def _is_replaced(self) -> bool:
        return copy_number(self._latest_copy()) > copy_number(self.folder)

    def _is_of_machine(self, error: TrainingError) -> bool:
        """Return whether an error is no fault of the trial: this machine cannot read a file, or has lost its GPU."""
        try:
            require_device(self.params)
        except TrainingError:
            return True
        return _cannot_read(error)

    def _leave(self) -> None:
        with contextlib.suppress(StudyUnavailable, LeaseLost):  # then the lease ends
            self.scheduler.leave(self.trial.number, self._spent())

    def _fail(self, reason: str) -> None:
        progress = self._spent()
        self._patiently(lambda: self.scheduler.fail(self.trial.number, progress, reason))
        self._discard()

    def _record(self, objectives: tuple[float, ...] | None) -> None:
        """Record why training has stopped."""
        number, progress, scheduler = self.trial.number, self._spent(), self.scheduler
        if self.reason == "lost":
            raise LeaseLost
        if objectives is not None:
            constant = self.constant
            self._patiently(lambda: scheduler.finish(number, progress, objectives, constant=constant))
            self._discard()
        elif self._patiently(lambda: scheduler.leave(number, progress)):
            self._discard()

    def _train(self) -> tuple[float, ...] | None:
        """Train; return the objectives, or None if training stopped before its end."""
        from ratchet import training

        packed = self.workspace.packed
        run = Run(self.workspace, trial_records(self.chosen), self.trial.key, folder=self.folder / JOURNAL)
        self._journal, run.may_send, run.is_replaced = run.journal, self._has_lease, self._is_replaced
        with self._counter, run, contextlib.ExitStack() as stack:
            self._begin(run)
            job = TrainingJob.of(self.chosen, self.workspace, Manifest.read(packed))
            if job.variant != "network":
                raise TrainingError(f"model.name: found {job.variant}. Allowed in a search: a network")
            if job.key != self.trial.key:
                raise StudyError(
                    f"{self.study.name}: data, code or files of this folder have changed since trial "
                    f"{self.trial.number} was chosen. Fix: restore them, or begin another study: `ratchet set "
                    "search.study=NAME`"
                )
            store = training.CheckpointStore(self.folder / "checkpoints", keep_last=1, keep_best=1)
            store.before_write = run.journal.sync
            inputs = job.inputs(packed)
            for split in (inputs.train, inputs.validation):
                stack.enter_context(contextlib.closing(split))
            events = training.fit_in_processes(
                inputs, packed=packed, store=store, stop=self._must_stop, before_step=self._counter.add
            )
            objectives = self._follow(run, events, job)
            if objectives is not None or self.reason != "lost":  # else the run is that of another worker
                run.status("KILLED" if objectives is None and self.reason == "leave" else "FINISHED")
        return objectives

    def _follow(self, run: Run, events: "Iterator[training.Event]", job: TrainingJob) -> tuple[float, ...] | None:
        from ratchet import training

        parameters, rows = 0, list[dict[str, float]]()  # rows: metrics of each epoch
        for event in events:
            match event:
                case training.Started():
                    self.meter.use(event.device, processes=event.processes)
                    parameters, rows = event.parameters, event.history
                    for row in rows:  # the worker before may have been killed before it recorded the last
                        self._record_epoch(run, row)
                    # Its checkpoint may have epochs that the storage does not know: it did not answer then.
                    if len(rows) > self.trial.epochs:
                        self.progress = replace(self.progress, curve=self._curve(rows, job, parameters))
                    if 0 < self.progress.epochs <= event.step // event.steps_per_epoch:
                        self._decide()  # that worker may have been killed before it recorded the end: no step is made
                case training.Epoch():
                    rows = [*rows[: event.epoch - 1], {"epoch": event.epoch, **event.values}]
                    self.progress = replace(self.progress, curve=self._curve(rows, job, parameters))
                    self._decide()
                    self._record_epoch(run, rows[-1])
                case training.Trouble():
                    run.trouble(event.step, event.kind, event.text)
                    self.say(event.text)
                case training.Notice():
                    self.say(event.text)
                case training.Stopped():
                    return None
                case training.Finished():
                    row = next(row for row in event.history if row["epoch"] == event.best_epoch)
                    self.constant = constant_answer(job, self.workspace.packed, event.weights)
                    return tuple(_objective(name, row, parameters) for name in self.study.objectives)
                case _:
                    pass
        raise AssertionError("training ended without Finished or Stopped")

    def _curve(self, rows: Sequence[dict[str, float]], job: TrainingJob, parameters: int) -> Curve:
        """Return the first objective of the best epoch so far after each epoch."""
        from ratchet.training.validation import epoch_score

        best = accumulate(rows, lambda *two: max(two, key=lambda row: epoch_score(job.plan, row, int(row["epoch"]))))
        name = self.study.objectives[0]
        return tuple(
            (int(row["epoch"]), _objective(name, top, parameters)) for row, top in zip(rows, best, strict=True)
        )

    def _record_epoch(self, run: Run, row: Mapping[str, float]) -> None:
        """Record the metrics of an epoch, unless another worker has the trial. A repetition is dropped."""
        if self.reason == "lost":
            return
        values = {name: value for name, value in row.items() if name not in ("epoch", "step")}
        run.metrics(values, step=int(row["epoch"]))

    def _begin(self, run: Run) -> None:
        settings: dict[str, object] = {"seed": self.chosen.seed}
        for section in ("model", "training"):
            settings |= {
                f"{section}.{name}": value for name, value in getattr(self.chosen, section).model_dump().items()
            }
        trial = self.trial
        role = {} if trial.seed_of is None else {"ratchet.seed_of": str(trial.seed_of)}
        parent = {"mlflow.parentRunId": self.study.run_id} if self.study.run_id else {}
        names = {"ratchet.key": trial.key, "ratchet.study": self.study.name, "ratchet.trial": str(trial.number)}
        run.tags({**names, **role, **parent})  # first: the run is created with them
        run.settings(settings)
        run.status("RUNNING")

    def _decide(self) -> Reason:
        """Report the progress, and note whether training goes on. If the database does not answer, it does."""
        if self.progress.curve[-1][0] >= self.study.epochs:
            return self.reason  # its end is reported with its objectives
        try:
            self.reason = self.scheduler.report(self.trial.number, self._spent())
        except LeaseLost:
            self.reason = "lost"
        except StudyUnavailable as error:
            self.say(str(error))
        return self.reason

    def _must_stop(self) -> bool:
        """Return whether training stops before the next step."""
        if self.stop() and self.reason == "continue":
            self.reason = "leave"
        return self.reason != "continue"

    def _lose(self) -> None:
        self.reason = "lost"

    def _has_lease(self) -> bool:
        """Ask the storage: a process that was stopped for a while does not know yet that it has lost the lease."""
        try:
            return self.reason != "lost" and self.scheduler.beat(self.trial.number)
        except StudyUnavailable:  # then no other worker can take the trial
            return True

    def _spent(self) -> Progress:
        """Return the progress with the cost of this attempt added to those before."""
        cost = self.meter.spent()
        return replace(
            self.progress,
            steps=self._counter.steps,
            cpu=self._before.cpu + cost.cpu,
            spans=(*self._before.spans, (self._began, self._began + cost.wall)),
            run_id=(self._journal and self._journal.run_id) or "",
        )

    def _patiently(self, call: Callable[[], T]) -> T:
        return patiently(call, stop=self.stop, say=self.say)

    def _discard(self) -> None:
        """Delete the checkpoints of a trial that has ended. What MLflow may not have yet stays."""
        for folder in self._base.glob(f"{self.trial.key}*/checkpoints"):
            shutil.rmtree(folder, ignore_errors=True)


def constant_answer(job: TrainingJob, packed: Path, weights: Mapping[str, Any]) -> str:
    """Return the answer that the model gives to nearly all validation samples; empty: it gives several.

    Of a language model only losses are known.
    """
    import torch

    from ratchet import training
    from ratchet.evaluation.problems import answers_to

    target = job.spec.target
    with torch.random.fork_rng(devices=[]):  # building draws initial weights that are discarded
        model = training.build(job.spec)
    model.load_state_dict(weights)
    with contextlib.closing(job.open(packed, "validation")) as split:
        outputs, targets = training.answers(model, split)
    common = answers_to(target, outputs, targets).common
    return common.text if common is not None and common.to_nearly_all else ""


def _objective(name: str, values: Mapping[str, float], parameters: int) -> float:
    return float(parameters) if name == "parameters" else float(values[name])
