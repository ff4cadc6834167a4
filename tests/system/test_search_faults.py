"""A search that meets bad settings, bad data and bad luck. One worker, in this process; the data are real."""

import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandera.polars  # noqa: F401  # sets variables of the environment as it is imported
import pytest
from waiting import until

from ratchet import settings
from ratchet.errors import SettingsError, StudyError, StudyUnavailable, TrainingError
from ratchet.search.records import Study
from ratchet.search.scheduler import Scheduler, release
from ratchet.search.store import StudyStore
from tasks.search import keep_winner, publish, require_success
from tasks.search_study import begin
from tasks.search_trial import TrialTraining
from tasks.search_worker import new_owner, search_trials

pytestmark = pytest.mark.system

RATE, OPTIMIZER, FACTORY = "training.learning_rate", "training.optimizer", "model.factory"
SETTINGS = {
    "training.epochs": 2, "training.batch_size": 256, "training.precision": "fp32", "training.device": "cpu",
    "training.checkpoint_steps": 0, "training.log_every": 100, RATE: 0.01,
    "search.space": {RATE: {"choice": [0.01, 0.02]}}, "search.trials": 2, "search.seeds": 1, "search.pruner": "none",
    "search.sampler": "grid", "search.study": "digits",
}  # fmt: skip
HUNGRY = """
import torch

from nets.small import net


class Hungry(torch.nn.Module):
    '''Takes more memory than there is for more than so many samples.'''

    def __init__(self, inner, most):
        super().__init__()
        self.inner, self.most = inner, most

    def forward(self, images):
        if self.training and len(images) > self.most:
            torch.empty(2**60)
        return self.inner(images)


def some(**given):
    return Hungry(net(**given), 64)


def all(**given):
    return Hungry(net(**given), 0)
"""


class Watching:
    """Progress that keeps the messages."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def say(self, text: str) -> None:
        self.texts.append(text)

    def update(self, done: int, total: int, note: str = "") -> None:
        """Show nothing."""


@pytest.fixture(scope="module")
def packed(new_project, use_small_net):
    """A project with the digits packed."""
    project = new_project("packed")
    use_small_net(project)
    (project.root / "nets" / "hungry.py").write_text(HUNGRY)
    settings.override(project.workspace.params, SETTINGS)
    project.good(*project.stage("ingest"))
    return project


@pytest.fixture
def search(packed, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Callable[..., Study]]:
    """Change settings and search to the end, in a study and a database of their own."""
    monkeypatch.chdir(packed.root)
    path, name = packed.workspace.params, request.node.name.replace("[", "-").replace("]", "")[:60]
    before = path.read_bytes()

    def run(changes: dict[str, object] | None = None, *, log: list[str] | None = None) -> Study:
        settings.override(path, {"search.study": name, "search.storage": f"sqlite:///mlruns/{name}.db",
                                 "search.folder": f"data/{name}", **(changes or {})})  # fmt: skip
        return run_search(packed, log=log)

    yield run
    path.write_bytes(before)


def run_search(project: Any, *, log: list[str] | None = None) -> Study:
    params, workspace = settings.load(project.workspace.params), project.workspace
    store, study, has_work = begin(params, workspace)
    if has_work:
        say = (log if log is not None else []).append
        search_trials(workspace, store.name, owner=new_owner("test"), stop=lambda: False, say=say)
        study = store.require()
    require_success(study)
    return study


def test_a_loss_that_stays_nan_fails_its_trial(search, packed) -> None:
    """Each step multiplies the weights by 1 - learning_rate * weight_decay. MLflow has the status of every trial."""
    study = search({
        "search.space": {RATE: {"choice": [0.01, 100.0]}}, OPTIMIZER: "sgd", "training.weight_decay": 1.0,
        "training.clip_norm": 0.0, "training.max_rollbacks": 1,
    })  # fmt: skip
    states = {trial.values[RATE]: trial for trial in study.trials}
    assert (states[0.01].state, states[100.0].state) == ("complete", "failed")
    assert "the loss is not finite: " in states[100.0].reason
    assert "Fix: lower training.learning_rate" in states[100.0].reason
    assert study.winner == states[0.01].number
    publish(study, settings.load(packed.workspace.params), packed.workspace, progress=Watching())
    statuses = {number: run.info.status for number, run in trial_runs(packed, study).items()}
    assert statuses == {trial.number: "FAILED" if trial.state == "failed" else "FINISHED" for trial in study.trials}


def test_a_worker_lost_at_a_rung_leaves_no_gap(search, packed, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is lost after the database has the epoch, and before MLflow has it."""

    class Lost(BaseException):
        pass

    record = TrialTraining._record_epoch

    def lose(self, run, row) -> None:
        if self.reason == "end":
            raise Lost
        record(self, run, row)

    path, name, owner = packed.workspace.params, "lost-at-a-rung", new_owner("test")
    settings.override(path, {
        "search.study": name, "search.storage": f"sqlite:///mlruns/{name}.db", "search.folder": f"data/{name}",
        "search.pruner": "successive-halving", "training.epochs": 4,
        "search.space": {RATE: {"choice": [0.01, 0.02, 0.03, 1e-5]}}, "search.trials": 4,
    })  # fmt: skip
    params, workspace = settings.load(path), packed.workspace
    store, _, _ = begin(params, workspace)
    monkeypatch.setattr(TrialTraining, "_record_epoch", lose)
    with pytest.raises(Lost):
        search_trials(workspace, name, owner=owner, stop=lambda: False, say=print)
    monkeypatch.setattr(TrialTraining, "_record_epoch", record)
    assert release(store, owner) == 1
    study = run_search(packed)
    assert sum(trial.losses for trial in study.trials) == 1
    publish(study, params, workspace, progress=Watching())
    runs = trial_runs(packed, study)
    assert {run.info.status for run in runs.values()} == {"FINISHED"}
    for trial in study.trials:
        points = client_of(packed).get_metric_history(runs[trial.number].info.run_id, "validation/accuracy")
        assert [point.step for point in points] == list(range(1, trial.epochs + 1))


