"""The doctor finds planted bugs of models and Datasets, and is silent about sound ones that look like them."""

import copy
import random
import threading
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from ratchet.errors import TrainingError
from ratchet.kinds import image_spec
from ratchet.training import ImageSplit, Plan, Split
from ratchet.training.custom_dataset import DatasetSplit, _Stack
from ratchet.training.custom_samples import Factory
from ratchet.training.doctor import Finding, describe_finding, examine
from ratchet.training.doctor.dataset_checks import ReadSamples
from ratchet.training.doctor.sample_checks import check_images, check_samples
from ratchet.training.memory import checkpointed
from ratchet.training.models import ImageModel
from ratchet.training.sample_reader import Reader
from tests.training.conftest import make_plan

CPU = torch.device("cpu")
CLASSES = tuple(f"class {number}" for number in range(10))
PLAN = make_plan(epochs=10, batch_size=64, device="cpu", precision="fp32")
SPEC = image_spec("net", CLASSES, 3, 16, 16, (127.0,) * 3, (60.0,) * 3)


class Net(nn.Module):
    """A sound convolutional net for 3 x 16 x 16 images; the classes below each get one thing wrong."""

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16)
        self.conv2, self.bn2 = nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32)
        self.drop = nn.Dropout(0.2)
        self.hidden = nn.Linear(32 * 16, 64)
        self.head = nn.Linear(64, classes)

    def maps(self, images: torch.Tensor) -> torch.Tensor:
        images = functional.max_pool2d(functional.relu(self.bn1(self.conv1(images))), 2)
        return functional.max_pool2d(functional.relu(self.bn2(self.conv2(images))), 2)

    def features(self, images: torch.Tensor) -> torch.Tensor:
        return functional.relu(self.hidden(self.drop(self.maps(images).flatten(1))))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.head(self.features(images))


def expect(rule: str, *subject: str, **values: object) -> Callable[[Finding], bool]:
    """Return whether a finding is of this rule, its subject begins with these names, and it has these values."""

    def fits(finding: Finding) -> bool:
        same = finding.rule == rule and finding.subject[: len(subject)] == subject
        return same and values.items() <= finding.values.items() and bool(describe_finding(finding).fix)

    return fits


BUGS: dict[str, tuple[type[nn.Module], Callable[[Finding], bool]]] = {}
SOUND: dict[str, type[nn.Module]] = {}


def bug(name: str, rule: str, *subject: str, **values: object) -> Callable[[type[nn.Module]], type[nn.Module]]:
    def add(network: type[nn.Module]) -> type[nn.Module]:
        BUGS[name] = network, expect(rule, *subject, **values)
        return network

    return add


def sound(network: type[nn.Module]) -> type[nn.Module]:
    SOUND[network.__name__] = network
    return network


def after(change: Callable[[Any, torch.Tensor], torch.Tensor]) -> type[nn.Module]:
    """A net whose logits are changed."""

    class Changed(Net):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return change(self, super().forward(images))

    return Changed


def before(change: Callable[[Any, torch.Tensor], torch.Tensor]) -> type[nn.Module]:
    """A net whose input is changed."""

    class Changed(Net):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return super().forward(change(self, images))

    return Changed


def between(change: Callable[[Any, torch.Tensor], torch.Tensor]) -> type[nn.Module]:
    """A net whose last features are changed."""

    class Changed(Net):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return self.head(change(self, self.features(images)))

    return Changed


def made(change: Callable[[Any], Any]) -> type[nn.Module]:
    """A net that is changed after it was built."""

    class Changed(Net):
        def __init__(self, classes: int = 10) -> None:
            super().__init__(classes)
            with torch.no_grad():
                change(self)

    return Changed


@bug("orthogonal layer with weight decay", "weight-decay-sensitive", weight_decay=PLAN.weight_decay)
class Orthogonal(Net):
    """The parametrization reads signs from whole numbers, which weight decay makes 0."""

    def __init__(self, classes: int = 10) -> None:
        super().__init__(classes)
        self.hidden = nn.utils.parametrizations.orthogonal(self.hidden)


# Samples that depend on each other
@bug("reshape mixes batch and channels", "mixed-samples", mode="eval")
class _Reshape(Net):
    def forward(self, images: torch.Tensor) -> torch.Tensor:
        maps = self.maps(images)
        maps = maps.transpose(0, 1).reshape(len(images), -1)
        return self.head(functional.relu(self.hidden(maps)))


