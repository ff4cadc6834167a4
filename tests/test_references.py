"""Settings that name something are checked in a moment by `ratchet set`, and at the start of every run."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from scored import Silent

from ratchet import settings
from ratchet.errors import SettingsError
from ratchet.kinds.registry import KINDS, kind_named
from ratchet.references import broken_references, require_measurable, require_references
from ratchet.registry.mlflow_store import connect, experiment_id
from ratchet.registry.names import name_fault, valid_name
from ratchet.settings import model_names
from ratchet.settings.model import Params
from ratchet.training import models
from ratchet.workspace import Workspace
from tasks.ingest import ingest


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    project = Workspace(tmp_path)
    project.params.write_text(settings.template())
    return project


def params(workspace: Workspace, **changes: object) -> Params:
    return settings.plan(workspace.params, {key.replace("__", "."): value for key, value in changes.items()}).params


EXCLUDING = [  # settings that exclude each other, the beginning of the message, and settings that fix it
    ("training.reduction=fast training.processes=auto", "training.processes: found auto", "training.processes=1"),
    ("training.reduction=fast training.processes=auto", "training.processes: found auto", "training.reduction=exact"),
    ("training.processes=4 training.pieces=2", "training.processes: found 4", "training.pieces=4"),
    ("training.processes=4", "training.processes: found 4", "training.processes=auto"),
    ("training.shard=fsdp training.optimizer=muon", "training.shard: found fsdp", "training.shard=none"),
    ("training.shard=fsdp training.prune_channels=0.5", "training.shard: found fsdp", "training.prune_channels=0"),
    ("training.shard=fsdp training.compile=default", "training.shard: found fsdp", "training.compile=none"),
    ("training.prune_channels=0.5 model.name=baseline", "training.prune_channels: found 0.5", "model.name=auto"),
    ("model.name=blend", "model.name: found blend", "model.name=auto"),
    ("data.kind=table data.gap=7d", "data.gap: found 7d", "data.gap=0"),
    ("data.kind=table data.gap=7d", "data.gap: found 7d", "data.order_by=day"),
    (
        "data.kind=table evaluation.flip_average=true",
        "evaluation.flip_average: found true", "evaluation.flip_average=false",
    ),
    ("data.source=image-folder data.classes=[b,a]", "data.classes: found [b, a]", "data.classes=auto"),
    ("data.source=image-folder data.split_column=fold", "data.split_column: found fold", "data.split_column=split"),
    ("data.source=digits data.group_column=who", "data.group_column: found who", "data.group_column=group"),
    ("data.source=image-folder data.hash=[level_2]", "data.hash: found [level_2]", "data.hash=[]"),
    ("data.kind=tokens data.group_column=who", "data.group_column: found who", "data.group_column=group"),
    (
        "data.kind=table data.problem=regression training.loss=cross-entropy",
        "training.loss: found cross-entropy", "training.loss=auto",
    ),
    (
        "data.kind=table data.problem=regression training.best=validation/f1",
        "training.best: found validation/f1", "training.best=auto",
    ),
    (
        "data.kind=table data.problem=regression gate.minimum_metric=accuracy",
        "gate.minimum_metric: found accuracy", "gate.minimum_metric=r2",
    ),
]  # fmt: skip
BROKEN = {
    "model.pretrained": ("resnet18.safetensors", "there is no file resnet18.safetensors in"),
    "training.teacher": ("big", "there is no model in"),
    "model.name": ("resnet19", "Nearest: resnet18"),
    "model.factory": ("nets.mine:net", "neither nets/mine.py nor nets/mine/__init__.py"),
    "data.kind": ("sounds:Clips", "neither sounds.py nor sounds/__init__.py"),
    "registry.model": ("team/bob's: sales", "Fix: `ratchet set 'registry.model=team-bob-s- sales'`"),
}


@pytest.mark.parametrize("key", BROKEN)
def test_a_missing_thing_is_named_before_a_run(workspace: Workspace, key: str) -> None:
    value, message = BROKEN[key]
    changed = settings.plan(workspace.params, {key: value}).params
    [fault] = broken_references(changed, workspace)
    assert fault.startswith(f"{key}: ")
    assert message in fault
    with pytest.raises(SettingsError, match=rf"^params.yaml: {key}: "):
        require_references(changed, workspace)


@pytest.mark.parametrize(("assignments", "message", "fix"), EXCLUDING)
def test_settings_that_exclude_each_other_are_refused_until_fixed(
    workspace: Workspace, assignments: str, message: str, fix: str
) -> None:
    (workspace.root / "rows.csv").write_text("a,label\n1,2\n")
    wanted = settings.parse_assignments(["data.path=rows.csv", *assignments.split()])
    changed = settings.plan(workspace.params, wanted).params
    [fault] = broken_references(changed, workspace)
    assert fault.startswith(message)
    assert "Fix: " in fault
    with pytest.raises(SettingsError, match=f"^params.yaml: {re.escape(message)}"):
        require_references(changed, workspace)
    fixed = settings.plan(workspace.params, wanted | settings.parse_assignments([fix])).params
    assert list(broken_references(fixed, workspace)) == []
    require_references(fixed, workspace)


OWN_CODE = {  # a setting, how the message begins, and a setting that fixes it
    "function": ("model.factory=nets:f", "model.factory: nets has no function or class f. Allowed: Net", "nets:Net"),
    "class of data": ("data.kind=nets:Made", "data.kind: nets has no function or class Made. Allowed: Net", "nets:Net"),
    "outside": (
        "model.factory=other:Net",
        "model.factory: other (other.py) is outside model.code (nets.py)",
        "other.py",
    ),
    "metric": (
        "evaluation.metrics=[nets:cost]",
        "evaluation.metrics: nets has no function or class cost. Allowed: Net",
        ["nets:Net"],
    ),
    "metric outside": (
        "evaluation.metrics=[other:Net]",
        "evaluation.metrics: other (other.py) is outside model.code (nets.py)",
        "other.py",
    ),
    "loss": ("training.loss=nets:f", "training.loss: nets has no function or class f. Allowed: Net", "nets:Net"),
    "loss outside": (
        "training.loss=other:Net",
        "training.loss: other (other.py) is outside model.code (nets.py)",
        "other.py",
    ),
    "augmentation": (
        "training.augment=[nets:Turn]",
        "training.augment: nets has no function or class Turn. Allowed: Net",
        ["nets:Net"],
    ),
    "augmentation outside": (
        "training.augment=[{flip: 0.5}, other:Net]",
        "training.augment: other (other.py) is outside model.code (nets.py)",
        "other.py",
    ),
    "syntax": ("model.factory=nets:Net", "model.factory: nets does not import (SyntaxError", "none"),
}


@pytest.mark.parametrize("case", OWN_CODE)
def test_names_in_own_code_are_checked_before_a_run(workspace: Workspace, case: str) -> None:
    assignment, message, fix = OWN_CODE[case]
    (workspace.root / "other.py").write_text("class Net: ...\n")
    (workspace.root / "nets.py").write_text("class Net(:\n" if case == "syntax" else "class Net: ...\n")
    code = {"model.code": "nets.py", "data.code": "nets.py", "data.path": "nets.py"}
    key = assignment.partition("=")[0]
    name = settings.parse_assignments([assignment])[key]
    changed = settings.plan(workspace.params, {**code, key: name}).params
    [fault] = broken_references(changed, workspace)
    assert fault.startswith(message)
    with pytest.raises(SettingsError, match=f"^params.yaml: {key}: "):
        require_references(changed, workspace)
    fixing = {"model.code": fix} if f"`ratchet set model.code={fix}`" in fault else {key: fix}
    assert not list(broken_references(settings.plan(workspace.params, {**code, key: name, **fixing}).params, workspace))


def test_own_code_in_two_folders_has_a_fix_that_works(workspace: Workspace) -> None:
    """Setting model.code to each of them in turn would not end."""
    for folder in ("nets", "losses"):
        (workspace.root / folder).mkdir()
        (workspace.root / folder / "own.py").write_text("def f(): ...\n")
    both = {"model__factory": "nets.own:f", "model__code": "nets"}
    [fault] = broken_references(params(workspace, **both, training__loss="losses.own:f"), workspace)
    assert fault.endswith(
        "`ratchet set model.code=losses`; if nets has other code of yours, first move both into one folder"
    )
    (workspace.root / "losses").rename(workspace.root / "nets" / "losses")
    assert list(broken_references(params(workspace, **both, training__loss="nets.losses.own:f"), workspace)) == []


def test_a_metric_with_the_name_of_another_is_refused(workspace: Workspace) -> None:
    (workspace.root / "nets.py").write_text("def accuracy(): ...\ndef cost(): ...\n")
    (workspace.root / "more.py").write_text("def cost(): ...\n")
    for names, fault in (
        (("nets:accuracy",), "nets:accuracy: a metric of Ratchet is called accuracy, too. Fix: rename the function"),
        (("nets:cost_high",), "nets:cost_high: a name with _low or _high at its end is that of a bound of an interval"),
        (("nets:cost", "more:cost"), "nets:cost: another function of evaluation.metrics is called cost, too. Fix"),
        (("nets:cost",), ""),
    ):
        faults = list(broken_references(params(workspace, evaluation__metrics=names, model__code="."), workspace))
        assert [text.startswith(f"evaluation.metrics: {fault}") for text in faults[:1]] == [True] * bool(fault)


@pytest.mark.parametrize(
    "source",
    [
        "from others import make",
        "import functools\nmake = functools.partial(int)",
        "try:\n    import gone\nexcept ImportError:\n    def make(): ...",
        "from others import *",
        "globals()['make'] = int",
    ],
)
def test_any_way_to_define_a_function_is_accepted(workspace: Workspace, source: str) -> None:
    (workspace.root / "nets.py").write_text(source)
    changed = params(workspace, model__factory="nets:make", model__code="nets.py")
    assert list(broken_references(changed, workspace)) == []


UNMEASURABLE = {
    "gate.minimum_metric=own.metrics:cost": "gate.minimum_metric: found own.metrics:cost, which is not in",
    "gate.minimum_metric=mae": "gate.minimum_metric: found mae, and the problem of the data is classification.",
    "evaluation.slices=[camera]": "evaluation.slices: found camera; allowed: auto, or columns of the data: brightness",
}


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """A project with the packed digits."""
    project = Workspace(tmp_path_factory.mktemp("digits"))
    project.params.write_text(settings.template())
    ingest(Params(), project, progress=Silent())
    return project


@pytest.mark.parametrize("assignment", UNMEASURABLE)
def test_what_data_lack_is_named_before_the_training(digits: Workspace, assignment: str) -> None:
    wanted = settings.parse_assignments([assignment])
    changed = settings.plan(digits.params, wanted).params
    [fault] = broken_references(changed, digits)
    assert fault.startswith(UNMEASURABLE[assignment])
    with pytest.raises(SettingsError, match=f"^params.yaml: {assignment.partition('=')[0]}: "):
        require_measurable(changed, digits.packed)
    before = digits.params.read_bytes()
    settings.override(digits.params, wanted)
    done = subprocess.run(
        [sys.executable, "-m", "tasks.train"], cwd=digits.root, capture_output=True, text=True, check=False
    )
    digits.params.write_bytes(before)
    assert (done.returncode, done.stderr.partition(": ")[2][:50]) == (1, f"params.yaml: {fault}"[:50])
    assert not digits.running.exists()
    [fix] = settings.parse_assignments([fault.partition("`ratchet set ")[2].partition("`")[0]]).items()
    fixed = settings.plan(digits.params, dict([fix])).params
    assert list(broken_references(fixed, digits)) == []
    require_measurable(fixed, digits.packed)


def test_settings_of_networks_are_not_refused_for_a_baseline(workspace: Workspace) -> None:
    changed = params(workspace, model__name="baseline", training__reduction="fast", training__processes="auto")
    assert list(broken_references(changed, workspace)) == []


@pytest.mark.parametrize("key", ["data.code", "model.code"])
def test_code_that_dvc_tracks_must_exist_for_every_kind(key: str) -> None:
    root = Path(__file__).parents[1]
    plan = settings.plan(root / "params.yaml", {key: "src/ratchet/training/custom_dataset.py"})
    [fault] = broken_references(plan.params, Workspace(root))
    usual = settings.flatten(Params())[key]
    assert fault.startswith(f"{key}: src/ratchet/training/custom_dataset.py is not a file or folder in ")
    assert fault.endswith(f". Fix: `ratchet set {key}={usual}`")
    with pytest.raises(SettingsError) as refused:
        require_references(plan.params, Workspace(root))
    assert str(refused.value) == f"params.yaml: {fault}"


def test_shipped_settings_name_nothing_that_is_missing(workspace: Workspace) -> None:
    assert list(broken_references(Params(), workspace)) == []


@pytest.mark.parametrize("kind", ["table", "text", "tokens"])
def test_data_that_do_not_exist_are_named(workspace: Workspace, kind: str) -> None:
    changed = params(workspace, data__kind=kind, data__path="data/raw/rows.csv")
    assert [fault for fault in broken_references(changed, workspace) if fault.startswith("data.path: ")]
    (workspace.root / "data" / "raw").mkdir(parents=True)
    (workspace.root / "data" / "raw" / "rows.csv").write_text("a,label\n1,2\n")
    assert list(broken_references(changed, workspace)) == []


def test_a_missing_path_that_only_dvc_reads_is_named(workspace: Workspace) -> None:
    """DVC refused it after ingest, without the setting."""
    (workspace.root / "dvc.yaml").write_text("stages: {ingest: {deps: ['${data.path}']}}\n")
    changed = params(workspace, data__path="no such folder")
    path = workspace.root / "no such folder"
    with pytest.raises(SettingsError, match=rf"^params.yaml: data.path: {path} does not exist") as refused:
        require_references(changed, workspace)
    assert list(broken_references(changed, workspace)) == [str(refused.value).removeprefix("params.yaml: ")]
    assert f"Fix: `mkdir -p '{path}'`" in str(refused.value)
    path.mkdir()
    assert list(broken_references(changed, workspace)) == []


def test_an_empty_folder_of_data_is_named(workspace: Workspace) -> None:
    changed = params(workspace, data__source="image-folder", data__path="data/raw/photos")
    folder = workspace.root / "data" / "raw" / "photos"
    folder.mkdir(parents=True)
    [fault] = broken_references(changed, workspace)
    assert fault.startswith(f"data.path: {folder} is empty. Fix: put the data there")
    (folder / "cats").mkdir()
    assert list(broken_references(changed, workspace)) == []


def test_a_deleted_experiment_is_named_without_mlflow(workspace: Workspace) -> None:
    shipped = Params()
    client = connect(workspace, shipped.tracking)
    experiment = experiment_id(client, workspace, shipped.tracking)
    assert list(broken_references(shipped, workspace)) == []
    client.delete_experiment(experiment)
    [fault] = broken_references(shipped, workspace)
    assert f"mlflow experiments restore --experiment-id {experiment}`" in fault
    client.restore_experiment(experiment)
    assert list(broken_references(shipped, workspace)) == []


def test_names_of_models_equal_those_that_can_be_built() -> None:
    named = [kind_named(kind).networks for kind in KINDS]
    assert {network for networks in named for network in networks.values()} == set(models._NETWORKS)
    assert set(model_names.torchvision_classifiers()) == set(models.torchvision_names())


@pytest.mark.parametrize(
    ("data", "name"),
    [("bob's sales", "bob-s sales"), ("digits", "digits"), ("a/b:c@d", "a-b-c-d"), ("'", "-"), ("..", "model")],
)
def test_the_name_of_a_file_becomes_a_valid_name(data: str, name: str) -> None:
    assert valid_name(data) == name
    assert name_fault(name) is None


def test_set_warns_and_writes(workspace: Workspace) -> None:
    command = [sys.executable, "-m", "commands", "set", "model.name=resnet19"]
    done = subprocess.run(command, cwd=workspace.root, capture_output=True, text=True, check=True)
    assert "warning: model.name: no model for the data's kind, image, is called 'resnet19'" in done.stderr
    assert settings.load(workspace.params).model.name == "resnet19"


@pytest.mark.parametrize("stage", ["ingest", "train", "register"])
def test_every_stage_refuses_before_it_works(workspace: Workspace, stage: str) -> None:
    settings.override(workspace.params, {"model.pretrained": "gone.pt"})
    command = [sys.executable, "-m", f"tasks.{stage}"]
    environment = {"PYTHONPATH": str(Path(__file__).parents[1]), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(command, cwd=workspace.root, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith(f"{stage}: params.yaml: model.pretrained: there is no file gone.pt")
    assert not (workspace.root / "data").exists()
