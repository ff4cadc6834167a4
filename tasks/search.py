"""Search for better settings with worker processes on this machine, and write the winner to params.yaml."""

import contextlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ratchet import files, settings
from ratchet.errors import StudyError, StudyUnavailable, TrackingUnavailable
from ratchet.hardware import cores
from ratchet.registry.runs import Run
from ratchet.registry.trial_runs import end_trials
from ratchet.scale.calls import ShardCall
from ratchet.scale.local import ShardWorker, map_here
from ratchet.search.finalists import winner
from ratchet.search.records import OPEN, Study
from ratchet.search.scheduler import release
from ratchet.search.store import StudyStore
from ratchet.settings.messages import spell
from ratchet.settings.model import Params
from ratchet.settings.search_space import winner_id
from ratchet.workspace import HOLDER_VARIABLE, Workspace
from tasks.progress import StageProgress
from tasks.search_study import begin
from tasks.search_worker import new_owner
from tasks.stopping import TrainingStopped, on_request

__all__ = ["Searched", "keep_winner", "publish", "run_workers", "search"]

_LOOK = 1.0  # seconds between two looks at the study
_PATIENCE = 300.0  # seconds for a worker to write its checkpoints after SIGTERM
_STATUSES = {"waiting": "KILLED", "pruned": "FINISHED", "complete": "FINISHED", "failed": "FAILED"}
"""MLflow's status by the state of a trial."""


@dataclass(frozen=True)
class Searched:
    """End of a search. `changes`: settings that it has written to params.yaml, (before, after) by dotted key."""

    study: Study
    changes: Mapping[str, tuple[Any, Any]]
    table: Path
    did_work: bool


def search(params: Params, workspace: Workspace, *, progress: StageProgress) -> Searched:
    """Begin or continue the study of these settings, wait for its end, and write the winner to params.yaml.

    Raises:
        SettingsError: the space is empty or wrong.
        StudyError: the study cannot be continued here, or every trial has failed.
    """
    store, study, has_work = begin(params, workspace)
    if has_work:
        run_workers(params, workspace, store, progress=progress)
        study = store.require()
    publish(study, params, workspace, progress=progress)
    require_success(study)
    changes = keep_winner(study, workspace, progress=progress) if study.state == "ended" else {}
    return Searched(store.require(), changes, table_of(study, workspace), has_work)


def run_workers(params: Params, workspace: Workspace, store: StudyStore, *, progress: StageProgress) -> None:
    """Search with processes on this machine until the study ends.

    Raises:
        TrainingStopped: SIGTERM or Ctrl-C came, or `ratchet search stop`; every trial has a checkpoint.
        StudyError: a worker found other data or code here than those of the study.
    """
    workers = workers_of(params)
    owners = [new_owner(f"worker-{number}") for number in range(len(workers))]
    calls = [
        ShardCall(
            "tasks.search_worker:work",
            {"study": store.name, "owner": owner, "threads": int(worker.environment["OMP_NUM_THREADS"])},
        )
        for worker, owner in zip(workers, owners, strict=True)
    ]

    def lost(place: int) -> bool:
        with contextlib.suppress(StudyUnavailable):  # then its lease runs out
            return release(store, owners[place]) > 0
        return True

    logs = logs_of(workspace, store.name)
    if os.environ.get(HOLDER_VARIABLE) != str(workspace.root):  # several can join in one folder
        logs = logs / f"join-{os.getpid()}"
    with on_request() as stop:
        watch = _Watch(store, progress, stop)
        for _ in map_here(calls, workers, logs=logs, patience=_PATIENCE, tick=watch.look, on_loss=lost):
            pass  # what a worker has done is in the study
    study = store.require()
    _show(study, progress)
    if study.stop:
        raise TrainingStopped(f"{store.name}: stopped. To continue: `ratchet search resume {store.name}`")
    if study.state != "ended":
        raise TrainingStopped(f"{store.name}: all workers were stopped; the same command continues")


@dataclass
class _Watch:
    """Shows the progress of a study until this process is asked to stop."""

    store: StudyStore
    progress: StageProgress
    stop: Callable[[], bool]
    due: float = 0.0

    def look(self) -> None:
        if self.stop():
            raise TrainingStopped(
                f"{self.store.name}: stopped; every trial has a checkpoint, and the same command continues"
            )
        if time.monotonic() < self.due:
            return
        self.due = time.monotonic() + _LOOK
        with contextlib.suppress(StudyUnavailable):  # the workers wait for it, and say so
            if study := self.store.read():
                _show(study, self.progress)


def _show(study: Study, progress: StageProgress) -> None:
    ended = sum(trial.state in ("complete", "pruned", "failed") for trial in study.searched)
    best = study.ranked()[:1]
    note = f"best {study.objectives[0]} {best[0].value:.4f} (trial {best[0].number})" if best else ""
    progress.update(ended, study.search.trials, note)