BUGS |= {
    "batch mean subtracted": (between(lambda _, x: x - x.mean(0)), expect("mixed-samples", mode="eval")),
    "batch mean subtracted, detached": (
        between(lambda _, x: x - x.mean(0).detach()),
        expect("mixed-samples", mode="eval"),
    ),
    "batch mean subtracted in training": (
        between(lambda self, x: x - x.mean(0) if self.training else x),
        expect("mixed-samples", mode="training"),
    ),
    "softmax over the batch": (between(lambda _, x: x.softmax(0)), expect("mixed-samples", mode="eval")),
    "batch axis squeezed": (after(lambda _, x: x.squeeze()), expect("batch-axis-lost", shape="(10,)")),
    "batch size added": (after(lambda _, x: x + 0.1 * len(x)), expect("batch-size-dependence", batch=8)),
    "divided by the batch size": (after(lambda _, x: x / len(x)), expect("divided-by-batch-size", batch=8)),
    "permuted in training": (
        after(lambda self, x: x[torch.randperm(len(x))] if self.training else x),
        expect("mixed-samples", mode="training"),
    ),
    "rolled in training": (
        after(lambda self, x: x.roll(1, 0) if self.training else x),
        expect("mixed-samples", mode="training"),
    ),
    "cumulative sum over the batch": (between(lambda _, x: x.cumsum(0)), expect("mixed-samples", mode="eval")),
    "batch statistics always": (
        between(lambda _, x: functional.batch_norm(x, None, None, training=True)),
        expect("mixed-samples", mode="eval"),
    ),
}


# State
@bug("first weight overwritten", "changed-in-forward", "conv1.weight")
class _Overwritten(Net):
    def __init__(self, classes: int = 10) -> None:
        super().__init__(classes)
        self.kept = self.conv1.weight.detach().clone()

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        self.conv1.weight.data.copy_(self.kept)
        return super().forward(images)


@bug("weight clamped in forward", "changed-in-forward", "conv1.weight")
class _Clamped(Net):
    def forward(self, images: torch.Tensor) -> torch.Tensor:
        self.conv1.weight.data.clamp_(-0.05, 0.05)
        return super().forward(images)


@bug("weight changed in forward", "changed-in-forward", "conv2.weight")
class _Drifting(Net):
    def forward(self, images: torch.Tensor) -> torch.Tensor:
        self.conv2.weight.data.mul_(1.001)
        return super().forward(images)


@bug("batch norm kept in eval", "training-mode-incomplete", "bn1", "bn2", batch_norms=2)
class _TrainOverridden(Net):
    def train(self, mode: bool = True) -> nn.Module:  # as in PyTorch
        super().train(mode)
        self.bn1.eval()
        self.bn2.eval()
        return self


@bug("train() without effect", "training-mode-incomplete", "the model")
class _NeverTrains(Net):
    def train(self, mode: bool = True) -> nn.Module:  # as in PyTorch
        return super().train(False)


@bug("eval() without effect", "eval-mode-incomplete", "the model")
class _NeverEvaluates(Net):
    def train(self, mode: bool = True) -> nn.Module:  # as in PyTorch
        return super().train(True)


def _momentum(value: float) -> Callable[[Any], Any]:
    def change(self: Any) -> None:
        self.bn1.momentum = self.bn2.momentum = value

    return change


def _untracked(self: Any) -> None:
    self.bn1 = nn.BatchNorm2d(16, track_running_stats=False)


BUGS |= {
    "momentum 0": (made(_momentum(0.0)), expect("frozen-running-statistics", "bn1", "bn2", momentum="0")),
    "momentum as in TensorFlow": (made(_momentum(0.99)), expect("high-momentum", "bn1 (0.99)", "bn2 (0.99)")),
    "no running statistics": (made(_untracked), expect("no-running-statistics", "bn1")),
}


@bug("noise of a generator of its own", "unseeded-forward")
class _OwnNoise(Net):
    def __init__(self, classes: int = 10) -> None:
        super().__init__(classes)
        self.generator = torch.Generator().manual_seed(0)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        features = self.features(images)
        if self.training:
            features = features + 0.1 * torch.randn(features.shape, generator=self.generator)
        return self.head(features)


@bug("noise of a NumPy generator", "unseeded-forward")
class _NumpyNoise(Net):
    def __init__(self, classes: int = 10) -> None:
        super().__init__(classes)
        self.generator = np.random.default_rng(0)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        features = self.features(images)
        if self.training:
            features = features * torch.from_numpy(self.generator.normal(1, 0.2, features.shape).astype(np.float32))
        return self.head(features)


