"""The doctor reports planted bugs and bad settings, gives no finding for sound trainings, and changes nothing."""

import math
import os
import random
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from ratchet.data.ingest import IngestTask, ingest
from ratchet.kinds import image_spec
from ratchet.settings.model import DataSettings
from ratchet.training import ImageSplit, Plan, Split, build, doctor, open_split
from ratchet.training.doctor import Finding, describe_finding, examine, settings_checks
from ratchet.training.doctor.rules import RULES
from ratchet.training.doctor.settings_checks import check_memory
from ratchet.training.models import ImageModel
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


class SoftmaxInEval(Net):
    def forward(self, images: torch.Tensor) -> torch.Tensor:
        logits = super().forward(images)
        return logits if self.training else logits.softmax(1)


class CreatedInForward(Net):
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


class DropoutInEval(Net):
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
    """Images are multiplied by 0: only a bias per class can be learned."""

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
before, highest, over = used(), 0, threading.Event()

def watch():
    global highest
    while not over.wait(0.001):
        highest = max(highest, used())

watcher = threading.Thread(target=watch)
watcher.start()
with CheckpointStore(Path(sys.argv[1])) as store:
    for step in (1, 2):
        store.put(snapshot(step))
over.set()
watcher.join()
print((highest - before) / SIZE)
"""


def split(name: str, rows: int, *, first: int, labels: Any = None, side: int = SIDE, channels: int = 1) -> Split:
    """Noisy images whose brightness depends on the class."""
    generator = np.random.default_rng(first)
    drawn = np.arange(rows) % 3 if labels is None else np.asarray(labels)
    noise = generator.integers(0, 120, (rows, side, side, channels))
    images = np.clip(noise + 60 * drawn[:, None, None, None], 0, 255).astype(np.uint8)
    return ImageSplit.of(name, [images], drawn.astype(np.int64), np.arange(first, first + rows, dtype=np.uint64))


def pixels(split: Split) -> NDArray[np.uint8]:
    """Return the first shard, not a copy of it."""
    return split.arrays[0].shards[0]


TRAIN, VALIDATION = split("train", 96, first=0), split("validation", 24, first=1000)
SPEC = image_spec("convnet", ("dark", "grey", "light"), 1, SIDE, SIDE, (120.0,), (60.0,))
PLAN = make_plan(epochs=10, batch_size=16, device="cpu", precision="fp32")


@pytest.fixture
def look(tmp_path: Path) -> Callable[..., list[Finding]]:
    """Examine a training that is sound except for the arguments."""

    def look(
        network: nn.Module | None = None,
        *,
        train: Split = TRAIN,
        validation: Split = VALIDATION,
        plan: Plan = PLAN,
        pretrained: Path | None = None,
    ) -> list[Finding]:
        torch.manual_seed(0)
        model = ImageModel(network or Net(), SPEC)
        return examine(
            train, validation, SPEC, plan, model=model, device=CPU, precision="fp32", pretrained=pretrained,
            checkpoints=tmp_path / "checkpoints",
        )  # fmt: skip

    return look


def expect(rule: str, *subject: str, **values: object) -> Callable[[Finding], bool]:
    """Return whether a finding is of this rule, its subject begins with these names, and it has these values."""

    def fits(finding: Finding) -> bool:
        same = finding.rule == rule and finding.subject[: len(subject)] == subject
        return same and values.items() <= finding.values.items() and bool(describe_finding(finding).fix)

    return fits


@pytest.mark.parametrize(
    ("network", "expected"),
    [
        (Softmax, expect("activation-before-loss", mode="training", function="softmax")),
        (LogSoftmax, expect("redundant-log-softmax")),
        (Sigmoid, expect("activation-before-loss", function="sigmoid")),
        (SoftmaxInEval, expect("activation-before-loss", mode="eval", function="softmax")),
        (CreatedInForward, expect("missing-from-optimizer", "last.weight", "last.bias")),
        (PlainList, expect("unregistered-parameters", "blocks[0].weight", "blocks[0].bias", "blocks[1].weight")),
        (PlainDict, expect("unregistered-parameters", "blocks['near'][0].weight")),
        (PlainTensor, expect("unregistered-parameters", "scale")),
        (EvalInForward, expect("training-mode-left", "body", "body.0", "body.1", "body.2", "body.3")),
        (TrainInForward, expect("eval-mode-left", "the model")),
        (DropoutInEval, expect("random-in-eval")),
        (Detached, expect("no-gradient", "body.0", "body.1")),
        (Unused, expect("no-gradient", "gate")),
        (Loud, expect("first-loss-high", formula="ln(3) = ", chance=pytest.approx(math.log(3)))),
        (Blind, expect("constant-input", mode="training")),
        (Faint, expect("cannot-overfit", samples=16)),
        (KeptLosses, expect("kept-graph", "norms[0]", "norms[1]")),
        (RunningMean, expect("kept-graph", "seen")),
        (Frozen, expect("frozen-at-random", "body.0.bias", "body.0.weight")),
        (Broken, expect("step-fails", error="IndexError: no such layer")),
    ],
)
def test_bug_in_the_model_is_reported(
    look: Callable[..., list[Finding]], network: type[nn.Module], expected: Callable[[Finding], bool]
) -> None:
    findings = look(network())
    assert any(map(expected, findings)), findings


def test_layer_held_by_a_closure_is_found_in_the_graph(look: Callable[..., list[Finding]]) -> None:
    extra = nn.Linear(64, 3)

    class Closure(Net):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return super().forward(images) + extra(images.flatten(1))

    (finding,) = look(Closure())
    assert finding.rule == "unregistered-parameters"
    assert "a tensor of shape (3, 64)" in finding.subject


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"warmup_epochs": 20.0}, expect("endless-warmup", warmup=20.0, steps=60, epochs=10.0)),
        ({"warmup_epochs": 8.0}, expect("long-warmup", warmup=8.0, steps=60, epochs=10.0)),
        ({"schedule": "step", "step_epochs": 10}, expect("late-step", step_epochs=10)),
        ({"schedule": "plateau", "plateau_patience": 9}, expect("late-plateau", patience=9)),
        ({"schedule": "step", "step_epochs": 1}, expect("low-learning-rate")),
        ({"max_steps": 3}, expect("endless-warmup", steps=3, epochs=0.5)),
        ({"accumulation": 4}, expect("small-micro-batch", samples=4, fewest=8)),
        ({"batch_size": 2}, expect("small-micro-batch", batch_size=2)),
        (
            {"frozen_epochs": 3, "layer_decay": 0.7},
            expect("transfer-without-weights", "training.frozen_epochs", "training.layer_decay"),
        ),
        ({"keep_last": 10**9}, expect("disk-space", count=10**9 + 2)),
    ],
)
def test_setting_that_is_hardly_intended_is_reported(
    look: Callable[..., list[Finding]], changes: dict[str, Any], expected: Callable[[Finding], bool]
) -> None:
    (finding,) = look(plan=replace(PLAN, **changes))
    assert expected(finding), finding


def test_every_rule_has_a_text_and_is_documented() -> None:
    files = [path for path in Path(doctor.__file__).parent.glob("*.py") if path.name != "rules.py"]
    source = "".join(path.read_text() for path in files).replace(
        'f"{mode}-mode-left"', '"eval-mode-left" "training-mode-left"'
    )
    page = (Path(__file__).parents[2] / "docs" / "preflight.md").read_text()
    assert {*re.findall(r'Finding\.of\(\s*"([a-z-]+)"', source)} <= RULES.keys()
    assert [rule for rule in RULES if f'"{rule}"' not in source or f"`{rule}`" not in page] == []


@pytest.mark.parametrize("loss", ["cross-entropy", "binary-cross-entropy", "mse", "l1", "smooth-l1"])
@pytest.mark.parametrize("optimizer", ["sgd", "adamw", "muon"])
def test_sound_model_gets_no_finding_with_any_loss(
    look: Callable[..., list[Finding]], loss: str, optimizer: str
) -> None:
    assert look(plan=replace(PLAN, loss=loss, optimizer=optimizer, ema_decay=0.9, class_weights="balanced")) == []


def test_softmax_before_another_loss_is_no_bug(look: Callable[..., list[Finding]]) -> None:
    assert look(Softmax(), plan=replace(PLAN, loss="mse")) == []


def test_pretrained_weights_may_be_frozen(look: Callable[..., list[Finding]], tmp_path: Path) -> None:
    plan = replace(PLAN, frozen_epochs=3, layer_decay=0.7)
    assert look(Frozen(), plan=plan, pretrained=tmp_path / "weights.safetensors") == []


def test_batch_larger_than_memory_is_reported(tmp_path: Path) -> None:
    rows, side = 400_000, 128
    image = split("train", 1, first=0, labels=[1], side=side).arrays[0].shards[0]
    train = ImageSplit.of(
        "train",
        [np.broadcast_to(image, (rows, side, side, 1))],  # one image, repeated
        np.broadcast_to(np.int64(1), rows),
        np.arange(rows, dtype=np.uint64) + np.uint64(1 << 20),
    )
    validation = split("validation", 2, first=5, side=side)
    spec = replace(SPEC, input=replace(SPEC.image, height=side, width=side))
    plan = replace(PLAN, batch_size=rows)
    findings = examine(
        train, validation, spec, plan, model=ImageModel(build(spec).network, spec), device=CPU, precision="bf16",
        pretrained=None, checkpoints=tmp_path,
    )  # fmt: skip
    assert [finding.rule for finding in findings] == ["repeated-images", "memory"]
    assert findings[-1].values["samples"] == 400_000
    assert "400,000 samples at a time" in describe_finding(findings[-1]).problem
    full, half = (
        next(check_memory(build(spec), plan, device=CPU, precision=name, rows=rows, activations=10**7)).values["batch"]
        for name in ("fp32", "bf16")
    )
    assert full == pytest.approx(2 * half, rel=1e-3)


def test_memory_includes_four_copies_of_a_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    """A snapshot, its bytes, the file read back, and the next snapshot, which waits; and the best weights."""
    monkeypatch.setattr(settings_checks, "available_memory", lambda: 0)
    model = nn.Linear(2**14, 2**12, bias=False)  # 256 MiB
    plan = replace(PLAN, optimizer="sgd")  # a checkpoint is 3 times the weights: their best copy, and the momentum
    (finding,) = check_memory(model, plan, device=CPU, precision="fp32", rows=16, activations=0)
    # weights, gradients and momentum on the device: 2; best weights: 1; copies: 4 of 3
    assert finding.values["need"] == 0.25 * (2 + 1 + 4 * 3)


def test_measured_checkpoint_copies_are_those_expected(tmp_path: Path) -> None:
    """Measured in another process: one checkpoint is written while the next waits."""
    measured = subprocess.run(
        [sys.executable, "-c", COPIES, str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"},
    ).stdout
    assert 3.5 < float(measured) < settings_checks._HOST_COPIES + 0.3


def test_labels_outside_the_classes_are_reported(look: Callable[..., list[Finding]]) -> None:
    labels = np.arange(96) % 3
    labels[[5, 50]] = 3, -1
    (finding,) = look(train=split("train", 96, first=0, labels=labels))
    assert describe_finding(finding).problem == "2 labels in train are not 0 to 2 (3 classes): -1, 3"
    ignored = np.where(np.arange(96) % 7, np.arange(96) % 3, -100)
    assert look(train=split("train", 96, first=0, labels=ignored)) == []


def test_image_in_both_splits_is_reported(look: Callable[..., list[Finding]]) -> None:
    images, labels = pixels(VALIDATION).copy(), VALIDATION.targets.copy()
    images[:5], labels[:5] = pixels(TRAIN)[10:15], TRAIN.targets[10:15]
    leaking = ImageSplit.of("validation", [images], labels, VALIDATION.keys)
    (finding,) = look(validation=leaking)
    assert expect("leak-by-pixels", count=5)(finding)


def test_sample_id_in_both_splits_is_reported(look: Callable[..., list[Finding]]) -> None:
    keys = VALIDATION.keys.copy()
    keys[3] = TRAIN.keys[7]
    (finding,) = look(validation=replace(VALIDATION, keys=keys))
    assert expect("leak-by-id", count=1, of=24)(finding)


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
    """Return train and validation of a custom Dataset that changes its images."""

    def own_split(change: str) -> tuple[Split, Split]:
        module = f"own_{abs(hash(change))}"
        (tmp_path / f"{module}.py").write_text(
            OWN.replace("CHANGE", change) + "\ndef make(split):\n    return Noisy(split)\n"
        )
        settings = DataSettings(source="factory", factory=f"{module}:make", code=f"{module}.py", workers=1)
        packed = tmp_path / "data" / "packed"
        ingest(IngestTask(settings, packed=packed, quarantine=tmp_path / "q.parquet", root=tmp_path))
        return open_split(packed, "train"), open_split(packed, "validation")

    return own_split


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (FLIP.format("self.generator.random() < 0.5"), expect("unseeded-dataset", of=8)),
        (FLIP.format("np.random.default_rng().random() < 0.5"), expect("unseeded-dataset", of=8)),
        ("torch.manual_seed(0); " + FLIP.format("torch.rand(()) < 0.5"), expect("seeding-in-dataset", "torch")),
        ("random.seed(index); " + FLIP.format("random.random() < 0.5"), expect("seeding-in-dataset", "random")),
    ],
)
def test_unseeded_or_reseeded_dataset_is_reported_once(
    look: Callable[..., list[Finding]],
    own_split: Callable[[str], tuple[Split, Split]],
    change: str,
    expected: Callable[[Finding], bool],
) -> None:
    """Workers would share the numbers, or epochs would repeat them."""
    train, validation = own_split(change)
    findings = [each for each in look(train=train, validation=validation) if each.rule.endswith("-dataset")]
    assert len(findings) == 1
    assert expected(findings[0])


@pytest.mark.parametrize(
    "change",
    [
        "",
        *(
            FLIP.format(f"self.first == 0 and {draw} < 0.5")  # in train
            for draw in ("torch.rand(())", "random.random()", "np.random.rand()")
        ),
    ],
)
def test_sound_dataset_gets_no_finding(
    look: Callable[..., list[Finding]], own_split: Callable[[str], tuple[Split, Split]], change: str
) -> None:
    train, validation = own_split(change)
    assert look(train=train, validation=validation) == []


def test_examined_training_is_unchanged(tmp_path: Path) -> None:
    model = ImageModel(KeptLosses(), SPEC).train()
    weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    images = pixels(TRAIN).copy()
    states = random.getstate(), np.random.get_state()[1].tobytes(), torch.get_rng_state()
    findings = examine(
        TRAIN, VALIDATION, SPEC, PLAN, model=model, device=CPU, precision="fp32", pretrained=None,
        checkpoints=tmp_path / "not there",
    )  # fmt: skip
    assert [finding.rule for finding in findings] == ["kept-graph"]
    assert random.getstate() == states[0]
    assert np.random.get_state()[1].tobytes() == states[1]
    assert torch.equal(torch.get_rng_state(), states[2])
    assert model.training
    assert model.network.norms == []
    assert all(parameter.grad is None and parameter.requires_grad for parameter in model.parameters())
    assert all(torch.equal(tensor, weights[name]) for name, tensor in model.state_dict().items())
    assert np.array_equal(pixels(TRAIN), images)
    assert list(tmp_path.iterdir()) == []


def test_the_same_training_gets_the_same_findings(look: Callable[..., list[Finding]]) -> None:
    assert look(Blind()) == look(Blind()) != []


SHIPPED = {"convnet": 8, "resnet": 8, "fastnet": 32}
SAMPLE = {  # of torchvision's classifiers, each at a size it can take
    "resnet18": 32, "mobilenet_v3_small": 32, "efficientnet_b0": 32, "densenet121": 32, "squeezenet1_1": 64,
    "shufflenet_v2_x0_5": 32, "mnasnet0_5": 32, "regnet_y_400mf": 32, "googlenet": 32,
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "seed"), [("convnet", 0), ("convnet", 1), ("resnet", 0), ("resnet", 1), ("fastnet", 0)]
)
def test_shipped_model_gets_no_finding(tmp_path: Path, name: str, seed: int) -> None:
    assert examined(name, SHIPPED[name], seed, tmp_path) == []


@pytest.mark.system
@pytest.mark.parametrize("name", SAMPLE)
def test_torchvision_model_gets_no_finding(tmp_path: Path, name: str) -> None:
    assert examined(name, SAMPLE[name], 0, tmp_path) == []


@pytest.mark.slow
@pytest.mark.parametrize(("name", "side"), [("convnext_tiny", 64), ("swin_t", 64), ("inception_v3", 96)])
def test_large_torchvision_model_gets_no_finding(tmp_path: Path, name: str, side: int) -> None:
    """Layers that the smaller ones have not: layer norm and scales, windows of attention, a second head."""
    findings = examined(name, side, 0, tmp_path)
    assert [finding for finding in findings if finding.rule != "memory"] == []  # the machine may be small


@pytest.mark.system
def test_vision_transformer_gets_no_finding(tmp_path: Path) -> None:
    """A small one: torchvision's own take 224 x 224 pixels, a minute of a core."""
    from torchvision.models import VisionTransformer

    torch.manual_seed(0)
    network = VisionTransformer(32, 8, num_layers=2, num_heads=4, hidden_dim=64, mlp_dim=128, num_classes=3)
    assert examined("vit", 32, 0, tmp_path, network=network) == []


def examined(name: str, side: int, seed: int, folder: Path, *, network: nn.Module | None = None) -> list[Finding]:
    """Examine a fresh model with the shipped settings, on noise."""
    train = split("train", 96, first=0, side=side, channels=3)
    validation = split("validation", 24, first=1000, side=side, channels=3)
    spec = image_spec(name, SPEC.classes, 3, side, side, (120.0,) * 3, (60.0,) * 3)
    torch.manual_seed(seed)
    model = ImageModel(network, spec) if network else build(spec)
    if hasattr(model.network, "initialise"):
        with torch.no_grad():
            model.network.initialise(*model.prepared(*train.batch(np.arange(96), CPU)[0]))
    return examine(
        train, validation, spec, make_plan(seed=seed, device="cpu"), model=model, device=CPU, precision="fp32",
        pretrained=None, checkpoints=folder,
    )  # fmt: skip