def test_a_worker_killed_in_an_outage_leaves_no_gap(search, packed, monkeypatch: pytest.MonkeyPatch) -> None:
    """The storage does not answer after the epochs of a trial. Its next worker continues at its checkpoint."""
    rates = [0.01, 0.02, 0.03, 1e-5]
    changes = {"search.pruner": "successive-halving", "training.epochs": 4, "search.trials": 4,
               "search.space": {RATE: {"choice": rates}}}  # fmt: skip
    undisturbed = search(changes)
    settings.override(packed.workspace.params, {"search.study": "outage", "search.folder": "data/outage"})
    params, workspace, owner = settings.load(packed.workspace.params), packed.workspace, new_owner("test")
    store, _, _ = begin(params, workspace)
    report, killed = Scheduler.report, set()

    class Killed(BaseException):
        pass

    def away(self, number, progress):
        if number in killed:
            return report(self, number, progress)
        if len(progress.curve) < 3:
            raise StudyUnavailable("search.storage: does not answer")
        killed.add(number)
        raise Killed

    monkeypatch.setattr(Scheduler, "report", away)
    while store.require().state != "ended":
        try:
            search_trials(workspace, "outage", owner=owner, stop=lambda: False, say=print)
        except Killed:
            assert release(store, owner) == 1
    study = store.require()
    assert len(killed) == 4
    assert {trial.state for trial in study.trials} == {"complete", "pruned"}
    for trial, expected in zip(study.trials, undisturbed.trials, strict=True):
        assert (trial.curve, trial.state, trial.marks) == (expected.curve, expected.state, expected.marks)
        assert trial.losses == 1


def client_of(project: Any) -> Any:
    from mlflow import MlflowClient

    return MlflowClient(f"sqlite:///{project.root}/mlruns/mlflow.db")


def trial_runs(project: Any, study: Study) -> dict[int, Any]:
    """MLflow's runs of a study's trials, by number."""
    client = client_of(project)
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    runs = client.search_runs(experiments, f"tags.`mlflow.parentRunId` = '{study.run_id}'")
    return {int(run.data.tags["ratchet.trial"]): run for run in runs}


def test_a_search_without_a_good_trial_ends_clearly(search) -> None:
    with pytest.raises(StudyError) as refused:
        search({
            "search.space": {RATE: {"choice": [90.0, 100.0]}}, RATE: 90.0, OPTIMIZER: "sgd",
            "training.weight_decay": 1.0, "training.clip_norm": 0.0, "training.max_rollbacks": 0,
        })  # fmt: skip
    assert "all 2 trials failed. The first one: the loss is not finite" in str(refused.value)
    assert "Fix: correct the cause or the space" in str(refused.value)