def workers_of(params: Params) -> list[ShardWorker]:
    """Return the workers of this machine: one for as many GPUs, or cores, as a trial has processes."""
    own_cores, gpus = cores(), _gpus(params)
    processes = 1 if params.training.processes == "auto" else params.training.processes
    count = params.search.workers or max(1, (gpus or len(own_cores)) // processes)
    groups: list[Sequence[int]] = [own_cores[place::count] for place in range(count)]
    workers = []
    for place, group in enumerate(groups):
        own = list(group) if len(own_cores) >= count else []
        threads = max(1, len(own))
        environment = {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
        if gpus:
            numbers = dict.fromkeys((place * processes + number) % gpus for number in range(processes))
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(map(_visible, numbers))
        workers.append(ShardWorker(environment, () if gpus else own))
    return workers


def _gpus(params: Params) -> int:
    if params.training.device not in ("auto", "cuda"):
        return 0
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def _visible(place: int) -> str:
    """Return the name of a GPU among those that this process may use."""
    visible = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    return visible[place] if visible else str(place)


def logs_of(workspace: Workspace, name: str) -> Path:
    """Return the folder with the output of a study's workers."""
    return workspace.state / "search" / name


def table_of(study: Study, workspace: Workspace) -> Path:
    """Return the path of a study's table of trials."""
    return workspace.reports / f"search-{study.name}.csv"


def require_success(study: Study) -> None:
    """Check that a trial has a value.

    Raises:
        StudyError: every trial has failed.
    """
    failed = [trial for trial in study.searched if trial.state == "failed"]
    if study.state == "ended" and failed and not study.ranked():
        raise StudyError(
            f"{study.name}: all {len(failed)} trials failed. The first one: {failed[0].reason}. Fix: correct the cause "
            "or the space, then begin another study: `ratchet set search.study=NAME`"
        )
    constant = [trial.constant for trial in study.ranked() if trial.constant]
    if study.state == "ended" and constant and winner(study) is None:
        raise StudyError(
            f"{study.name}: every complete trial gives one answer to nearly all validation samples, such as "
            f"{constant[0]}, so none wins and the settings stay. Fix: look at data and labels (`ratchet "
            "preflight`), or begin another study with another search.objective: `ratchet set search.study=NAME`"
        )


def publish(study: Study, params: Params, workspace: Workspace, *, progress: StageProgress) -> None:
    """Write the table and the plots of a study, and record both with its result in MLflow."""
    from ratchet.reports.search_plots import write_plots

    table = table_of(study, workspace)
    files.write_text(table, _csv(study))
    plots = write_plots(study, table.with_suffix(""))
    run = Run(workspace, params, f"study-{study.name}")
    try:
        best = winner(study)
        if best is not None:
            run.measured({f"search/{study.objectives[0]}": best.mean, "search/trials": float(len(study.searched))})
            run.tags({"ratchet.winner": f"{study.name}/{best.trial.number}"})
        run.status("FINISHED" if study.state == "ended" else "KILLED")
        run_id = run.send()
        statuses = {trial.key: _STATUSES[trial.state] for trial in study.trials if trial.state != "running"}
        ended = {trial.key: trial.run_id for trial in study.trials if trial.state not in OPEN}
        end_trials(workspace, params, run_id, statuses, ended)
        from ratchet.registry.models import ModelRegistry

        ModelRegistry(workspace, params).log_files(run_id, dict.fromkeys([table, *plots], "search"))
    except TrackingUnavailable as error:
        progress.say(str(error))
    finally:
        run.journal.close()


def keep_winner(study: Study, workspace: Workspace, *, progress: StageProgress) -> dict[str, tuple[Any, Any]]:
    """Write the winner's settings to params.yaml, and return what has changed. Comments stay.

    Nothing is written if another setting that decides a training has changed since the study began.
    """
    best = winner(study)
    if best is None:
        return {}
    now = settings.load(workspace.params)
    values = {**best.trial.values, "search.winner": winner_id(study.name, best.trial.number, best.trial.values)}
    before = settings.dotted(now.model_dump(mode="json"))
    changes = {key: (before[key], value) for key, value in values.items() if before[key] != value}
    if edited := _edited(study, now):
        assignments = " ".join(f"{key}={spell(value)}" for key, value in best.trial.values.items())
        progress.say(
            f"params.yaml was changed since the search began ({', '.join(edited[:5])}), so the winner is not written. "
            f"To write it: `ratchet set {assignments}`"
        )
        return {}
    if changes:
        settings.override(workspace.params, values)
    changes.pop("search.winner", None)
    return changes


def _edited(study: Study, now: Params) -> list[str]:
    """Return the settings outside the space that differ from those of the study."""
    sections = ("seed", "data", "model", "training")
    before = settings.dotted({name: study.params[name] for name in sections})
    today = settings.dotted({name: value for name, value in now.model_dump(mode="json").items() if name in sections})
    return [key for key, value in today.items() if before.get(key) != value and key not in study.search.space]


def _csv(study: Study) -> str:
    import csv
    import io

    output = io.StringIO()
    keys = list(study.search.space)
    writer = csv.writer(output, lineterminator="\n")
    first = ("state", "seed_of", "seed", "epochs")
    writer.writerow(["trial", *first, *study.objectives, *keys, "steps", "cpu_seconds", "mlflow_run", "reason"])
    for trial in study.trials:
        scores = trial.objectives or ((trial.value,) if trial.value is not None else ())
        values = [*scores, *[""] * (len(study.objectives) - len(scores))]
        begin = [trial.number, *(getattr(trial, name) for name in first)]
        chosen = [trial.values.get(key, "") for key in keys]
        writer.writerow([*begin, *values, *chosen, trial.steps, f"{trial.cpu:.1f}", trial.run_id, trial.reason])
    return output.getvalue()
