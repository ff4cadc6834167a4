"""The doctor against bugs planted for real: each found, and named with a way out; and silence where all is well."""

import os
import random
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from ratchet.data.ingest import ingest
from ratchet.settings.model import DataSettings
from ratchet.training import ModelSpec, Plan, Split, build, open_split
from ratchet.training.doctor import Finding, examine, resources
from ratchet.training.doctor.resources import examine_memory
from ratchet.training.models import Classifier
from tests.training.conftest import make_plan

CPU = torch.device("cpu")
SIDE = 8


class Net(nn.Module):
    """A sound model as a user would write it; those below each get one thing wrong."""

    def __init__(self, classes: int = 3) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.AvgPool2d(2))
        self.hidden = nn.Sequential(nn.Flatten(), nn.Linear(8 * 16, 32), nn.ReLU(), nn.Dropout(0.3))
        self.head = nn.Linear(32, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.head(self.hidden(self.body(images)))


class Softmax(Net):
    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return super().forward(images).softmax(1)


class LogSoftmax(Net):
    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return torch.log_softmax(super().forward(images), 1)


class Sigmoid(Net):
    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(super().forward(images)).squeeze()


class SoftmaxWhenAsked(Net):
    def forward(self, images: torch.Tensor) -> torch.Tensor:
        logits = super().forward(images)
        return logits if self.training else logits.softmax(1)


class MadeInForward(Net):
    def forward(self, images: torch.Tensor) -> torch.Tensor:
        features = self.hidden(self.body(images))
        self.last = nn.Linear(features.shape[1], 3)
        return self.last(features)


class PlainList(Net):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = [nn.Conv2d(8, 8, 3, padding=1) for _ in range(2)]

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        maps = self.body(images)
        for block in self.blocks:
            maps = maps + block(maps)
        return self.head(self.hidden(maps))


class PlainDict(PlainList):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = {"near": (nn.Conv2d(8, 8, 3, padding=1),), "far": (nn.Conv2d(8, 8, 5, padding=2),)}

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        maps = self.body(images)
        return self.head(self.hidden(maps + self.blocks["near"][0](maps) + self.blocks["far"][0](maps)))


class PlainTensor(Net):
    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.ones(1, requires_grad=True)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return super().forward(images) * self.scale


class EvalInForward(Net):
    def forward(self, images: torch.Tensor) -> torch.Tensor:
        self.body.eval()
        return super().forward(images)


class TrainInForward(Net):
    def forward(self, images: torch.Tensor) -> torch.Tensor:
        self.train()
        return super().forward(images)


class DropoutForEver(Net):
    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return super().forward(nn.functional.dropout(images, 0.3))


class Detached(Net):
    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.head(self.hidden(self.body(images).detach()))


class Unused(Net):
    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(32, 32)


class Loud(Net):
    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return 1000 * super().forward(images)


class Blind(Net):
    """The pictures are multiplied away: only a bias per class is left to learn."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return super().forward(images * 0)


class Faint(Net):
    """The head gets features too small to learn from."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.head(1e-6 * self.hidden(self.body(images)))


class KeptLosses(Net):
    def __init__(self) -> None:
        super().__init__()
        self.norms: list[torch.Tensor] = []

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        features = self.hidden(self.body(images))
        self.norms.append(features.norm())
        return self.head(features)


class RunningMean(Net):
    seen: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        logits = super().forward(images)
        if self.training:
            self.seen = 0.9 * self.seen + 0.1 * logits.mean()
        return logits - self.seen


class Frozen(Net):
    def __init__(self) -> None:
        super().__init__()
        self.body.requires_grad_(False)


class Broken(Net):
    def forward(self, images: torch.Tensor) -> torch.Tensor:
        if self.training:
            raise IndexError("no such layer\nand more")
        return super().forward(images)


COPIES = """
import sys, threading, time
from pathlib import Path
import torch
from ratchet.training.checkpoint import CheckpointStore, Snapshot

SIZE = 64 << 20

def used():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

def snapshot(step):
    return Snapshot(step=step, tensors={"weights": torch.full((SIZE // 4,), float(step))}, state={})

snapshot(0)
before, highest, over = used(), 0, False

def watch():
    global highest
    while not over:
        highest = max(highest, used())
        time.sleep(0.001)

watcher = threading.Thread(target=watch)
watcher.start()
with CheckpointStore(Path(sys.argv[1])) as store:
    for step in (1, 2):
        store.put(snapshot(step))
over = True
watcher.join()
print((highest - before) / SIZE)
"""


def split(name: str, rows: int, *, first: int, labels: Any = None, side: int = SIDE, channels: int = 1) -> Split:
    """Noisy pictures whose brightness tells the class."""
    generator = np.random.default_rng(first)
    drawn = np.arange(rows) % 3 if labels is None else np.asarray(labels)
    noise = generator.integers(0, 120, (rows, side, side, channels))
    images = np.clip(noise + 60 * drawn[:, None, None, None], 0, 255).astype(np.uint8)
    return Split(
        name, [images], np.zeros(1, np.int64), drawn.astype(np.int64), np.arange(first, first + rows, dtype=np.uint64)
    )


TRAIN, VALIDATION = split("train", 96, first=0), split("validation", 24, first=1000)
SPEC = ModelSpec("convnet", ("dark", "grey", "light"), 1, SIDE, SIDE, (120.0,), (60.0,))
PLAN = make_plan(epochs=10, batch_size=16, device="cpu", precision="fp32")


@pytest.fixture
def look(tmp_path: Path) -> Callable[..., list[Finding]]:
    """Let the doctor examine a training that is sound but for what is given."""

    def look(
        network: nn.Module | None = None,
        *,
        train: Split = TRAIN,
        validation: Split = VALIDATION,
        plan: Plan = PLAN,
        pretrained: Path | None = None,
    ) -> list[Finding]:
        torch.manual_seed(0)
        model = Classifier(network or Net(), SPEC)
        return examine(
            train, validation, SPEC, plan, model=model, device=CPU, precision="fp32", pretrained=pretrained,
            checkpoints=tmp_path / "checkpoints",
        )  # fmt: skip

    return look


@pytest.mark.parametrize(
    ("network", "check", "told", "way_out"),
    [
        (Softmax, "softmax before the loss", "in training mode the model's answers are those of a softmax", "logits"),
        (LogSoftmax, "log-softmax before the loss", "changes neither loss nor gradients", "logits"),
        (Sigmoid, "sigmoid before the loss", "those of a sigmoid", "logits"),
        (SoftmaxWhenAsked, "softmax before the loss", "in eval mode", "logits"),
        (MadeInForward, "missing from the optimizer", "does not have last.weight, last.bias", "in __init__"),
        (PlainList, "unregistered parameters", "blocks[0].weight, blocks[0].bias, blocks[1].weight", "nn.ModuleList"),
        (PlainDict, "unregistered parameters", "blocks['near'][0].weight", "nn.ModuleDict"),
        (PlainTensor, "unregistered parameters", "does not see scale", "nn.Parameter"),
        (EvalInForward, "training mode", "leaves body, body.0, body.1, body.2 and 1 more in eval mode", ".eval()"),
        (TrainInForward, "eval mode", "leaves the model", ".train()"),
        (DropoutForEver, "eval mode", "got other answers when asked again", "nn.Dropout"),
        (Detached, "no gradient", "no gradient reached body.0, body.1", "detach()"),
        (Unused, "no gradient", "no gradient reached gate", "or remove it"),
        (Loud, "loss at the start", "a model that knows nothing has ln(3) = 1.1", "small weights"),
        (Blind, "input scale", "the normalised images times 0", "remove the normalisation"),
        (Faint, "over-fit one batch", "steps on the same 16 pictures", "keeps pictures and answers apart"),
        (KeptLosses, "kept graph", "norms[0], norms[1]", ".detach()"),
        (RunningMean, "kept graph", "seen keeps the computation", ".detach()"),
        (Frozen, "frozen at random", "body.0.bias, body.0.weight", "model.pretrained"),
        (Broken, "one step", "fails (IndexError: no such layer)", "mend"),
    ],
)
def test_a_bug_in_the_model_is_named_with_the_way_out(
    look: Callable[..., list[Finding]], network: type[nn.Module], check: str, told: str, way_out: str
) -> None:
    found = [finding for finding in look(network()) if finding.check == check]
    assert any(told in finding.told and way_out in finding.way_out for finding in found), found


def test_a_layer_that_only_a_closure_holds_is_seen_in_the_graph(look: Callable[..., list[Finding]]) -> None:
    extra = nn.Linear(64, 3)

    class Closure(Net):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return super().forward(images) + extra(images.flatten(1))

    (finding,) = look(Closure())
    assert finding.check == "unregistered parameters"
    assert "a tensor of shape (3, 64)" in finding.told


@pytest.mark.parametrize(
    ("changes", "check", "told", "way_out"),
    [
        ({"warmup_epochs": 20.0}, "schedule", "more than half of the run of 60 steps (10 epochs)", "shorten"),
        ({"schedule": "step", "step_epochs": 10}, "schedule", "training.step_epochs 10 lies beyond", "constant"),
        ({"schedule": "plateau", "plateau_patience": 9}, "schedule", "the learning rate never falls", "lower it"),
        ({"schedule": "step", "step_epochs": 1}, "schedule", "below a thousandth", "training.step_epochs"),
        ({"max_steps": 3}, "schedule", "the run of 3 steps (0.5 epochs)", "shorten"),
        ({"accumulation": 4}, "batch norm", "mean and variance of 4 samples at a time", "at least 8"),
        ({"batch_size": 2}, "batch norm", "training.batch_size 2", "group or layer norm"),
        (
            {"frozen_epochs": 3, "layer_decay": 0.7},
            "transfer",
            "training.frozen_epochs, training.layer_decay",
            "name it",
        ),
        ({"keep_last": 10**9}, "disk", "1,000,000,002 checkpoints of 0.1 MiB need", "training.keep_last"),
    ],
)
def test_a_setting_nobody_means_is_named_with_the_way_out(
    look: Callable[..., list[Finding]], changes: dict[str, Any], check: str, told: str, way_out: str
) -> None:
    (finding,) = look(plan=replace(PLAN, **changes))
    assert finding.check == check
    assert told in finding.told
    assert way_out in finding.way_out


@pytest.mark.parametrize("loss", ["cross-entropy", "binary-cross-entropy", "mse", "l1", "smooth-l1"])
@pytest.mark.parametrize("optimizer", ["sgd", "adamw", "muon"])
def test_a_sound_model_is_left_in_peace_with_any_loss_and_optimizer(
    look: Callable[..., list[Finding]], loss: str, optimizer: str
) -> None:
    assert look(plan=replace(PLAN, loss=loss, optimizer=optimizer, ema_decay=0.9, class_weights="balanced")) == []


def test_a_softmax_that_the_loss_does_not_take_itself_is_no_bug(look: Callable[..., list[Finding]]) -> None:
    assert look(Softmax(), plan=replace(PLAN, loss="mse")) == []


def test_weights_from_a_file_may_be_frozen_and_spared(look: Callable[..., list[Finding]], tmp_path: Path) -> None:
    plan = replace(PLAN, frozen_epochs=3, layer_decay=0.7)
    assert look(Frozen(), plan=plan, pretrained=tmp_path / "weights.safetensors") == []


def test_a_batch_that_memory_cannot_hold_is_told_before_it_kills(tmp_path: Path) -> None:
    rows, side = 400_000, 128
    picture = split("train", 1, first=0, labels=[1], side=side).shards[0]
    train = Split(
        "train",
        [np.broadcast_to(picture, (rows, side, side, 1))],  # one picture, again and again
        np.zeros(1, np.int64),
        np.broadcast_to(np.int64(1), rows),
        np.arange(rows, dtype=np.uint64) + np.uint64(1 << 20),
    )
    validation = split("validation", 2, first=5, side=side)
    spec = replace(SPEC, height=side, width=side)
    plan = replace(PLAN, batch_size=rows)
    findings = examine(
        train, validation, spec, plan, model=Classifier(build(spec).network, spec), device=CPU, precision="bf16",
        pretrained=None, checkpoints=tmp_path,
    )  # fmt: skip
    assert [finding.check for finding in findings] == ["repeated images", "memory"]
    finding = findings[-1]
    assert "400,000 samples at a time" in finding.told
    assert "training.accumulation" in finding.way_out
    halves = [
        float(next(examine_memory(build(spec), plan, device=CPU, precision=name, rows=rows, activations=10**7)).told
              .partition("at a time ")[2].partition(" GiB")[0])
        for name in ("fp32", "bf16")
    ]  # fmt: skip
    assert halves[0] == pytest.approx(2 * halves[1], rel=1e-3)


def test_four_copies_of_a_checkpoint_are_reckoned(monkeypatch: pytest.MonkeyPatch) -> None:
    """A snapshot, its bytes, the file read back, and the next snapshot, which waits; and the best weights."""
    monkeypatch.setattr(resources, "available_memory", lambda: 0)
    model = nn.Linear(2**14, 2**12, bias=False)  # 256 MiB
    plan = replace(PLAN, optimizer="sgd")  # a checkpoint is 3 times the weights: their best copy, and the momentum
    (finding,) = examine_memory(model, plan, device=CPU, precision="fp32", rows=16, activations=0)
    # weights, gradients and momentum on the device: 2; best weights: 1; copies: 4 of 3
    assert f"needs about {0.25 * (2 + 1 + 4 * 3):.1f} GiB" in finding.told


def test_checkpoint_copies_are_those_that_are_reckoned(tmp_path: Path) -> None:
    """Measured in another process: one checkpoint is written while the next waits."""
    measured = subprocess.run(
        [sys.executable, "-c", COPIES, str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"},
    ).stdout
    assert 3.5 < float(measured) < resources._HOST_COPIES + 0.3


def test_labels_outside_the_classes_are_told(look: Callable[..., list[Finding]]) -> None:
    labels = np.arange(96) % 3
    labels[[5, 50]] = 3, -1
    (finding,) = look(train=split("train", 96, first=0, labels=labels))
    assert finding.told == "2 labels in train are none of 0 to 2, the 3 classes: they are -1, 3"
    ignored = np.where(np.arange(96) % 7, np.arange(96) % 3, -100)
    assert look(train=split("train", 96, first=0, labels=ignored)) == []


def test_a_picture_in_both_splits_is_told(look: Callable[..., list[Finding]]) -> None:
    images, labels = VALIDATION.shards[0].copy(), VALIDATION.labels.copy()
    images[:5], labels[:5] = TRAIN.shards[0][10:15], TRAIN.labels[10:15]
    leaking = Split("validation", [images], VALIDATION.starts, labels, VALIDATION.keys)
    (finding,) = look(validation=leaking)
    assert finding.told.startswith("5 pictures of validation stand in train as well, pixel for pixel")
    assert "out of one of the two" in finding.way_out


def test_a_sample_in_both_splits_is_told_by_its_id(look: Callable[..., list[Finding]]) -> None:
    keys = VALIDATION.keys.copy()
    keys[3] = TRAIN.keys[7]
    (finding,) = look(validation=Split("validation", VALIDATION.shards, VALIDATION.starts, VALIDATION.labels, keys))
    assert finding.told.startswith("1 of 24 validation samples are training samples too")


OWN = """
import random
import numpy as np
import torch
from torch.utils.data import Dataset

class Noisy(Dataset):
    classes = ["dark", "light"]

    def __init__(self, split):
        self.first = {"train": 0, "validation": 100, "test": 200}[split]
        self.generator = np.random.default_rng(0)

    def __len__(self):
        return 24

    def __getitem__(self, index):
        values = np.random.default_rng(self.first + index).integers(0, 100, (1, 8, 8), dtype=np.uint8)
        image = torch.from_numpy(values) + 100 * (index % 2)
        CHANGE
        return image, index % 2
"""
FLIP = "image = image.flip(2) if {} else image"


@pytest.fixture
def own_split(tmp_path: Path) -> Callable[[str], tuple[Split, Split]]:
    """Train and validation of a Dataset of one's own that does something to its images."""

    def own_split(change: str) -> tuple[Split, Split]:
        module = f"own_{abs(hash(change))}"
        (tmp_path / f"{module}.py").write_text(
            OWN.replace("CHANGE", change) + "\ndef make(split):\n    return Noisy(split)\n"
        )
        settings = DataSettings(source="factory", factory=f"{module}:make", code=f"{module}.py", workers=1)
        packed = tmp_path / "data" / "packed"
        ingest(settings, packed=packed, quarantine=tmp_path / "q.parquet", root=tmp_path, report=lambda *_: None)
        return open_split(packed, "train"), open_split(packed, "validation")

    return own_split


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (FLIP.format("self.generator.random() < 0.5"), "differ when read again from the same seed"),
        (FLIP.format("np.random.default_rng().random() < 0.5"), "differ when read again from the same seed"),
        ("torch.manual_seed(0); " + FLIP.format("torch.rand(()) < 0.5"), "__getitem__ seeds torch itself"),
        ("random.seed(index); " + FLIP.format("random.random() < 0.5"), "__getitem__ seeds random itself"),
    ],
)
def test_randomness_that_workers_share_or_epochs_repeat_is_told(
    look: Callable[..., list[Finding]], own_split: Callable[[str], tuple[Split, Split]], change: str, told: str
) -> None:
    train, validation = own_split(change)
    found = [finding for finding in look(train=train, validation=validation) if finding.check == "randomness"]
    assert len(found) == 1
    assert told in found[0].told
    assert "for each sample and epoch" in found[0].way_out