def test_too_little_memory_is_healed_or_recorded(search) -> None:
    log: list[str] = []
    names = ["nets.small:net", "nets.hungry:some", "nets.hungry:all"]
    study = search({"search.space": {FACTORY: {"choice": names}}, "search.trials": 3}, log=log)
    trials = {trial.values[FACTORY]: trial for trial in study.trials}
    assert [trials[name].state for name in names] == ["complete", "complete", "failed"]
    assert "not enough memory for one sample" in trials["nets.hungry:all"].reason
    assert any("not enough memory for a micro-batch of 256" in text for text in log)


def test_settings_that_do_not_fit_fail_their_trial(search) -> None:
    """A model that is not there, a device that is not there, a file that is not there."""
    space = {
        FACTORY: {"choice": ["none"]}, "model.name": {"choice": ["auto", "no[red]such<b>net"]},
        "training.device": {"choice": ["cpu", "cuda:77"]},
    }  # fmt: skip
    changes = {FACTORY: "none", "search.trials": 9, "training.epochs": 2}
    study = search({"search.space": space, **changes})
    assert len(study.trials) == 4
    good = [trial for trial in study.trials if trial.state == "complete"]
    assert [trial.values["model.name"] for trial in good] == ["auto"]
    assert all(trial.reason for trial in study.trials if trial.state == "failed")
    assert any("no[red]such<b>net" in trial.reason for trial in study.trials)


def test_a_device_that_is_not_there_fails_no_trial(search, packed) -> None:
    with pytest.raises(TrainingError, match=r"training.device: cuda:77 is not on this machine"):
        search({"training.device": "cuda:77"})
    params = settings.load(packed.workspace.params)
    assert not StudyStore(packed.workspace, params.search.storage, params.search.study).require().trials
    study = search({"training.device": "cpu", "search.study": "corrected"})
    assert {trial.state for trial in study.trials} == {"complete"}


def test_edited_settings_are_not_overwritten(search, packed) -> None:
    study = search()
    path = packed.workspace.params
    settings.override(path, {"training.momentum": 0.5})
    before, progress = path.read_bytes(), Watching()
    assert keep_winner(study, packed.workspace, progress=progress) == {}
    assert path.read_bytes() == before
    (text,) = progress.texts
    assert "params.yaml was changed since the search began (training.momentum), so the winner is not written" in text
    best = study.trials[study.winner or 0]
    assert f"`ratchet set {RATE}={best.values[RATE]}`" in text
    settings.override(path, {"training.momentum": 0.9})
    keep_winner(study, packed.workspace, progress=progress)
    assert settings.load(path).training.learning_rate == best.values[RATE]
    assert settings.load(path).search.winner.startswith(f"{study.name}/{study.winner}:")


def test_other_settings_code_or_data_are_another_study(search, packed) -> None:
    study = search()
    with pytest.raises(StudyError) as refused:
        search({"training.weight_decay": 0.5, "search.trials": 3})
    text = str(refused.value)
    assert "the study was begun with other settings, data or code: training.weight_decay was 1.0e-4, is now 0.5" in text
    assert "begin another study: `ratchet set search.study=NAME`" in text
    settings.override(packed.workspace.params, {"training.weight_decay": 1.0e-4})
    with pytest.raises(StudyError, match=r"search.sampler was grid, is now random"):
        search({"search.sampler": "random"})
    with pytest.raises(StudyError, match=r"search.space was "):
        search({"search.sampler": "grid", "search.space": {RATE: {"choice": [0.01, 0.03]}}})
    settings.override(packed.workspace.params, {"search.space": dict(study.search.space)})
    code, kept = packed.root / "nets" / "small.py", packed.root / "kept"
    before = code.read_text()
    try:
        code.write_text(before + "\nCHANGED = True\n")
        assert_not_continued(study, search, packed, r"nets/small.py changed")
    finally:
        code.write_text(before)
    shutil.copytree(packed.workspace.packed, kept)
    try:
        settings.override(packed.workspace.params, {"data.validation_fraction": 0.3})
        packed.good(*packed.stage("ingest"))
        assert_not_continued(study, search, packed, "data/packed changed")
    finally:
        settings.override(packed.workspace.params, {"data.validation_fraction": 0.15})
        shutil.rmtree(packed.workspace.packed)
        kept.rename(packed.workspace.packed)