@bug("steps counted in an attribute", "unseeded-forward")
class _Counter(Net):
    calls = 0

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        self.calls += self.training
        return super().forward(images) * (1 + self.calls)


@bug("seeds itself", "seeding-in-forward", "torch")
class _Seeds(Net):
    def forward(self, images: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(0)
        return super().forward(images)


# Input
BUGS |= {
    "normalised twice": (before(lambda _, x: (x - 0.5) / 0.5), expect("input-scaled-again", only="")),
    "normalised twice as ImageNet": (before(lambda _, x: (x - 0.45) / 0.225), expect("input-scaled-again", only="")),
    "normalised twice by the pixels": (before(lambda _, x: (x - 120) / 60), expect("input-scaled-again", only="")),
    "divided by 255 again": (before(lambda _, x: x / 255), expect("input-scaled-again", only="")),
    "divided by 255 in eval": (
        before(lambda self, x: x if self.training else x / 255),
        expect("input-scaled-again", only="eval"),
    ),
    "divided by 255 in training": (
        before(lambda self, x: x / 255 if self.training else x),
        expect("input-scaled-again", only="training"),
    ),
    "raw pixels again": (before(lambda _, x: x * 60 + 120), expect("input-scaled-again", only="")),
    "one channel only": (before(lambda _, x: x[:, :1].expand(-1, 3, -1, -1)), expect("unused-channels", "1", "2")),
    "a corner only": (
        before(lambda _, x: functional.interpolate(x[:, :, :8, :8], scale_factor=2.0)),
        expect("unused-pixels", share=0.75),
    ),
}

# Training and eval mode as functions
BUGS |= {
    "channels flipped in eval": (
        before(lambda self, x: x if self.training else x.flip(1)),
        expect("other-function-in-eval"),
    ),
    "logits / 20 in training": (
        after(lambda self, x: x / 20 if self.training else x),
        expect("other-function-in-eval"),
    ),
    "input times 0": (before(lambda _, x: x * 0), expect("constant-input")),
    "one-hot argmax": (
        after(lambda _, x: functional.one_hot(x.argmax(1), 10).float() + 0 * x),
        expect("bounded-logits", function="one-hot argmax"),
    ),
}


@bug("one batch norm at two places", "shared-batch-norm", "bn1")
class _SharedNorm(Net):
    def __init__(self, classes: int = 10) -> None:
        super().__init__(classes)
        self.conv2, self.bn2 = nn.Conv2d(16, 16, 3, padding=1), self.bn1
        self.hidden = nn.Linear(16 * 16, 64)


@bug("noise of the system's generator", "unseeded-forward")
class _SystemNoise(Net):
    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return super().forward(images) + (random.SystemRandom().gauss(0, 1) if self.training else 0.0)


def test_noise_is_not_called_a_mixing_of_samples(tmp_path: Path) -> None:
    torch.manual_seed(0)
    assert [finding.rule for finding in look(_SystemNoise(), tmp_path)] == ["unseeded-forward"]


# Logits
BUGS |= {
    "softmax times 10": (after(lambda _, x: 10 * x.softmax(1)), expect("bounded-logits", function="softmax")),
    "softmax by hand": (
        after(lambda _, x: 5 * x.exp() / x.exp().sum(1, keepdim=True)),
        expect("bounded-logits", function="softmax"),
    ),
    "sigmoid times 3": (after(lambda _, x: 3 * x.sigmoid()), expect("activation-before-loss", function="sigmoid")),
    "tanh": (after(lambda _, x: x.tanh()), expect("bounded-logits", function="tanh")),
    "twice tanh": (after(lambda _, x: 2 * x.tanh()), expect("bounded-logits", function="tanh")),
    "ReLU": (after(lambda _, x: x.relu()), expect("one-sided-logits", function="ReLU")),
    "softplus": (after(lambda _, x: functional.softplus(x)), expect("one-sided-logits", function="softplus")),
    "clamped": (after(lambda _, x: x.clamp(-1, 1)), expect("bounded-logits", function="clamp")),
    "hard tanh": (after(lambda _, x: functional.hardtanh(x)), expect("bounded-logits", function="hard tanh")),
    "logits of length 1": (
        after(lambda _, x: functional.normalize(x)),
        expect("bounded-logits", function="normalisation"),
    ),
    "logits normed by layer": (
        after(lambda _, x: functional.layer_norm(x, (10,))),
        expect("bounded-logits", function="normalisation"),
    ),
    "logits times 1e-4": (after(lambda _, x: 1e-4 * x), expect("logits-too-small", mode="eval")),
    "logits times 10,000": (after(lambda _, x: 1e4 * x), expect("logits-too-large", mode="eval")),
    "logits divided by 5000": (after(lambda _, x: x / 5000), expect("logits-too-small", mode="eval")),
}


# Units
def _dead(self: Any) -> None:
    self.bn1.bias[4:] = -100


def _dead_unnormed(self: Any) -> None:
    self.hidden.bias[10:] = -100


def _equal(self: Any) -> None:
    nn.init.constant_(self.conv1.weight, 0.1)


def _equal_hidden(self: Any) -> None:
    nn.init.constant_(self.hidden.weight, 0.01)


def _equal_rows(self: Any) -> None:
    self.conv2.weight[:] = self.conv2.weight[:1].clone()


def _drops(p: float) -> Callable[[Any], Any]:
    def change(self: Any) -> None:
        self.drop = nn.Dropout(p)

    return change


@bug("channels masked", "dead-units", "12 of 16 in conv1")
class _Masked(Net):
    def __init__(self, classes: int = 10) -> None:
        super().__init__(classes)
        self.register_buffer("mask", torch.tensor([1.0] * 4 + [0.0] * 12).view(1, 16, 1, 1))
        self.bn1 = nn.Sequential(self.bn1)

    def maps(self, images: torch.Tensor) -> torch.Tensor:
        images = functional.max_pool2d(functional.relu(self.bn1(self.conv1(images))) * self.mask, 2)
        return functional.max_pool2d(functional.relu(self.bn2(self.conv2(images))), 2)


BUGS |= {
    "12 of 16 channels dead": (made(_dead), expect("dead-units", "12 of 16 in conv1")),
    "54 of 64 units dead": (made(_dead_unnormed), expect("dead-units", "55 of 64 in hidden")),
    "dropout .99": (made(_drops(0.99)), expect("high-dropout", "drop (0.99)")),
    "dropout function .95": (
        between(lambda self, x: functional.dropout(x, 0.95, self.training)),
        expect("high-dropout", "a dropout function (0.95)"),
    ),
    "all weights equal": (made(_equal), expect("equal-weights", "16 of 16 in conv1")),
    "all weights of a hidden layer equal": (made(_equal_hidden), expect("equal-weights", "64 of 64 in hidden")),
    "all filters equal": (made(_equal_rows), expect("equal-weights", "32 of 32 in conv2")),
}


# Sound models that look like a bug
@sound
class ZeroHead(Net):
    def __init__(self, classes: int = 10) -> None:
        super().__init__(classes)
        nn.init.zeros_(self.head.weight)


@sound
class SoftCapped(Net):
    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return 30 * torch.tanh(super().forward(images) / 30)


@sound
class Cosine(Net):
    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return 10 * functional.linear(
            functional.normalize(self.features(images)), functional.normalize(self.head.weight)
        )


@sound
class Perceptron(nn.Module):
    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Flatten(), nn.Linear(768, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.5), nn.Linear(64, classes)
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.layers(images)


@sound
class InputNorm(Net):
    def __init__(self, classes: int = 10) -> None:
        super().__init__(classes)
        self.first = nn.BatchNorm2d(3)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return super().forward(self.first(images))


@sound
class Temperature(Net):
    def __init__(self, classes: int = 10) -> None:
        super().__init__(classes)
        self.scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return super().forward(images) * self.scale


@sound
class Bilinear(Net):
    """Attention over positions, and features that are multiplied with each other."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        maps = self.maps(images)
        weights = maps.flatten(2).softmax(2).view_as(maps)
        return self.head(functional.relu(self.hidden((maps * weights + maps).flatten(1))))


@sound
class Noisy(Net):
    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return super().forward(images + 0.1 * torch.randn_like(images) if self.training else images)


@sound
class Ensemble(Net):
    def __init__(self, classes: int = 10) -> None:
        super().__init__(classes)
        self.others = nn.ModuleList(Net(classes) for _ in range(2))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return torch.stack([super().forward(images), *(member(images) for member in self.others)]).mean(0)


@sound
class Spectral(Net):
    def __init__(self, classes: int = 10) -> None:
        super().__init__(classes)
        self.hidden = nn.utils.parametrizations.spectral_norm(self.hidden)


@sound
class OwnBackbone(Net):
    """Layers frozen by the network itself, in eval mode: named by another check, if at all."""

    def __init__(self, classes: int = 10) -> None:
        super().__init__(classes)
        self.bn1.requires_grad_(False)

    def initialise(self, images: torch.Tensor) -> None:
        """Brings weights of its own, as far as the doctor knows."""

    def train(self, mode: bool = True) -> nn.Module:
        super().train(mode)
        self.bn1.eval()
        return self


@sound
class RandomSlopes(Net):
    def features(self, images: torch.Tensor) -> torch.Tensor:
        return functional.rrelu(self.hidden(self.maps(images).flatten(1)), training=self.training)


@sound
class StochasticDepth(Net):
    """Whole blocks are left out of half of the passes."""

    def __init__(self, classes: int = 10) -> None:
        super().__init__(classes)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Conv2d(32, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU()) for _ in range(12)
        )

    def maps(self, images: torch.Tensor) -> torch.Tensor:
        maps = super().maps(images)
        for block in self.blocks:
            if not self.training or torch.rand(()) < 0.5:
                maps = maps + block(maps)
        return maps


@sound
class Residual(Net):
    """Blocks that begin as the identity."""

    def __init__(self, classes: int = 10) -> None:
        super().__init__(classes)
        self.more = nn.Conv2d(32, 32, 3, padding=1)
        self.gain = nn.Parameter(torch.zeros(1))

    def maps(self, images: torch.Tensor) -> torch.Tensor:
        maps = super().maps(images)
        return maps + self.gain * self.more(maps)


@sound
class OldWeightNorm(Net):
    """The hook keeps a computed tensor in an attribute, which copy.deepcopy refuses."""

    def __init__(self, classes: int = 10) -> None:
        super().__init__(classes)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            self.hidden = nn.utils.weight_norm(self.hidden)


@sound
class CompiledMethod(Net):
    """A compiled method in an attribute, which copy.deepcopy leaves with the original."""

    def __init__(self, classes: int = 10) -> None:
        super().__init__(classes)
        self.maps = torch.compile(self.maps)


@sound
class OwnFunctions(Net):
    """A function and a hook that refer to the model by its name in a closure."""

    def __init__(self, classes: int = 10) -> None:
        super().__init__(classes)
        self.scale = nn.Parameter(torch.ones(64))
        self.features = lambda images: functional.relu(self.hidden(self.drop(self.maps(images).flatten(1))))
        self.hidden.register_forward_hook(lambda _module, _args, output: output * self.scale)


DATASET = """
import numpy as np
import torch
from torch.utils.data import Dataset

PATTERNS = np.random.default_rng(7).uniform(0, 1, (10, 3, 16, 16)).astype(np.float32)
ROWS = {"train": ROWS_OF_TRAIN, "validation": 120, "test": 60}


class Images(Dataset):
    classes = [f"class {number}" for number in range(10)]

    def __init__(self, split):
        self.split = split
        generator = np.random.default_rng(["train", "validation", "test"].index(split))
        self.labels = generator.integers(0, 10, ROWS[split])
        noise = generator.normal(0, 0.25, (ROWS[split], 3, 16, 16))
        self.images = torch.from_numpy(np.clip(0.5 * PATTERNS[self.labels] + 0.25 + noise, 0, 1).astype(np.float32))
        self.labels = self.labels.tolist()
        self.buffer = torch.empty(3, 16, 16)
        self.prepare()

    def prepare(self):
        PREPARE

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        image, label = self.images[index].clone(), self.labels[index]
        CHANGE
        return image, label


def make(split):
    return Images(split)
"""

_IN_TRAIN, _IN_VALIDATION = 'if self.split == "train": ', 'if self.split == "validation": '
# name -> code that prepares the Dataset, code that changes a sample, the expected finding
DATASETS: dict[str, tuple[str, str, Callable[[Finding], bool]]] = {
    "labels shifted in train": ("", _IN_TRAIN + "label = (label + 1) % 10", expect("labels-renumbered")),
    "labels shifted in validation": ("", _IN_VALIDATION + "label = (label + 3) % 10", expect("labels-renumbered")),
    "two classes swapped in half of the splits": (
        "",
        _IN_TRAIN + "label = [9, 8, 7, 6, 5, 4, 3, 2, 1, 0][label]",
        expect("labels-renumbered"),
    ),
    "label of the neighbour": (
        "self.labels = self.labels[1:] + self.labels[:1]",
        "",
        expect("labels-of-neighbours", split="train", which="previous"),
    ),
    "label of the neighbour, in train": (
        _IN_TRAIN + "self.labels = self.labels[-1:] + self.labels[:-1]",
        "",
        expect("labels-of-neighbours", split="train", which="next"),
    ),
    "augmentation in validation": (
        "",
        "image = image.flip(2) if torch.rand(()) < 0.5 else image",
        expect("augmented-validation", of=8),
    ),
    "noise in validation": ("", "image = image + 0.1 * torch.randn_like(image)", expect("augmented-validation", of=8)),
    "validation not divided": ("", _IN_VALIDATION + "image = image * 255", expect("rescaled-split", channel=0)),
    "validation divided again": ("", _IN_VALIDATION + "image = image / 255", expect("rescaled-split", channel=0)),
    "validation standardised alone": (
        "",
        _IN_VALIDATION + "image = (image - 0.5) / 0.25",
        expect("rescaled-split", channel=0),
    ),
    "validation inverted": ("", _IN_VALIDATION + "image = 1 - image", expect("transformed-split", how="inverted")),
    "validation upside down": (
        "",
        _IN_VALIDATION + "image = image.flip(1)",
        expect("transformed-split", how="upside down"),
    ),
    "validation transposed": (
        "",
        _IN_VALIDATION + "image = image.transpose(1, 2)",
        expect("transformed-split", how="transposed"),
    ),
    "one buffer for all": ("", "image = self.buffer.copy_(image)", expect("reused-buffer", split="train")),
    "in-place change": ("", "image = self.images[index].mul_(0.5)", expect("in-place-change", "images")),
    "in-place change, returned as a copy": (
        "",
        "image = self.images[index].add_(0.1).clone()",
        expect("in-place-change", "images"),
    ),
    "channels last": (
        "",
        "image = image[:, :, :12].transpose(0, 2).contiguous()",
        expect("channels-last", channels=12, columns=3),
    ),
    "label in a pixel": (
        "",
        "image[0, 0, 0] = label / 10",
        expect("label-in-image", count=1, channel=0, row=0, column=0),
    ),
    "label in one of ten pixels": ("", "image[1, 15, label] = 2.0", expect("label-in-image", channel=1, row=15)),
    "label in a corner": ("", "image[:, :2, :2] = label / 10", expect("label-in-image", count=12)),
    "six images repeated": (
        "self.images = self.images[torch.arange(len(self.images)) % 6] if self.split == 'train' else self.images\n"
        "        if self.split == 'train': self.labels = [self.labels[i % 6] for i in range(len(self.labels))]",
        "",
        expect("repeated-images", split="train", different=6),
    ),
}
_FLIPPED = _IN_TRAIN + "image = image.flip(2) if torch.rand(()) < 0.5 else image"
SOUND_DATASETS: dict[str, tuple[str, str]] = {
    "plain": ("", ""),
    "flipped in train": ("", _FLIPPED),
    "noise in train": ("", _IN_TRAIN + "image = image + 0.2 * torch.randn_like(image)"),
    "erased in train": ("", _IN_TRAIN + "y = int(torch.randint(8, ())); image[:, y:y + 8, y:y + 8] = 0"),
    "a view of its data": ("", "image = self.images[index]"),
    "standardised": ("", "image = (image - 0.5) / 0.25"),
    "brighter validation": ("", _IN_VALIDATION + "image = image * 1.1"),
    "random labels": ("self.labels = np.random.default_rng(5).integers(0, 10, len(self.labels)).tolist()", ""),
    "sorted by class": (
        "order = np.argsort(self.labels); self.images = self.images[order]; "
        "self.labels = [self.labels[i] for i in order]",
        "",
    ),
    "patterns by colour": ("", "image = torch.full((3, 16, 16), label / 10) + 0.01 * image"),
}


def packed(name: str, rows: int, seed: int, *, images: Any = None) -> Split:
    """Images of ten classes, a pattern and noise each."""
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, 10, rows)
    patterns = np.random.default_rng(7).uniform(0, 1, (10, 16, 16, 3))
    drawn = np.clip(128 * patterns[labels] + 64 + generator.normal(0, 50, (rows, 16, 16, 3)), 0, 255)
    keys = np.arange(seed * 10_000, seed * 10_000 + rows, dtype=np.uint64)
    images = drawn.astype(np.uint8) if images is None else images
    return ImageSplit.of(name, [images], labels.astype(np.int64), keys)


TRAIN, VALIDATION = packed("train", 256, 1), packed("validation", 80, 2)


def look(network: nn.Module, folder: Path, *, plan: Plan = PLAN, pretrained: Path | None = None) -> list[Finding]:
    """Examine a network on sound data."""
    return examine(
        TRAIN, VALIDATION, SPEC, plan, model=ImageModel(network, SPEC), device=CPU, precision="fp32",
        pretrained=pretrained, checkpoints=folder / "checkpoints",
    )  # fmt: skip


@pytest.mark.parametrize("name", BUGS)
def test_planted_bug_of_a_model_is_named(tmp_path: Path, name: str) -> None:
    torch.manual_seed(0)
    network, expected = BUGS[name]
    findings = look(network(), tmp_path)
    assert any(map(expected, findings)), findings


@pytest.mark.parametrize("name", SOUND)
def test_sound_model_gets_no_finding(tmp_path: Path, name: str) -> None:
    torch.manual_seed(0)
    assert look(SOUND[name](), tmp_path) == []


def test_orthogonal_layer_without_weight_decay_gets_no_finding(tmp_path: Path) -> None:
    torch.manual_seed(0)
    assert look(Orthogonal(), tmp_path, plan=replace(PLAN, weight_decay=0.0)) == []


def test_model_that_cannot_be_copied_is_not_examined(tmp_path: Path) -> None:
    """It gets one warning with the cause and the fix, since training may need no copy."""
    network = Net()
    network.lock = threading.Lock()
    (finding,) = look(network, tmp_path)
    assert (finding.rule, finding.severity) == ("model-not-examined", "warning")
    assert "cannot pickle '_thread.lock' object" in str(finding.values["reason"])
    assert "keep locks" in describe_finding(finding).fix


def test_examined_model_and_generators_stay_as_they_are(tmp_path: Path) -> None:
    """Weights, modes, buffers and the state of the model's own generator are those of before."""
    torch.manual_seed(0)
    model = ImageModel(_OwnNoise(), SPEC)
    before, random_state = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    own = model.network.generator.get_state()
    examine(
        TRAIN, VALIDATION, SPEC, PLAN, model=model, device=CPU, precision="fp32", pretrained=None,
        checkpoints=tmp_path / "checkpoints",
    )  # fmt: skip
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), random_state)
    assert torch.equal(model.network.generator.get_state(), own)
    assert model.training