@pytest.mark.parametrize(
    "change",
    [
        "",
        *(
            FLIP.format(f"self.first == 0 and {one} < 0.5")  # in train
            for one in ("torch.rand(())", "random.random()", "np.random.rand()")
        ),
    ],
)
def test_a_sound_dataset_is_left_in_peace(
    look: Callable[..., list[Finding]], own_split: Callable[[str], tuple[Split, Split]], change: str
) -> None:
    train, validation = own_split(change)
    assert look(train=train, validation=validation) == []


def test_nothing_is_changed_by_being_examined(tmp_path: Path) -> None:
    model = Classifier(KeptLosses(), SPEC).train()
    weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    images = TRAIN.shards[0].copy()
    states = random.getstate(), np.random.get_state()[1].tobytes(), torch.get_rng_state()
    found = examine(
        TRAIN, VALIDATION, SPEC, PLAN, model=model, device=CPU, precision="fp32", pretrained=None,
        checkpoints=tmp_path / "not there",
    )  # fmt: skip
    assert [finding.check for finding in found] == ["kept graph"]
    assert random.getstate() == states[0]
    assert np.random.get_state()[1].tobytes() == states[1]
    assert torch.equal(torch.get_rng_state(), states[2])
    assert model.training
    assert model.network.norms == []
    assert all(one.grad is None and one.requires_grad for one in model.parameters())
    assert all(torch.equal(tensor, weights[name]) for name, tensor in model.state_dict().items())
    assert np.array_equal(TRAIN.shards[0], images)
    assert list(tmp_path.iterdir()) == []


