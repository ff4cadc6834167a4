"""cross_validate: the same training on each of several folds of the samples outside test. No stage of DVC.

Each fold is ingested and trained by the stages, in a folder that is named by the digest of everything that decides the
result. A finished fold is stored there. So a killed cross-validation continues in its unfinished fold at the last
checkpoint, and an equal repetition trains nothing. Nothing is evaluated on test samples, and nothing is registered.
"""

import contextlib
import math
import shutil
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ratchet import files
from ratchet.data.manifest import Manifest
from ratchet.errors import DataError, SettingsError, TrackingRefused, TrackingUnavailable
from ratchet.evaluation.cross_validation import CrossValidation, Fold
from ratchet.registry.parents import parent_of
from ratchet.registry.runs import NAME, Run
from ratchet.settings.model import Params
from ratchet.typed_json import parse, to_plain
from ratchet.workspace import Workspace
from tasks.code import stage_files
from tasks.ingest import ingest
from tasks.progress import StageProgress
from tasks.scratch_project import ScratchProject
from tasks.stopping import TrainingStopped
from tasks.train import train
from tasks.trained_model import TrainedModel, run_name
from tasks.training_job import TrainingJob

__all__ = ["cross_validate"]

Progress = Callable[[int], AbstractContextManager[StageProgress]]


class _FoldProject(ScratchProject):
    """The packed data and the training of one fold. MLflow's records and the releases are those of the project."""

    @property
    def project(self) -> Workspace:
        return Workspace(self.root).project

    @property
    def mlruns(self) -> Path:
        return Workspace(self.root).mlruns

    @property
    def releases(self) -> Path:  # type: ignore[override]  # a descriptor that is called in the same way
        return Workspace(self.root).releases

    def clear(self, *, is_last: bool) -> None:
        """Delete the training of a finished fold, and after the last one its data, too."""
        training = (self.running, self.checkpoints, self.model, self.baseline)
        for path in (*training, self.packed, self.reports, self.state) if is_last else training:
            shutil.rmtree(path, ignore_errors=True)


@dataclass
class _CrossValidating:
    """A cross-validation of `count` folds with the settings `params`, whose packed data are current."""

    params: Params
    workspace: Workspace
    count: int
    progress: Progress
    report: Callable[[Fold], None]
    key: str = ""
    trained: int = 0
    packed: int = 0  # fold whose data this process has packed last

    def __post_init__(self) -> None:
        self.key = _key(self.params, self.workspace, self.count)
        self.project = _FoldProject(self.workspace.root, self.workspace.state / "folds" / self.key)
        self.project.folder.mkdir(parents=True, exist_ok=True)

    def run(self) -> CrossValidation:
        """Train the folds that are not stored, and record all of them in MLflow."""
        parent = Run(self.workspace, self.params, f"folds-{self.key}")
        try:
            self._begin(parent)
            if not any(self.project.folder.glob("fold-*.json")):
                self._require_different()
            folds = tuple(self._fold(number, parent) for number in range(1, self.count + 1))
            result = CrossValidation(self.key, "", self.params.evaluation.confidence, folds)
            for name, interval in result.intervals.items():
                ends = {f"{_mean(name)}_low": interval.low, f"{_mean(name)}_high": interval.high}
                parent.measured({_mean(name): interval.value, **ends})
            parent.status("FINISHED")
            result = CrossValidation(self.key, self._send(parent), result.confidence, folds)
        except BaseException as error:
            parent.status("KILLED" if isinstance(error, TrainingStopped | KeyboardInterrupt | SystemExit) else "FAILED")
            with contextlib.suppress(TrackingRefused):
                self._send(parent)
            raise
        finally:
            parent.journal.close()
        self.project.clear(is_last=True)
        return result

    def _begin(self, parent: Run) -> None:
        params = self.params
        values: dict[str, object] = {"seed": params.seed, "folds": self.count}
        for section in ("model", "training", "data"):
            values |= {f"{section}.{name}": value for name, value in getattr(params, section).model_dump().items()}
        parent.settings(values)
        name = run_name(Manifest.read(self.workspace.packed).name, params.model.called, f"{self.count} folds")
        parent.tags({"ratchet.folds": self.key, NAME: name})
        parent.status("RUNNING")
        self._send(parent)

    def _send(self, run: Run) -> str:
        """Return the id of a run in MLflow; empty: it does not answer, and `ratchet sync` sends what waits.

        Raises:
            TrackingRefused: the run is deleted there.
        """
        try:
            return run.send()
        except TrackingRefused:
            raise
        except TrackingUnavailable:
            return ""

    def _fold(self, number: int, parent: Run) -> Fold:
        path = self.project.folder / f"fold-{number}.json"
        is_stored = path.exists()
        fold = parse(Fold, path.read_bytes()) if is_stored else self._trained(number, parent)
        if not fold.run_id:  # MLflow did not answer in an earlier attempt
            fold = replace(fold, run_id=self._tag(fold.key, parent, number, fold.metrics))
        files.write_json(path, to_plain(fold))
        if not is_stored:  # else the checkpoints are those of a later, unfinished fold
            self.project.clear(is_last=False)
        parent.metrics(fold.metrics, step=number)
        self.report(fold)
        return fold

    def _trained(self, number: int, parent: Run) -> Fold:
        project = self.project
        with self.progress(number) as progress:
            params, manifest = self._ingested(number)
            for line in _left_out(project):
                progress.say(line)
            key = TrainingJob.of(params, project, manifest).key
            self._tag(key, parent, number)
            model = train(params, project, progress=progress)
        self.trained += 1
        metrics = _metrics(project, model, params)
        run_id = self._tag(key, parent, number, metrics)
        rows = {name: split.rows for name, split in manifest.splits.items()}
        return Fold(number, key, run_id, rows, model.best_epoch, metrics)

    def _tag(self, key: str, parent: Run, number: int, metrics: Mapping[str, float] = MappingProxyType({})) -> str:
        """Make the run of a fold a child of `parent`, with its metrics beside their means; return its id in MLflow."""
        run = Run(self.project, self.params, key)
        try:
            parent_id = parent.journal.run_id or self._send(parent)
            child_of = {"mlflow.parentRunId": parent_id} if parent_id else {}
            run.tags({"ratchet.folds": self.key, "ratchet.fold": f"{number} of {self.count}", **child_of})
            if metrics:
                run.measured({_mean(name): value for name, value in metrics.items()})
            return self._send(run)
        finally:
            run.journal.close()

    def _ingested(self, number: int) -> tuple[Params, Manifest]:
        """Pack the data of a fold; return the settings with which it is trained, and the manifest."""
        params = _with_data(self.params, folds=self.count, fold=number - 1)
        try:
            if self.packed != number:
                ingest(params, self.project, progress=_Quiet())
                self.packed = number
        except DataError as error:
            where = f"fold {number} of {self.count}"
            raise DataError(f"{where}: {error}. With fewer --folds each fold has more samples") from error
        return params, Manifest.read(self.project.packed)

    def _require_different(self) -> None:
        """Check before the first training that the folds differ: a source may give the validation samples."""
        digests = {self._ingested(number)[1].digest for number in (2, 1)}
        if len(digests) == 1:
            raise DataError(
                f"--folds: found {self.count}, but {self.params.data.path} gives the validation samples, so folds do "
                "not divide them. Allowed: data that give no split, only test, or validation and test. Fix: move the "
                "validation samples to train, or give test samples, too"
            )