def test_frozen_batch_norms_of_pretrained_weights_are_no_finding(tmp_path: Path) -> None:
    torch.manual_seed(0)
    assert look(_TrainOverridden(), tmp_path, pretrained=tmp_path / "weights.safetensors") == []


def test_bounded_outputs_are_allowed_where_the_loss_wants_them(tmp_path: Path) -> None:
    torch.manual_seed(0)
    network = BUGS["tanh"][0]()
    assert look(network, tmp_path, plan=replace(PLAN, loss="mse")) == []


@pytest.fixture
def own_splits(tmp_path: Path) -> Callable[..., tuple[DatasetSplit, DatasetSplit]]:
    """Train and validation of a Dataset written with two pieces of code, as they are after ingest."""

    def own_splits(prepare: str, change: str, *, rows: int = 480) -> tuple[DatasetSplit, DatasetSplit]:
        module = f"own_{abs(hash((prepare, change)))}"
        code = DATASET.replace("PREPARE", prepare or "pass").replace("CHANGE", change or "pass")
        (tmp_path / f"{module}.py").write_text(code.replace("ROWS_OF_TRAIN", str(rows)))
        factory = Factory(f"{module}:make", tmp_path, f"{module}.py")
        return opened(factory, "train", 0), opened(factory, "validation", 10**6)

    return own_splits