def test_the_same_training_gets_the_same_findings(look: Callable[..., list[Finding]]) -> None:
    assert look(Blind()) == look(Blind()) != []


SHIPPED = {"convnet": 8, "resnet": 8, "fastnet": 32}
SAMPLE = {  # of torchvision's classifiers, each at a size it can take
    "resnet18": 32, "mobilenet_v3_small": 32, "efficientnet_b0": 32, "densenet121": 32, "squeezenet1_0": 64,
    "shufflenet_v2_x0_5": 32, "mnasnet0_5": 32, "regnet_y_400mf": 32, "googlenet": 32,
}  # fmt: skip


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", SHIPPED)
def test_no_shipped_model_alarms_it(tmp_path: Path, name: str, seed: int) -> None:
    assert examined(name, SHIPPED[name], seed, tmp_path) == []


@pytest.mark.parametrize("name", SAMPLE)
def test_no_torchvision_model_alarms_it(tmp_path: Path, name: str) -> None:
    assert examined(name, SAMPLE[name], 0, tmp_path) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "side"),
    [
        ("vgg11_bn", 64), ("alexnet", 96), ("convnext_tiny", 64), ("swin_t", 64), ("inception_v3", 96),
        ("resnext50_32x4d", 64), ("mobilenet_v2", 32), ("squeezenet1_1", 64), ("vit_b_16", 224), ("maxvit_t", 224),
    ],
)  # fmt: skip
def test_no_other_torchvision_model_alarms_it(tmp_path: Path, name: str, side: int) -> None:
    findings = examined(name, side, 0, tmp_path)
    assert [finding for finding in findings if finding.check != "memory"] == []  # the machine may be small


def examined(name: str, side: int, seed: int, folder: Path) -> list[Finding]:
    """What is found in a fresh model with the shipped settings, on pictures of noise."""
    train = split("train", 96, first=0, side=side, channels=3)
    validation = split("validation", 24, first=1000, side=side, channels=3)
    spec = ModelSpec(name, SPEC.classes, 3, side, side, (120.0,) * 3, (60.0,) * 3)
    torch.manual_seed(seed)
    model = build(spec)
    if hasattr(model.network, "initialise"):
        with torch.no_grad():
            model.network.initialise(model.normalised(train.batch(np.arange(96), CPU)[0]))
    return examine(
        train, validation, spec, make_plan(seed=seed, device="cpu"), model=model, device=CPU, precision="fp32",
        pretrained=None, checkpoints=folder,
    )  # fmt: skip
