"""simulate: months of a table, answered and trained again by each trigger, through the stages. No stage of DVC.

Each training, its answers and each verdict of the gate is stored under the key of the simulation, so that a killed one
goes on. All triggers share the trainings. Each has its own registered name, and so its own champion and gate.
"""

import re
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from filelock import FileLock

import ratchet
from ratchet import files, settings
from ratchet.code.closure import closure
from ratchet.data.manifest import Manifest
from ratchet.errors import DataError, SettingsError, TrainingError
from ratchet.monitoring.rule import DriftRule
from ratchet.monitoring.sketch import Reference
from ratchet.monitoring.triggers import CALENDAR, Answered, History, TriggerComparison, compare, triggers_of
from ratchet.registry.models import ModelRegistry
from ratchet.registry.parents import parent_of
from ratchet.serving.versions.alias_watcher import load
from ratchet.settings.model import Params
from ratchet.typed_json import STRICT, parse, to_plain
from ratchet.workspace import Workspace
from tasks.code import choice, stage_files
from tasks.evaluate import evaluate
from tasks.export import export
from tasks.ingest import ingest
from tasks.progress import StageProgress
from tasks.register import register
from tasks.scratch_project import ScratchProject
from tasks.timeline import Timeline
from tasks.train import train

__all__ = ["Simulation", "simulate"]

_OPEN = {  # gate of a model whose answers are needed whatever the gate of a trigger decides
    "gate.minimum_metric": "none",
    "gate.baseline": "report",
    "gate.constant": "off",
    "gate.calibration_error": 1.0,
}
_SAME = {
    "gate.latency_factor": 0.0,
    "training.doctor": "never",
    "training.hooks": [],
    "training.profile": 0,
    "registry.promotion": "automatic",
}
"""Settings with which a simulation has the same result each time."""


class Simulation(NamedTuple):
    """Result of a simulation. `same_as_last`: loss per row of answers that repeat the label of the row before."""

    comparison: TriggerComparison
    same_as_last: float
    folder: Path


class _Quiet:
    """Progress of a stage inside a simulation: nothing of it is shown."""

    def update(self, done: int, total: int, note: str = "") -> None:
        """Show nothing."""

    def say(self, text: str) -> None:
        """Show nothing: it is about each of many trainings."""


class _Training(ScratchProject):
    """One training of a simulation. MLflow's records and the ledger are those of the simulation."""

    @property
    def mlruns(self) -> Path:
        return self.folder.parent / "mlruns"

    @property
    def state(self) -> Path:
        return self.folder.parent / "state"


@dataclass(frozen=True)
class _Model:
    """Bins of a trained model, and its answers in all later periods."""

    reference: Reference
    cpu_hours: float
    answered: list[Answered]

    __pydantic_config__ = STRICT