def opened(factory: Factory, name: str, first: int) -> DatasetSplit:
    """A split of a Dataset without ingest, which takes seconds."""
    dataset = factory.open(name)
    read = [dataset[place] for place in range(len(dataset))]
    channels, height, width = read[0][0].shape
    return DatasetSplit(
        name, (), np.array([label for _, label in read], np.int64),
        np.arange(first, first + len(read), dtype=np.uint64),
        reader=Reader(factory, _Stack((height, width, channels), "float32"), workers=0),
        places=np.arange(len(read)), low=np.zeros(channels, np.float32), high=np.ones(channels, np.float32),
    )  # fmt: skip


Splits = Callable[..., tuple[DatasetSplit, DatasetSplit]]


@pytest.mark.parametrize("name", DATASETS)
def test_planted_bug_of_a_dataset_is_named(own_splits: Splits, name: str) -> None:
    prepare, change, expected = DATASETS[name]
    train, validation = own_splits(prepare, change, rows=240 if "repeated" in name else 480)
    findings = list(check_samples(train, validation, SPEC, PLAN))
    assert any(map(expected, findings)), findings


@pytest.mark.parametrize("name", SOUND_DATASETS)
def test_sound_dataset_gets_no_finding(own_splits: Splits, name: str) -> None:
    assert list(check_samples(*own_splits(*SOUND_DATASETS[name]), SPEC, PLAN)) == []


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_value_that_is_not_finite_does_not_confuse_the_tests(own_splits: Splits, value: float) -> None:
    train, validation = own_splits("", f"image[0, 0, 0] = float('{value}') if index == 3 else image[0, 0, 0]")
    assert all(finding.rule != "rescaled-split" for finding in check_samples(train, validation, SPEC, PLAN))