class _Quiet:
    """Progress of the ingest of a fold: the ingest of the whole data has reported the same."""

    def update(self, done: int, total: int, note: str = "") -> None:
        """Show nothing."""

    def say(self, text: str) -> None:
        """Show nothing."""


def cross_validate(
    params: Params, workspace: Workspace, folds: int, *, progress: Progress, report: Callable[[Fold], None]
) -> tuple[CrossValidation, int]:
    """Train the settings on each fold; return the result and the number of folds that were trained now.

    Args:
        folds: number of folds, two or more.
        progress: returns the progress of a fold, by its number from 1.
        report: called with each fold that is finished, also with those of an earlier attempt.

    Raises:
        SettingsError: a training needs other machines, which have no data of a fold; or it continues a version.
        TrainingStopped: SIGTERM or Ctrl-C came; the same call continues.
        DataError: a fold lacks samples, or the folds do not differ.
        TrainingError: a training cannot continue.
    """
    nodes = str(params.training.nodes)
    if int(nodes.partition(":")[0]) > 1:
        raise SettingsError(
            f"params.yaml: training.nodes: found {nodes}, and --folds trains on this machine alone. Allowed: 1, or "
            "1:MAX. Fix: `ratchet set training.nodes=1`"
        )
    if parent_of(workspace, params):
        raise SettingsError(
            f"params.yaml: model.pretrained: found {params.model.pretrained}, a version that can have learned from the "
            "samples of any fold, so that all metrics would be too good. Allowed with --folds: weights of other data, "
            "or none. Fix: `ratchet set model.pretrained=none`"
        )
    work = _CrossValidating(_with_data(params, folds=0, fold=0), workspace, folds, progress, report)
    result = work.run()
    files.write_json(workspace.reports / "folds.json", to_plain(result))
    return result, work.trained


def _with_data(params: Params, **changes: object) -> Params:
    return params.model_copy(update={"data": params.data.model_copy(update=changes)})


def _mean(metric: str) -> str:
    """Return the name in MLflow of the mean over folds, and of its part in the run of a fold."""
    return f"folds/{metric.removeprefix('validation/')}"


def _key(params: Params, workspace: Workspace, count: int) -> str:
    """Return the digest of everything that decides the folds' results."""
    job = TrainingJob.of(params, workspace, Manifest.read(workspace.packed))
    data = params.data.model_dump(mode="json", exclude={"workers"})
    content: list[Any] = [count, data, job.identity, stage_files("ingest", params, workspace)]
    return files.digest_json(content)[:16]


def _metrics(project: Workspace, model: TrainedModel, params: Params) -> dict[str, float]:
    """Return the validation metrics of the best epoch, the one that chooses it first.

    Of the average of a network and a baseline only this one is measured.
    """
    best = {model.best_metric: model.best_value}
    if params.model.name == "blend":
        return best
    row = next(row for row in files.read_json(project.model / "history.json") if row["epoch"] == model.best_epoch)
    others = {name: value for name, value in row.items() if name.startswith("validation/") and math.isfinite(value)}
    return {**best, **others}


def _left_out(project: Workspace) -> list[str]:
    """Return a line about the rows that the order of time leaves out of a fold."""
    reasons = files.read_json(project.packed / "profile.json").get("left_out", {})
    counts = [f"{sum(by_split.values()):,} ({reason})" for reason, by_split in reasons.items()]
    return [f"rows left out: {', '.join(counts)}"] if counts else []