@dataclass
class _Simulated(History):
    """Trains and answers where a step is not stored yet."""

    workspace: Workspace
    params: Params
    timeline: Timeline
    folder: Path
    periods: int
    memory: int
    progress: StageProgress

    def __post_init__(self) -> None:
        self._models: dict[int, _Model] = {}
        self._chains: dict[str, list[int]] = {}  # trainings of each trigger

    def answered(self, model: int, period: int) -> Answered:
        return self._model(model).answered[period - model - 1]

    def reference(self, model: int) -> Reference:
        return self._model(model).reference

    def cpu_seconds(self, model: int) -> float:
        return 3600 * self._model(model).cpu_hours

    def champion_after(self, trigger: str, champion: int, period: int) -> int:
        chain = self._chains.setdefault(trigger, [0])
        chain.append(period)
        path = self.folder / "verdicts" / f"{files.digest_json(chain)[:16]}.json"  # a name has at most 255 bytes
        if not path.exists():  # the same trainings one after another have the same verdicts under any name
            for model in chain:
                passed = self._registered(trigger, model)
            files.write_json(path, {"trainings": chain, "passed": passed})
        return period if files.read_json(path)["passed"] else champion

    def _registered(self, trigger: str, number: int) -> bool:
        """Let the gate judge a model under the name of a trigger, and return whether it passed."""
        name = re.sub(r"[^a-z0-9]+", "-", trigger.lower()).strip("-")
        path = self.folder / "registrations" / f"{name}-{number:02}.json"
        if not path.exists():
            self._model(number)
            registered = register(self._params(number, name), self._training(number), progress=_Quiet())
            if not number and registered.version is None:
                raise TrainingError(
                    f"the first model does not pass the gate: {registered.summary}. Fix: `ratchet set` the limits "
                    "under gate, or fewer --periods, so that it has more rows"
                )
            self.progress.say(f"{trigger}, period {number}: {registered.summary}")
            files.write_json(path, {"passed": registered.version is not None})
        return bool(files.read_json(path)["passed"])

    def _model(self, number: int) -> _Model:
        """Return a model with its answers. Train it, if that is not stored."""
        if number not in self._models:
            path = self.folder / "models" / f"{number:02}.json"
            if not path.exists():
                files.write_json(path, to_plain(self._trained(number)))
                self.progress.update(number + 1, self.periods, f"trained with the rows up to period {number}")
            self._models[number] = parse(_Model, path.read_bytes())
        return self._models[number]

    def _trained(self, number: int) -> _Model:
        params, training, quiet = self._params(number), self._training(number), _Quiet()
        for stage in (ingest, train, evaluate, export):
            stage(params, training, progress=quiet)
        registered = register(params, training, progress=quiet)
        if registered.version is None:
            raise TrainingError(f"period {number}: {registered.summary}")
        registry = ModelRegistry(training, params)
        version = registry.find(f"{registered.model}/{registered.version}")
        with tempfile.TemporaryDirectory() as folder:
            loaded = load(registry, version, Path(folder), threads=1, variant=params.serving.variant)
            reference = parse(Reference, loaded.reference.read_bytes())
            later = range(number + 1, self.periods + 1)
            answered = [self.timeline.answered(loaded, reference, period) for period in later]
        if not number and not any(each.rows for each in answered):
            raise DataError(
                f"data.path: no row after the first of {self.periods + 1} spans of time has a label that the model of "
                "this span knows. Fix: another --time column, fewer --periods, or labels of all spans"
            )
        cost = registry.client.get_run(version.run_id).data.metrics.get("cost/cpu_hours", 0.0)
        return _Model(reference, cost, answered)

    def _training(self, number: int) -> _Training:
        return _Training(self.workspace.root, self.folder / f"period-{number:02}")

    def _params(self, number: int, name: str = "") -> Params:
        """Return the settings of a training; `name`: of a registered model with the gate of the project."""
        training = self._training(number)
        training.folder.mkdir(parents=True, exist_ok=True)
        training.params.write_bytes((self.folder / "params.yaml").read_bytes())
        rows = training.folder / "rows.csv"
        changes = self.timeline.write(rows, number, self.memory) | training.own | _SAME
        changes |= {"tracking.artifacts": (self.folder / "artifacts").as_uri()}
        changes |= {"registry.ledger": f"sqlite:///{training.mlruns / 'ledger.db'}"}
        changes |= {"registry.model": name} if name else {"registry.model": f"period-{number:02}", **_OPEN}
        return settings.override(training.params, changes)


def simulate(
    params: Params, workspace: Workspace, time: str, *, periods: int, memory: int, price: float, progress: StageProgress
) -> Simulation:
    """Simulate the table data.path by its dates in a column, or continue a killed simulation.

    Args:
        periods: after the first model.
        memory: latest periods whose rows train a model.
        price: of a training, as a share of the loss of a period.

    Raises:
        SettingsError: the trainings continue a registered version.
        DataError: there is no such column of dates, or there are too few windows.
    """
    if parent_of(workspace, params):
        raise SettingsError(
            f"params.yaml: model.pretrained: found {params.model.pretrained}, a version that can have learned from "
            "rows of later periods, so that all answers would be too good. Allowed in a simulation: weights of other "
            "data, or none. Fix: `ratchet set model.pretrained=none`"
        )
    chosen = params.monitoring
    rule = DriftRule(chosen.window * 60, chosen.season, chosen.alpha, chosen.good_windows)
    timeline = Timeline.read(params.data, time, root=workspace.root, periods=periods, window=rule.window)
    decides = params.model_dump(mode="json", exclude={"alerts", "platform", "tracking", "access", "budget"})
    code = [stage_files(name, params, workspace) for name in ("ingest", "train", "evaluate", "export", "register")]
    code.append(closure(["tasks.simulate"], stage="simulate", choice=choice(params), code=[], root=workspace.root))
    content = [decides, code, timeline.digest, time, periods, memory, ratchet.__version__]
    folder = workspace.state / "simulations" / files.digest_json(content)[:16]
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / "lock"):
        own = folder / "params.yaml"
        if not own.exists():  # the file may be edited while this runs
            files.write_bytes(own, workspace.params.read_bytes())
        history = _Simulated(workspace, params, timeline, folder, periods, memory, progress)
        comparison = compare(history, triggers_of(rule, CALENDAR), price=price, seed=params.seed)
        target = Manifest.read(folder / "period-00" / "packed").target
        return Simulation(comparison, timeline.same_as_last(target), folder)