def assert_not_continued(study: Study, search: Callable[..., Study], packed: Any, match: str) -> None:
    """Neither by the command nor by a worker that joins."""
    with pytest.raises(StudyError, match=match):
        search({"search.trials": 3})
    with pytest.raises(StudyError, match=match):
        search_trials(packed.workspace, study.name, owner="other", stop=lambda: False, say=print)


def test_data_that_change_during_a_search_fail_no_trial(search, packed) -> None:
    """The worker ends; its trial waits, and the same command continues when the data are back."""
    manifest = packed.workspace.packed / "manifest.json"
    before = manifest.read_text()
    changed = threading.Event()

    def change() -> None:
        until(lambda: list((packed.root / "data").glob(f"{name}/*/*/steps")), pause=0.001)
        manifest.unlink()
        changed.set()

    name = "test_data_that_change_during_a_search_fail_no_trial"
    thread = threading.Thread(target=change)
    thread.start()
    try:
        with pytest.raises(Exception, match=r"manifest.json"):
            search({"search.trials": 4, "search.space": {RATE: {"choice": [0.01, 0.02, 0.03, 0.04]}}})
    finally:
        thread.join()
        manifest.write_text(before)
    study = search()
    assert {trial.state for trial in study.trials} == {"complete"}
    assert len(study.trials) == 4


def test_several_objectives_are_recorded(search) -> None:
    study = search({
        "search.objective": ["validation/accuracy", "validation/loss", "parameters"], "search.pruner": "auto",
        "search.sampler": "tpe",
    })  # fmt: skip
    assert study.maximize == (True, False, False)
    assert all(len(trial.objectives) == 3 for trial in study.trials)
    assert all(trial.objectives[2] == 1386 for trial in study.trials)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"search.space": {}}, "search.space: it is empty, so there is nothing to try"),
        ({"search.objective": "validation/rmse"}, "search.objective: found validation/rmse"),
        ({"search.objective": ["parameters", "parameters"]}, "with one twice"),
        ({"model.factory": "none", "model.name": "baseline"}, "model.name: found baseline, which has no settings"),
    ],
)  # fmt: skip
def test_nonsense_is_refused_before_a_study_begins(changes: dict[str, object], expected: str, search) -> None:
    with pytest.raises(SettingsError, match=expected):
        search(changes)


def test_a_folder_that_cannot_be_made_is_named(search) -> None:
    with pytest.raises(OSError, match="/proc/search"):
        search({"search.folder": "/proc/search"})


def test_no_trial_opens_the_test_split(search, packed) -> None:
    """Its files are absent during the search, the seeds of finalists included."""
    place, aside = packed.workspace.packed / "test", packed.root / "aside"
    place.rename(aside)
    try:
        study = search({"search.seeds": 2, "search.finalists": 1, "search.pruner": "successive-halving"})
    finally:
        aside.rename(place)
    assert study.winner is not None
    assert any(trial.seed_of is not None and trial.state == "complete" for trial in study.trials)


def table(folder: Path) -> dict[str, object]:
    rows = [f"{place % 7},{(place * 5) % 11},{'ab'[(place % 7) > 3]}" for place in range(300)]
    (folder / "table.csv").write_text("\n".join(["first,second,label", *rows]))
    return {"data.kind": "table", "data.path": "data/raw/table.csv"}


def texts(folder: Path) -> dict[str, object]:
    for label, parts in (("good", ("fine", "great", "kind")), ("bad", ("poor", "dull", "weak"))):
        (folder / label).mkdir()
        for place in range(60):
            text = f"{parts[place % 3]} thing number {place} {parts[(place + 1) % 3]}"
            (folder / label / f"{place}.txt").write_text(text)
    return {"data.kind": "text", "data.path": "data/raw"}


@pytest.mark.parametrize("kind", [table, texts])
def test_other_kinds_are_searched(kind: Callable[[Path], dict[str, object]], project, monkeypatch) -> None:
    folder = project.root / "data" / "raw"
    folder.mkdir(parents=True, exist_ok=True)
    data = kind(folder)
    space = {RATE: {"choice": [0.01, 0.02]}, OPTIMIZER: {"choice": ["adamw", "sgd"]}}
    settings.override(
        project.workspace.params,
        {**SETTINGS, **data, "training.batch_size": 32, "search.space": space, "search.trials": 4, "search.seeds": 2},
    )
    project.good(*project.stage("ingest"))
    monkeypatch.chdir(project.root)
    study = run_search(project)
    assert len(study.searched) == 4
    assert {trial.state for trial in study.trials} == {"complete"}
    assert study.winner is not None