def test_sample_that_cannot_be_read_is_one_clear_error(own_splits: Splits) -> None:
    train, validation = own_splits("self.broken = False", "assert not self.broken")
    train.reader.open("train").broken = True
    with pytest.raises(TrainingError, match=r"data\.factory: sample \d+ cannot be read \(AssertionError"):
        list(check_samples(train, validation, SPEC, PLAN))


@pytest.mark.parametrize("rows", [1, 2, 3, 12])
def test_few_rows_are_examined_without_an_error(tmp_path: Path, rows: int) -> None:
    torch.manual_seed(0)
    few = packed("train", rows, 1), packed("validation", rows, 2)
    findings = examine(
        *few, SPEC, replace(PLAN, batch_size=64), model=ImageModel(Net(), SPEC), device=CPU, precision="fp32",
        pretrained=None, checkpoints=tmp_path,
    )  # fmt: skip
    schedule = {"long-warmup", "endless-warmup", "late-step", "late-plateau", "low-learning-rate"}
    batch_norm = {"no-running-statistics", "high-momentum", "frozen-running-statistics", "small-micro-batch"}
    others = {"first-loss-high", "first-loss-low", "cannot-overfit"}
    assert {finding.rule for finding in findings} <= schedule | batch_norm | others


def test_training_with_checkpointed_gradients_is_examined_too(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = ImageModel(Net(), SPEC).to(memory_format=torch.channels_last)
    checkpointed(model)
    findings = examine(
        TRAIN, VALIDATION, SPEC, replace(PLAN, gradient_checkpointing=True), model=model, device=CPU,
        precision="fp32", pretrained=None, checkpoints=tmp_path,
    )  # fmt: skip
    assert findings == []


def test_labels_shifted_in_a_packed_split_are_named() -> None:
    shifted = replace(TRAIN, targets=(TRAIN.targets + 1) % 10)
    (finding,) = check_samples(shifted, VALIDATION, SPEC, PLAN)
    assert finding.rule == "labels-renumbered"
    assert {"0 in train is 9 in validation", "1 in train is 0 in validation"}.intersection(finding.subject)


def test_class_of_one_sample_is_no_label_in_the_image() -> None:
    """Only that sample has a value in some of the mostly empty positions."""
    generator = np.random.default_rng(0)
    images = generator.integers(1, 255, (400, 1, 16, 16)) * (generator.random((400, 1, 16, 16)) < 0.004)
    images[:, :, 4:12, 4:12] = generator.integers(0, 255, (400, 1, 8, 8))
    images[200, 0, 0, 0], images[:200, 0, 0, 0], images[201:, 0, 0, 0] = 200, 0, 0
    labels = np.zeros(400, np.int64)
    labels[200] = 1
    assert list(check_images(ReadSamples("train", torch.from_numpy(images), labels, np.arange(400)))) == []


@pytest.mark.parametrize("seed", range(2))
def test_noise_without_classes_gets_no_finding(seed: int) -> None:
    """Nothing can be learned here, in any reading of the data."""
    noise = np.random.default_rng(seed).integers(0, 256, (336, 16, 16, 3), dtype=np.uint8)
    train, validation = packed("train", 256, seed, images=noise[:256]), packed("validation", 80, 50, images=noise[256:])
    assert list(check_samples(train, validation, SPEC, PLAN)) == []
