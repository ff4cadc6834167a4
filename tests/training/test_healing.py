"""Trouble for real: memory that the system refuses, losses that overflow, a disk that is full."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from ratchet.errors import NotFinite
from ratchet.training import Finished, Points, Trouble, models
from ratchet.training.augment import epoch_order

pytestmark = pytest.mark.system

WIDE = """
import torch
from torch import nn


class Wide(nn.Module):
    '''Double precision, no batch norm; each sample's activations take 3 MiB.'''

    def __init__(self, classes):
        super().__init__()
        self.scale = nn.Parameter(torch.linspace(0.1, 1.0, 2048, dtype=torch.float64))
        self.head = nn.Linear(64, classes, dtype=torch.float64)

    def forward(self, images):
        wide = images.double().flatten(1)[:, None] * self.scale[:, None]
        return self.head(wide.tanh().mean(1))


def net(*, classes, channels, height, width):
    return Wide(classes)
"""
LIMITED = """
import json, resource, sys
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

from ratchet.errors import TrainingError
from ratchet.kinds import image_spec
from ratchet.settings.model import TrainingSettings
from ratchet.training import CheckpointStore, Finished, ImageSplit, Started, TrainingInputs, Trouble, fit
from ratchet.training import loop
from tasks.training_job import make_plan

if sys.argv[4] == "given back":  # pieces kept of freed memory lie by chance, and so do the refusals then
    loop.keep_freed_memory = lambda device, keep: None
torch.set_num_threads(1)
root, accumulation, mebibytes = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
drawn = np.random.default_rng(0)
train, validation = (
    ImageSplit.of(name, [drawn.integers(0, 256, (rows, 8, 8, 1), np.uint8)],
          drawn.integers(0, 3, rows), np.arange(rows, dtype=np.uint64))
    for name, rows in (("train", 40), ("validation", 8))
)
own = {"factory": "wide:net", "code": "wide.py", "root": str(root)}
spec = image_spec("convnet", ("a", "b", "c"), 1, 8, 8, (128.0,), (64.0,), **own)
settings = TrainingSettings(
    epochs=2, batch_size=16, accumulation=accumulation, precision="fp32", device="cpu", learning_rate=0.01
)
plan = make_plan(settings, spec.target, seed=0)
try:
    for event in fit(TrainingInputs(train, validation, spec, plan), store=CheckpointStore(root / sys.argv[2])):
        if isinstance(event, Started) and mebibytes:
            pages = int(Path("/proc/self/statm").read_text().split()[0])
            limit = pages * resource.getpagesize() + mebibytes * 2**20
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        if isinstance(event, Trouble):
            print(json.dumps([event.step, event.kind, event.text]))
        if isinstance(event, Finished):
            save_file(event.weights, root / f"{accumulation}.safetensors")
except TrainingError as error:
    sys.exit(str(error))
