"""The user's hooks: called on every event, without a change of one bit, their errors named and survived."""

import json
import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch

from ratchet.data.manifest import Manifest
from ratchet.errors import SettingsError, TrainingError
from ratchet.references import require_references
from ratchet.registry.journal import Journal
from ratchet.settings.model import Params, TrainingSettings
from ratchet.training import load_model
from ratchet.workspace import Workspace
from tasks.code import completed_settings, own_code
from tasks.hooks import Hooks
from tasks.ingest import ingest
from tasks.stopping import TrainingStopped
from tasks.summary import _records
from tasks.train import train
from tasks.trained_model import TrainedModel
from tasks.training_job import TrainingJob

RECORDS = """
import json

def write(record):
    numbers = [record.event, record.step, record.epoch, sorted(record.metrics), record.best, len(record.history)]
    with open("events.jsonl", "a") as file:
        file.write(json.dumps(numbers) + "\\n")

def weights(record):
    if record.weights is not None:
        import torch
        torch.save(record.weights, f"{record.event}-{record.step}.pt")

weights.weights = True
"""
HOSTILE = """
import os, random, warnings
import numpy as np
import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

torch.set_default_dtype(torch.float64)
torch.manual_seed(1)

class Zeros(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        return torch.zeros_like(function(*args, **(kwargs or {})))

class Seen(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        raise RuntimeError("an operation of the training")

def spoil(record):
    for name in record.metrics:
        record.metrics[name] = float("nan")
    for row in record.history:
        row.clear()
    record.history.clear()
    for tensor in (record.weights or {}).values():
        tensor.zero_()
    (record.weights or {}).clear()
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    torch.set_grad_enabled(False)
    torch.inference_mode().__enter__()
    torch.autocast("cpu").__enter__()
    torch.set_default_dtype(torch.float64)
    torch.set_default_device("meta")
    torch.use_deterministic_algorithms(False)
    torch.set_num_threads(3)
    torch.set_float32_matmul_precision("medium")
    torch.set_flush_denormal(True)
    torch.autograd.set_detect_anomaly(True)
    torch.backends.mkldnn.enabled = False
    torch.backends.cudnn.benchmark = True
    np.seterr(all="raise")
    warnings.simplefilter("error")
    os.chdir("/")
    torch.nn.modules.module.register_module_forward_hook(lambda module, inputs, output: output * 0)
    register_optimizer_step_pre_hook(lambda optimizer, *_: optimizer.param_groups.clear())
    Zeros().__enter__()
    Seen().__enter__()

spoil.weights = True
"""


class Notes:
    """Records the messages of a stage."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def update(self, done: int, total: int, note: str = "") -> None:
        """Record nothing."""

    def say(self, text: str) -> None:
        self.texts.append(text)

    @property
    def about_hooks(self) -> list[str]:
        return [text for text in self.texts if "training.hooks" in text]


Trained = tuple[Workspace, Notes]


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The digits, packed once."""
    workspace = Workspace(tmp_path_factory.mktemp("packed").resolve())
    ingest(Params(), workspace, progress=Notes())
    return workspace.root


@pytest.fixture
def trained(packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Trained]:
    """Train two epochs of three steps with hooks from `plots.py`, in the folder `name`."""

    def run(code: str = "", *hooks: str, name: str = "project", **changes: Any) -> Trained:
        root = tmp_path.resolve() / name
        if not root.exists():
            shutil.copytree(packed, root)
        (root / "plots.py").write_text(code)
        monkeypatch.chdir(root)
        notes = Notes()
        train(settings(hooks, **changes), Workspace(root), progress=notes)
        return Workspace(root), notes

    return run


def settings(hooks: tuple[str, ...], **changes: Any) -> Params:
    changed = {"epochs": 2, "batch_size": 512, "log_every": 1, "checkpoint_steps": 2, "device": "cpu", **changes}
    return Params(training=TrainingSettings(hooks=hooks, **changed))


def weights(workspace: Workspace) -> bytes:
    return (workspace.model / "model.safetensors").read_bytes()


def events(workspace: Workspace) -> list[list[Any]]:
    return [json.loads(line) for line in (workspace.root / "events.jsonl").read_text().splitlines()]


def test_hooks_get_every_event_and_weights_of_checkpoints(trained) -> None:
    workspace, notes = trained(RECORDS, "plots:write", "plots:weights")
    written = events(workspace)
    assert [event[:3] for event in written if event[0] != "epoch"] == [
        ["start", 0, 0], ["step", 1, 1], ["step", 2, 1], ["checkpoint", 2, 0], ["step", 3, 1], ["checkpoint", 3, 1],
        ["step", 4, 2], ["checkpoint", 4, 1], ["step", 5, 2], ["step", 6, 2], ["checkpoint", 6, 1],
        ["checkpoint", 6, 2], ["end", 6, 2],
    ]  # fmt: skip
    epochs = [event for event in written if event[0] == "epoch"]
    assert [event[1:3] for event in epochs] == [[3, 1], [6, 2]]
    assert {"train/loss", "validation/accuracy"} < set(epochs[0][3])
    assert [event[5] for event in epochs] == [1, 2]
    best = load_model(workspace.model)[0].state_dict()
    stored = torch.load(workspace.root / "end-6.pt")
    assert best.keys() == stored.keys()
    assert all(torch.equal(best[name], tensor) for name, tensor in stored.items())
    assert (workspace.root / "checkpoint-2.pt").exists()
    assert notes.about_hooks == []
    summary = records(workspace)["hooks"]
    assert summary.startswith("plots:write: 15 calls, ")
    assert "; plots:weights: 15 calls, " in summary


def records(workspace: Workspace) -> dict[str, str]:
    """Return what the summary of a run says of its training's records."""
    return _records(workspace, TrainedModel.load(workspace))


@pytest.mark.parametrize("changes", [{}, {"processes": 2, "pieces": 2}], ids=["one process", "two processes"])
def test_hostile_hooks_change_no_bit(trained, changes: dict[str, Any]) -> None:
    """They seed, switch PyTorch's settings, enter modes, register global hooks and spoil what they get."""
    plain, _ = trained(name="plain", pieces=changes.get("pieces", 1))
    hooked, notes = trained(HOSTILE, "plots:spoil", name="hooked", **changes)
    assert weights(hooked) == weights(plain)
    assert (hooked.model / "history.json").read_bytes() == (plain.model / "history.json").read_bytes()
    assert notes.about_hooks == []


BREAKS = """
def draw(record):
    if record.event in ("step", "end"):
        numbers = []
        numbers[record.step]

def leave(record):
    raise SystemExit(3)
"""


def test_a_failing_hook_is_reported_once_and_training_goes_on(trained) -> None:
    workspace, notes = trained(BREAKS, "plots:draw", "plots:leave")
    assert notes.about_hooks == [
        "training.hooks: plots:leave failed at step 0, event start: plots.py, line 8, SystemExit: 3. The training goes "
        "on. Fix: correct the hook",
        "training.hooks: plots:draw failed at step 1, event step: plots.py, line 5, IndexError: list index out of "
        "range. The training goes on. Fix: correct the hook",
    ]
    assert ", failed 7 times, first at step 1, event step: plots.py, line 5, IndexError" in records(workspace)["hooks"]
    key = TrainedModel.load(workspace).key
    with closing(Journal(workspace.mlruns / "journal" / key)) as journal:
        troubles = [entry.content for entry in journal.entries(0) if entry.kind == "trouble"]
    assert [(each["kind"], each["step"]) for each in troubles] == [("hook", 0), ("hook", 1)]