"""


def train_in(
    mebibytes: int, root: Path, *, accumulation: int, freed: str = "given back"
) -> subprocess.CompletedProcess[str]:
    """Train the wide net in a process that may take so much memory from the first step on; 0: as much as it likes.

    What it frees is given back to the system, or kept as `fit` has it.
    """
    (root / "wide.py").write_text(WIDE)
    return subprocess.run(
        [sys.executable, "-c", LIMITED, str(root), str(accumulation), str(mebibytes), freed],
        # glibc keeps freed memory in pieces, unless it takes every large block from the system.
        env=os.environ | {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_ARENA_MAX": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.skipif(sys.platform != "linux", reason="limits the memory of a process as Linux does")
def test_a_batch_too_large_for_memory_is_split(tmp_path) -> None:
    """It is split until it fits, and the result is the same."""
    limited = train_in(32, tmp_path, accumulation=1)
    assert limited.returncode == 0, limited.stderr
    reported = [json.loads(line) for line in limited.stdout.splitlines()]
    assert reported
    assert [(step, kind) for step, kind, _ in reported] == [(0, "out of memory")] * len(reported)
    assert "not enough memory for a micro-batch of 16 at step 1: continuing with 8" in reported[0][2]
    pieces = 2 ** len(reported)
    assert f"`ratchet set training.accumulation={pieces}`" in reported[-1][2]

    ample = train_in(0, tmp_path, accumulation=pieces)
    assert (ample.returncode, ample.stdout) == (0, "")
    healed, begun = (load_file(tmp_path / f"{count}.safetensors") for count in (1, pieces))
    assert healed.keys() == begun.keys()
    for name, tensor in begun.items():
        torch.testing.assert_close(healed[name], tensor, rtol=1e-12, atol=1e-14, msg=name)


@pytest.mark.skipif(sys.platform != "linux", reason="limits the memory of a process as Linux does")
def test_a_batch_is_split_with_freed_memory_kept(tmp_path) -> None:
    """The result is the same."""
    limited = train_in(32, tmp_path, accumulation=1, freed="kept")
    assert limited.returncode == 0, limited.stderr
    assert {json.loads(line)[1] for line in limited.stdout.splitlines()} == {"out of memory"}
    ample = train_in(0, tmp_path, accumulation=16)
    assert (ample.returncode, ample.stdout) == (0, "")
    healed, begun = (load_file(tmp_path / f"{count}.safetensors") for count in (1, 16))
    for name, tensor in begun.items():
        torch.testing.assert_close(healed[name], tensor, rtol=1e-12, atol=1e-14, msg=name)


@pytest.mark.skipif(sys.platform != "linux", reason="limits the memory of a process as Linux does")
def test_memory_too_small_for_one_sample_is_an_error(tmp_path) -> None:
    """The message is one line with the fix."""
    done = train_in(2, tmp_path, accumulation=1)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "not enough memory for one sample at step 1" in done.stderr
    assert "training.gradient_checkpointing: true or a smaller data.image_size, or use a smaller model" in done.stderr


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_memory_error_in_the_optimizer_changes_no_state(lab, monkeypatch, optimizer: str) -> None:
    """On a GPU the state is made at the first step, on top of all gradients; here the third tensor of it fails once."""
    created, zeros = [], torch.zeros_like

    def scarce(*args, **kwargs):
        created.append(args)
        if len(created) == 3:
            raise torch.OutOfMemoryError("no memory for the optimizer's state")
        return zeros(*args, **kwargs)

    begun = list(lab.events(lab.plan(optimizer=optimizer, accumulation=2), name="begun so"))
    monkeypatch.setattr(torch, "zeros_like", scarce)
    healed = list(lab.events(lab.plan(optimizer=optimizer)))
    assert [(trouble.step, trouble.kind) for trouble in lab.every(healed, Trouble)] == [(0, "out of memory")]
    assert healed[-1].history == begun[-1].history
    lab.assert_same(healed[-1].weights, begun[-1].weights)


class Fragile(nn.Module):
    """Gives no number once its weights have grown too far: a fault that comes again wherever they come again."""

    limit = 1.5  # the norm of its parameters passes it at the sixth step, so the seventh breaks

    def __init__(self, *, classes: int, channels: int, height: int, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(channels * height * width, classes))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        norm = nn.utils.get_total_norm([parameter.detach() for parameter in self.parameters()])
        return self.layers(images) / (norm < self.limit)


class Faulty(Fragile):
    """Gives no number at its sixth step, once, as a memory error of the machine would."""

    steps = 0

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        Faulty.steps += self.training
        return self.layers(images) / (not self.training or Faulty.steps != 6)


def net(lab, monkeypatch: pytest.MonkeyPatch, kind: type[nn.Module]) -> None:
    monkeypatch.setitem(models._networks("image"), "breaking", kind)
    lab.spec = lab.make_spec("breaking")


def plan_of(lab, **changes):
    settings = {"optimizer": "sgd", "schedule": "constant", "learning_rate": 0.05, "clip_norm": 0.0}
    return lab.plan(**{**settings, "rollback_factor": 0.01, **changes})


def reported(lab, events) -> list[tuple[int, int, dict[str, float]]]:
    """Every point as the journal knows it: step, attempt, values."""
    return [(point.step, point.attempt, point.values) for point in lab.every(events, Points)]


def test_a_loss_not_finite_once_causes_one_rollback(lab, monkeypatch) -> None:
    """The run returns to its checkpoint with a lower rate."""
    net(lab, monkeypatch, Faulty)
    monkeypatch.setattr(Faulty, "steps", 0)
    events = list(lab.events(plan_of(lab, rollback_factor=0.5, best="validation/loss")))
    (trouble,) = lab.every(events, Trouble)
    assert (trouble.step, trouble.kind) == (6, "not finite")
    assert "the loss is nan at step 6 (epoch 2, learning rate 0.05): back to step 4" in trouble.text
    assert "0.5 times the learning rate (return 1 of 3 that training.max_rollbacks allows)" in trouble.text
    points = reported(lab, events)
    assert [(step, attempt) for step, attempt, _ in points] == [
        *((step, 0) for step in range(1, 6)),
        *((step, 1) for step in range(5, 13)),
    ]
    for _, attempt, values in points:
        assert values["step/learning_rate"] == 0.05 * 0.5**attempt
    assert points[4][2]["step/loss"] == points[5][2]["step/loss"]  # the same weights, the same batch
    finished = events[-1]
    assert isinstance(finished, Finished)
    assert [row["step"] for row in finished.history] == [4, 8, 12]
    assert all(math.isfinite(value) for row in finished.history for value in row.values())


def test_a_second_rollback_uses_the_checkpoint_before(lab, monkeypatch) -> None:
    """A checkpoint that leads to the fault again is deleted."""
    net(lab, monkeypatch, Fragile)
    events = list(lab.events(plan_of(lab)))
    assert [trouble.text.partition(": ")[2][:14] for trouble in lab.every(events, Trouble)] == [
        "back to step 6",
        "back to step 4",
    ]
    assert isinstance(events[-1], Finished)
    assert [row["train/learning_rate"] for row in events[-1].history] == pytest.approx([0.05, 5e-6, 5e-6])


def test_a_fault_before_the_first_checkpoint_restarts_the_run(lab, monkeypatch) -> None:
    """It starts with the same weights."""
    net(lab, monkeypatch, Fragile)
    events = list(lab.events(plan_of(lab, checkpoint_steps=0, learning_rate=0.5)))
    assert "back to step 0" in lab.every(events, Trouble)[0].text
    points = reported(lab, events)
    again = [values for step, attempt, values in points if step == 1]
    assert len(again) == 2
    assert again[0]["step/loss"] == again[1]["step/loss"]
    assert again[1]["step/learning_rate"] == pytest.approx(0.005)


@pytest.mark.parametrize("returns", [0, 2])
def test_a_permanent_fault_ends_the_run(lab, monkeypatch, returns: int) -> None:
    """The error has the rows of the batch."""
    net(lab, monkeypatch, Fragile)
    events = []
    with pytest.raises(NotFinite, match=r"the loss is nan at step 7 .*lower training\.learning_rate") as refused:
        events.extend(lab.events(plan_of(lab, max_rollbacks=returns, rollback_factor=0.999)))
    assert ("after 2 returns to a checkpoint" in str(refused.value)) == (returns == 2)
    order = epoch_order(len(lab.train), seed=0, epoch=1)
    assert refused.value.rows == tuple(order[16:24])


def test_a_rolled_back_run_resumes_exactly(lab, monkeypatch) -> None:
    """It may be interrupted anywhere, and ends like a run that was not."""
    net(lab, monkeypatch, Fragile)
    plan = plan_of(lab)
    undisturbed = list(lab.events(plan, name="undisturbed"))
    expected = {point[:2]: point[2] for point in reported(lab, undisturbed)}
    _, end = lab.store(plan, "undisturbed").newest()
    assert end.state["rollbacks"] == 2
    for cut in range(1, len(undisturbed)):
        name = f"cut after {cut}"
        before = lab.events(plan, name=name)
        events = [next(before) for _ in range(cut)]
        before.close()
        events += lab.events(plan, name=name)
        seen = {point[:2]: point[2] for point in reported(lab, events)}
        assert seen == expected, name
        assert events[-1].history == undisturbed[-1].history, name
        lab.assert_same(events[-1].weights, undisturbed[-1].weights)
        kept = [
            {path.name: path.read_bytes() for path in lab.store(plan, item).paths()} for item in (name, "undisturbed")
        ]
        assert kept[0] == kept[1], name