STOPS = (
    RECORDS
    + """
import os, signal

def stop(record):
    if record.event == "step" and record.step == 4 and not os.path.exists("stopped"):
        open("stopped", "w").close()
        os.kill(os.getpid(), signal.SIGTERM)
"""
)


def test_a_resumed_training_calls_hooks_with_the_steps_that_follow(trained) -> None:
    plain, _ = trained(name="plain")
    with pytest.raises(TrainingStopped):
        trained(STOPS, "plots:write", "plots:stop")
    workspace, _ = trained(STOPS, "plots:write", "plots:stop")
    names = [event[:2] for event in events(workspace)]
    stopped = names.index(["stop", 4])
    assert names[stopped + 1] == ["start", 4]
    assert [step for name, step in names if name == "step"] == [1, 2, 3, 4, 5, 6]
    assert weights(workspace) == weights(plain)


def test_another_hook_leaves_the_training_as_it_is(trained) -> None:
    workspace, _ = trained(RECORDS, "plots:write")
    job = [
        TrainingJob.of(settings(hooks), workspace, Manifest.read(workspace.packed)) for hooks in ((), ("plots:new",))
    ]
    assert job[0].key == job[1].key
    assert completed_settings(settings(())) == completed_settings(settings(("plots:new",)))
    assert own_code(settings(("plots:new",)), workspace.root, "train") == []


@pytest.mark.parametrize(
    ("code", "name", "message"),
    [
        ("def draw():\n    pass\n", "plots:draw",
         r"plots:draw \(plots.py, line 1\) cannot be called with one record .*Fix: write `def NAME\(record\):`"),
        ("\n\ndef draw(record, step):\n    pass\n", "plots:draw", r"\(plots.py, line 3\) .*missing .*'step'"),
        ("class Draw:\n    def __call__(self, record):\n        pass\n", "plots:Draw", "is a class. Fix: write `hook"),
        ("async def draw(record):\n    pass\n", "plots:draw", r"\(plots.py, line 1\) does nothing .*Fix: leave out"),
        ("def draw(record):\n    yield\n", "plots:draw", "does nothing when it is called"),
        ("import nothing_here\n", "plots:draw", r"plots does not import \(ModuleNotFoundError.*plots.py, line 1$"),
        ("\ndef draw(record:\n", "plots:draw", r"plots does not import \(SyntaxError.*plots.py, line 2$"),
        ("def other(record):\n    pass\n", "plots:draw", "plots has no function or class draw. Allowed: other"),
        ("draw = 3\n", "plots:draw", "plots has no function or class draw. Allowed: none"),
        ("", "plotting:draw", "no module plotting: there is neither plotting.py nor"),
        ("", "json:dumps", "the name json is taken by an installed package. Fix: rename"),
    ],
)  # fmt: skip
def test_a_wrong_hook_is_refused_before_the_training(tmp_path: Path, code: str, name: str, message: str) -> None:
    (tmp_path / "plots.py").write_text(code)
    with pytest.raises(TrainingError, match=f"^training.hooks: .*{message}") as caught:
        Hooks.load((name,), Workspace(tmp_path))
    assert "\n" not in str(caught.value)


def test_a_missing_hook_is_found_by_the_settings(tmp_path: Path) -> None:
    """So `ratchet set` warns, and a run is refused before ingest."""
    (tmp_path / "plots.py").write_text("def draw(record):\n    pass\n")
    for name, message in (("plots:other", "no function or class other. Allowed: draw"), ("plot:draw", "no module of")):
        with pytest.raises(SettingsError, match=f"training.hooks: .*{message}"):
            require_references(settings((name,)), Workspace(tmp_path))


def test_an_import_of_a_hook_changes_no_setting(tmp_path: Path) -> None:
    (tmp_path / "plots.py").write_text(HOSTILE)
    state = torch.get_rng_state()
    Hooks.load(("plots:spoil",), Workspace(tmp_path))
    assert torch.get_default_dtype() == torch.float32
    assert torch.equal(torch.get_rng_state(), state)
