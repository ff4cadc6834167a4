"""Planted faults of models: the doctor names each, and is silent about sound models that look like them."""

import copy
import itertools
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
from torchvision.ops import StochasticDepth

from ratchet.doctor import Finding, describe_finding, examine
from ratchet.kinds import image_spec
from ratchet.training import CheckpointStore, ImageSplit, Notice, Plan, Split, TrainingInputs, build, fit
from ratchet.training.memory import checkpointed
from ratchet.training.models import ImageModel
from tests.training.conftest import make_plan

CPU = torch.device("cpu")
PLAN = make_plan(epochs=10, batch_size=64, device="cpu", precision="fp32")
SPEC = image_spec("net", tuple(f"class {number}" for number in range(10)), 3, 16, 16, (127.0,) * 3, (60.0,) * 3)


def split(name: str, rows: int, seed: int, *, side: int = 16) -> Split:
    """Images of ten classes, a pattern and noise each."""
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, 10, rows)
    patterns = np.random.default_rng(7).uniform(0, 1, (10, side, side, 3))
    drawn = np.clip(128 * patterns[labels] + 64 + generator.normal(0, 50, (rows, side, side, 3)), 0, 255)
    keys = np.arange(seed * 10_000, seed * 10_000 + rows, dtype=np.uint64)
    return ImageSplit.of(name, [drawn.astype(np.uint8)], labels.astype(np.int64), keys)


TRAIN, VALIDATION = split("train", 256, 1), split("validation", 80, 2)


def look(network: nn.Module | ImageModel, folder: Path, *, plan: Plan = PLAN, **changes: Any) -> list[Finding]:
    """Examine a network on sound data."""
    model = network if isinstance(network, ImageModel) else ImageModel(network, SPEC)
    train, validation = changes.pop("splits", (TRAIN, VALIDATION))
    spec = changes.pop("spec", SPEC)
    arguments = {"device": CPU, "precision": "fp32", "pretrained": None, "checkpoints": folder / "checkpoints"}
    findings = examine(train, validation, spec, plan, model=model, **arguments | changes)
    assert all(describe_finding(finding).fix for finding in findings)
    return findings


class Net(nn.Module):
    """A sound convolutional net for 3 x 16 x 16 images."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16)
        self.conv2, self.bn2 = nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32)
        self.drop, self.hidden, self.head = nn.Dropout(0.2), nn.Linear(32 * 16, 64), nn.Linear(64, 10)

    def maps(self, images: torch.Tensor) -> torch.Tensor:
        images = functional.max_pool2d(functional.relu(self.bn1(self.conv1(images))), 2)
        return functional.max_pool2d(functional.relu(self.bn2(self.conv2(images))), 2)

    def features(self, images: torch.Tensor) -> torch.Tensor:
        return functional.relu(self.hidden(self.drop(self.maps(images).flatten(1))))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.head(self.features(images))


Change = Callable[[Any, torch.Tensor], torch.Tensor]


def after(change: Change) -> type[Net]:
    """A net whose outputs are changed."""
    return type("Changed", (Net,), {"forward": lambda self, images: change(self, Net.forward(self, images))})


def before(change: Change, net: type[Net] = Net) -> type[Net]:
    """A net whose input is changed."""
    return type("Changed", (net,), {"forward": lambda self, images: net.forward(self, change(self, images))})


def between(change: Change) -> type[Net]:
    """A net whose last features are changed."""
    return type("Changed", (Net,), {"features": lambda self, images: change(self, Net.features(self, images))})


def built(change: Callable[[Any], object]) -> type[Net]:
    """A net that is changed after it was built."""

    class Changed(Net):
        def __init__(self) -> None:
            super().__init__()
            with torch.no_grad():
                change(self)

    return Changed


def moded(change: Callable[[Any, bool], object]) -> type[Net]:
    """A net whose train() is overridden."""

    def train(self: Any, mode: bool = True) -> nn.Module:  # as in PyTorch
        nn.Module.train(self, mode)
        change(self, mode)
        return self

    return type("Changed", (Net,), {"train": train})


class Reshaped(Net):
    def features(self, images: torch.Tensor) -> torch.Tensor:
        return functional.relu(self.hidden(self.maps(images).transpose(0, 1).reshape(len(images), -1)))


class Overwritten(Net):
    def __init__(self) -> None:
        super().__init__()
        self.kept = self.conv1.weight.detach().clone()

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        self.conv1.weight.data.copy_(self.kept)
        return super().forward(images)


class OwnNoise(Net):
    def __init__(self) -> None:
        super().__init__()
        self.generator = torch.Generator().manual_seed(0)

    def features(self, images: torch.Tensor) -> torch.Tensor:
        features = super().features(images)
        return features + 0.1 * torch.randn(features.shape, generator=self.generator) if self.training else features


class Counter(Net):
    calls = 0

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        self.calls += self.training
        return super().forward(images) * (1 + self.calls)


class PlainList(Net):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = [nn.Linear(64, 64), {"second": (nn.Linear(64, 64),)}]

    def features(self, images: torch.Tensor) -> torch.Tensor:
        first, second = self.blocks
        return second["second"][0](first(super().features(images)))


class CreatedInForward(Net):
    def forward(self, images: torch.Tensor) -> torch.Tensor:
        self.last = nn.Linear(64, 10)
        return self.last(self.features(images))


class KeptLosses(Net):
    def __init__(self) -> None:
        super().__init__()
        self.norms: list[torch.Tensor] = []

    def features(self, images: torch.Tensor) -> torch.Tensor:
        features = super().features(images)
        self.norms.append(features.norm())
        return features


class RunningMean(Net):
    seen: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        outputs = super().forward(images)
        if self.training:
            self.seen = 0.9 * self.seen + 0.1 * outputs.mean()
        return outputs - self.seen


class CosineOnly(Net):
    """Cosines of features and weights are from -1 to 1: the loss of ten classes stays above .79."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        features, weight = functional.normalize(self.features(images)), functional.normalize(self.head.weight)
        return functional.linear(features, weight)


class SharedNorm(Net):
    def __init__(self) -> None:
        super().__init__()
        self.conv2, self.bn2 = nn.Conv2d(16, 16, 3, padding=1), self.bn1
        self.hidden = nn.Linear(16 * 16, 64)


class Attending(Net):
    """Attention and a recurrent layer, whose dropout is inside a function of PyTorch."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
        self.recurrent = nn.LSTM(32, 32, num_layers=2, dropout=0.2, batch_first=True)

    def maps(self, images: torch.Tensor) -> torch.Tensor:
        places = super().maps(images).flatten(2).transpose(1, 2)
        return self.recurrent(self.attention(places))[0].transpose(1, 2)


class DroppedPaths(Net):
    def __init__(self) -> None:
        super().__init__()
        self.block, self.depth = nn.Conv2d(32, 32, 3, padding=1), StochasticDepth(0.2, "row")

    def maps(self, images: torch.Tensor) -> torch.Tensor:
        maps = super().maps(images)
        return maps + self.depth(self.block(maps))


def in_forward(change: Callable[[Any], object]) -> type[Net]:
    return before(lambda self, images: (change(self), images)[1])


def momentum(self: Net) -> None:
    self.bn1.momentum = self.bn2.momentum = 0.0


def numpy_path(_: Net, features: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(features.detach().numpy().copy())


FAULTS: dict[str, tuple[type[Net], str, tuple[str, ...]]] = {
    "softmax": (after(lambda _, x: x.softmax(1)), "activation-before-loss", ()),
    "softmax in eval": (
        after(lambda self, x: x if self.training else x.softmax(1)), "activation-before-loss", (),
    ),
    "softmax by hand": (after(lambda _, x: 5 * x.exp() / x.exp().sum(1, keepdim=True)), "activation-before-loss", ()),
    "softmax times 10": (after(lambda _, x: 10 * x.softmax(1)), "activation-before-loss", ()),
    "sigmoid": (after(lambda _, x: x.sigmoid()), "activation-before-loss", ()),
    "tanh": (after(lambda _, x: x.tanh()), "activation-before-loss", ()),
    "ReLU": (after(lambda _, x: x.relu()), "activation-before-loss", ()),
    "ReLU6": (after(lambda _, x: functional.relu6(x)), "activation-before-loss", ()),
    "clamp": (after(lambda _, x: x.clamp(-1, 1)), "activation-before-loss", ()),
    "clamp at 0": (after(lambda _, x: x.clamp(min=0)), "activation-before-loss", ()),
    "hardtanh": (after(lambda _, x: functional.hardtanh(x)), "activation-before-loss", ()),
    "normalised outputs": (after(lambda _, x: functional.normalize(x)), "activation-before-loss", ()),
    "cosine without a factor": (CosineOnly, "activation-before-loss", ()),
    "detached branch": (between(lambda _, x: x.detach()), "no-gradient", ("conv1", "bn1")),
    "path through NumPy": (between(numpy_path), "no-gradient", ("conv1", "bn1")),
    "layer that is not used": (built(lambda self: setattr(self, "gate", nn.Linear(2, 2))), "no-gradient", ("gate",)),
    "dead ReLU": (built(lambda self: self.hidden.bias.fill_(-100)), "no-gradient", ("conv1",)),
    "12 of 16 channels dead": (built(lambda self: self.bn1.bias[4:].fill_(-100)), "dead-units", ("12 of 16 in conv1",)),
    "all weights zero": (built(lambda self: [p.zero_() for p in self.parameters()]), "no-gradient", ("conv1",)),
    "equal weights": (built(lambda self: self.conv1.weight.fill_(0.1)), "equal-weights", ("16 of 16 in conv1",)),
    "equal filters": (
        built(lambda self: self.conv2.weight.copy_(self.conv2.weight[:1].clone().expand(32, -1, -1, -1))),
        "equal-weights", ("32 of 32 in conv2",),
    ),
    "layers in a list": (PlainList, "unregistered-parameters", ("blocks[0].weight", "blocks[0].bias")),
    "layer made in forward": (CreatedInForward, "missing-from-optimizer", ("last.weight", "last.bias")),
    "frozen layer": (built(lambda self: self.conv1.requires_grad_(False)), "frozen-at-random", ("conv1.bias",)),
    "batch norm in eval in forward": (in_forward(lambda self: self.bn1.eval()), "wrong-mode", ("bn1",)),
    "train() in forward": (in_forward(lambda self: self.train()), "wrong-mode", ("the model",)),
    "batch norm in eval in train()": (moded(lambda self, _: self.bn1.eval()), "wrong-mode", ("bn1",)),
    "train() without effect": (moded(lambda self, _: nn.Module.train(self, False)), "wrong-mode", ("the model",)),
    "eval() without effect": (moded(lambda self, _: nn.Module.train(self, True)), "wrong-mode", ("the model",)),
    "momentum 0": (built(momentum), "frozen-running-statistics", ("bn1", "bn2")),
    "weight changed in forward": (
        in_forward(lambda self: self.conv2.weight.data.mul_(1.001)), "changed-in-forward", ("conv2.weight",),
    ),
    "weight overwritten": (Overwritten, "changed-in-forward", ("conv1.weight",)),
    "noise in eval": (before(lambda _, x: x + 0.1 * torch.randn_like(x)), "random-in-eval", ()),
    "dropout in eval": (between(lambda _, x: functional.dropout(x, 0.3)), "random-in-eval", ()),
    "steps counted": (Counter, "unseeded-forward", ()),
    "own generator": (OwnNoise, "unseeded-forward", ()),
    "wrong number of classes": (built(lambda self: setattr(self, "head", nn.Linear(64, 3))), "step-fails", ()),
    "dropout 1.0": (built(lambda self: setattr(self, "drop", nn.Dropout(1.0))), "high-dropout", ("drop (1)",)),
    "dropout .99": (built(lambda self: setattr(self, "drop", nn.Dropout(0.99))), "high-dropout", ("drop (0.99)",)),
    "input times 0": (before(lambda _, x: x * 0), "no-gradient", ("conv1",)),
    "argmax": (
        after(lambda _, x: functional.one_hot(x.argmax(1), 10).float()), "no-gradient", ("conv1.weight", "conv1.bias"),
    ),
    "channels flipped in eval, with attention": (
        before(lambda self, x: x if self.training else x.flip(1), Attending), "other-function-in-eval", (),
    ),
    "channels flipped in eval, with dropped paths": (
        before(lambda self, x: x if self.training else x.flip(1), DroppedPaths), "other-function-in-eval", (),
    ),
    "normalised twice": (before(lambda _, x: (x - 0.5) / 0.5), "input-scaled-again", ()),
    "divided by 255": (before(lambda _, x: x / 255), "input-scaled-again", ()),
    "divided by 255 in eval": (before(lambda self, x: x if self.training else x / 255), "input-scaled-again", ()),
    "reshape mixes samples": (Reshaped, "mixed-samples", ()),
    "softmax over the batch": (between(lambda _, x: x.softmax(0)), "mixed-samples", ()),
    "batch mean subtracted": (between(lambda _, x: x - x.mean(0)), "mixed-samples", ()),
    "batch mean subtracted in training": (
        between(lambda self, x: x - x.mean(0) if self.training else x), "mixed-samples", (),
    ),
    "permuted in training": (
        after(lambda self, x: x[torch.randperm(len(x))] if self.training else x), "mixed-samples", (),
    ),
    "no running statistics": (
        built(lambda self: setattr(self, "bn1", nn.BatchNorm2d(16, track_running_stats=False))), "mixed-samples", (),
    ),
    "channels flipped in eval": (
        before(lambda self, x: x if self.training else x.flip(1)), "other-function-in-eval", (),
    ),
    "outputs / 20 in training": (after(lambda self, x: x / 20 if self.training else x), "other-function-in-eval", ()),
    "dropout function, features halved in eval": (
        between(lambda self, x: functional.dropout(x, 0.5) if self.training else x / 2), "other-function-in-eval", (),
    ),
    "one batch norm at two places": (SharedNorm, "shared-batch-norm", ("bn1",)),
    "divided by the batch size": (after(lambda _, x: x / len(x)), "batch-size-dependence", ()),
    "batch axis squeezed": (after(lambda _, x: x.squeeze()), "batch-axis-lost", ()),
    "loud outputs": (after(lambda _, x: 1000 * x), "first-loss", ()),
    "faint features": (between(lambda _, x: 1e-7 * x), "cannot-overfit", ()),
    "losses kept": (KeptLosses, "kept-graph", ("norms[0]", "norms[1]")),
    "running mean kept": (RunningMean, "kept-graph", ("seen",)),
}  # fmt: skip


class SoftCapped(Net):
    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return 30 * torch.tanh(super().forward(images) / 30)


class Cosine(CosineOnly):
    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return 10 * super().forward(images)


class LearnedFactor(CosineOnly):
    """Only the size of the factor is like that of no factor."""

    def __init__(self, change: Callable[[torch.Tensor], torch.Tensor] = lambda outputs: outputs) -> None:
        super().__init__()
        self.factor, self.change = nn.Parameter(torch.ones(())), change

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.factor * self.change(super().forward(images))


class LearnedFactorOfFeatures(CosineOnly):
    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.ones(shape))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        features, weight = functional.normalize(self.features(images)), functional.normalize(self.head.weight)
        return self.factor * features @ weight.t()


class LearnedFactorOfClasses(LearnedFactorOfFeatures):
    def forward(self, images: torch.Tensor) -> torch.Tensor:
        features, weight = functional.normalize(self.features(images)), functional.normalize(self.head.weight)
        return features @ (self.factor * weight).t()


class InputNorm(Net):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.BatchNorm2d(3)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return super().forward(self.first(images))


class Noisy(Net):
    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return super().forward(images + 0.1 * torch.randn_like(images) if self.training else images)


class Ensemble(Net):
    def __init__(self) -> None:
        super().__init__()
        self.others = nn.ModuleList(Net() for _ in range(2))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return torch.stack([super().forward(images), *(member(images) for member in self.others)]).mean(0)


class OwnBackbone(Net):
    """Layers frozen by the network itself, in eval mode."""

    def __init__(self) -> None:
        super().__init__()
        self.bn1.requires_grad_(False)

    def initialise(self, images: torch.Tensor) -> None:
        """Brings weights of its own, as far as the doctor knows."""

    def train(self, mode: bool = True) -> nn.Module:
        super().train(mode)
        self.bn1.eval()
        return self


class RandomDepth(Net):
    """Whole blocks are left out of half of the passes."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Conv2d(32, 32, 3, padding=1), nn.BatchNorm2d(32), nn.RReLU()) for _ in range(12)
        )

    def maps(self, images: torch.Tensor) -> torch.Tensor:
        maps = super().maps(images)
        for block in self.blocks:
            if not self.training or torch.rand(()) < 0.5:
                maps = maps + block(maps)
        return maps


class RandomSlopes(Net):
    """Noise of layers and functions in training, and one block that is left out of half of the passes."""

    def __init__(self) -> None:
        super().__init__()
        self.slopes, self.block = nn.RReLU(), nn.Linear(64, 64)

    def features(self, images: torch.Tensor) -> torch.Tensor:
        features = functional.dropout(self.slopes(super().features(images)), 0.5, self.training)
        return features + self.block(features) if not self.training or torch.rand(()) < 0.5 else features


class RepeatedBlock(Net):
    """One convolution and its batch norm, three times in a pass."""

    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Sequential(nn.Conv2d(32, 32, 3, padding=1), nn.BatchNorm2d(32))

    def maps(self, images: torch.Tensor) -> torch.Tensor:
        maps = super().maps(images)
        for _ in range(3):
            maps = functional.relu(self.block(maps))
        return maps


class OldWeightNorm(Net):
    """The hook keeps a computed tensor in an attribute, which copy.deepcopy refuses."""

    def __init__(self) -> None:
        super().__init__()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            self.hidden = nn.utils.weight_norm(self.hidden)


class OwnFunctions(Net):
    """A compiled method, and a function and a hook that refer to the model by its name in a closure."""

    def __init__(self) -> None:
        super().__init__()
        self.maps = torch.compile(self.maps, backend="eager")
        self.scale = nn.Parameter(torch.ones(64))
        self.features = lambda images: functional.relu(self.hidden(self.drop(self.maps(images).flatten(1))))
        self.hidden.register_forward_hook(lambda _module, _args, output: output * self.scale)


SOUND: dict[str, Callable[[], Net]] = {
    "zero head": built(lambda self: self.head.weight.zero_()),
    "spectral norm": built(
        lambda self: setattr(self, "hidden", nn.utils.parametrizations.spectral_norm(self.hidden))
    ),
    "wide clamp": after(lambda _, x: x.clamp(-30, 30)),
    "clamp from below": after(lambda _, x: x.clamp(min=-30)),
    "layer norm at the end": built(
        lambda self: setattr(self, "head", nn.Sequential(nn.Linear(64, 10), nn.LayerNorm(10)))
    ),
    "features with a learned factor": LearnedFactorOfFeatures,
    "features with learned factors": lambda: LearnedFactorOfFeatures(64),
    "classes with learned factors": lambda: LearnedFactorOfClasses(10, 1),
    "normalised outputs with a learned factor": lambda: LearnedFactor(functional.normalize),
    **{each.__name__: each for each in (
        SoftCapped, Cosine, LearnedFactor, InputNorm, Noisy, Ensemble, OwnBackbone, RandomDepth, RandomSlopes,
        RepeatedBlock, OldWeightNorm, OwnFunctions, Attending, DroppedPaths,
    )},
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_planted_fault_is_named(tmp_path: Path, name: str) -> None:
    torch.manual_seed(0)
    network, rule, subject = FAULTS[name]
    findings = look(network(), tmp_path)
    assert any(each.rule == rule and each.subject[: len(subject)] == subject for each in findings), findings


@pytest.mark.parametrize("name", SOUND)
def test_sound_model_gets_no_finding(tmp_path: Path, name: str) -> None:
    torch.manual_seed(0)
    assert look(SOUND[name](), tmp_path) == []


@pytest.mark.parametrize("loss", ["cross-entropy", "binary-cross-entropy", "mse", "smooth-l1"])
@pytest.mark.parametrize("optimizer", ["sgd", "muon"])
def test_sound_model_gets_no_finding_with_any_loss(tmp_path: Path, loss: str, optimizer: str) -> None:
    torch.manual_seed(0)
    plan = replace(PLAN, loss=loss, optimizer=optimizer, ema_decay=0.9, class_weights="balanced")
    assert look(Net(), tmp_path, plan=plan) == []


@pytest.mark.parametrize("fault", ["softmax", "tanh"])
def test_bounded_outputs_are_allowed_where_the_loss_wants_them(tmp_path: Path, fault: str) -> None:
    torch.manual_seed(0)
    assert look(FAULTS[fault][0](), tmp_path, plan=replace(PLAN, loss="mse")) == []


class FrozenNorms(RandomSlopes):
    def train(self, mode: bool = True) -> nn.Module:
        super().train(mode)
        for norm in (self.bn1, self.bn2):
            norm.eval().requires_grad_(False)
        return self


@pytest.mark.parametrize(
    "network",
    [FrozenNorms, *(FAULTS[fault][0] for fault in ("frozen layer", "batch norm in eval in train()", "momentum 0"))],
)
def test_pretrained_weights_may_be_frozen(tmp_path: Path, network: type[Net]) -> None:
    torch.manual_seed(0)
    assert look(network(), tmp_path, pretrained=tmp_path / "weights.safetensors") == []


def test_layer_held_by_a_closure_is_found_in_the_graph(tmp_path: Path) -> None:
    extra = nn.Linear(768, 10)
    network = type("Closure", (Net,), {"forward": lambda self, x: Net.forward(self, x) + extra(x.flatten(1))})
    (finding,) = look(network(), tmp_path)
    assert finding.rule == "unregistered-parameters"
    assert "a tensor of shape (10, 768)" in finding.subject


def test_model_that_cannot_be_copied_is_not_examined(tmp_path: Path) -> None:
    """It gets one warning with the cause and the fix, since training may need no copy."""
    network = Net()
    network.lock = threading.Lock()
    (finding,) = look(network, tmp_path)
    assert (finding.rule, finding.severity) == ("model-not-examined", "warning")
    assert "cannot pickle '_thread.lock' object" in str(finding.values["reason"])


@pytest.mark.parametrize("network", [OwnNoise, KeptLosses])
def test_examined_training_is_unchanged(tmp_path: Path, network: type[Net]) -> None:
    model = ImageModel(network(), SPEC)
    before, images = copy.deepcopy(model.state_dict()), TRAIN.arrays[0].shards[0].copy()
    states = np.random.get_state()[1].tobytes(), torch.get_rng_state()
    own = getattr(model.network, "generator", torch.Generator())
    own_state = own.get_state()
    findings = look(model, tmp_path)
    assert findings == look(model, tmp_path) != []
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert all(parameter.grad is None and parameter.requires_grad for parameter in model.parameters())
    assert np.random.get_state()[1].tobytes() == states[0]
    assert torch.equal(torch.get_rng_state(), states[1])
    assert torch.equal(own.get_state(), own_state)
    assert model.training
    assert getattr(model.network, "norms", []) == []
    assert np.array_equal(TRAIN.arrays[0].shards[0], images)
    assert list(tmp_path.iterdir()) == []


ALLOWED_WITH_FEW_ROWS = {"long-warmup", "small-micro-batch", "first-loss", "cannot-overfit", "one-class"}


@pytest.mark.parametrize("rows", [1, 2, 12])
def test_few_rows_are_examined_without_an_error(tmp_path: Path, rows: int) -> None:
    torch.manual_seed(0)
    findings = look(Net(), tmp_path, splits=(split("train", rows, 1), split("validation", rows, 2)))
    assert {each.rule for each in findings} <= ALLOWED_WITH_FEW_ROWS


@pytest.mark.parametrize(("wanted", "rules"), [("always", 1), ("auto", 0), ("never", 0)])
def test_findings_become_notices_of_a_training(tmp_path: Path, wanted: str, rules: int) -> None:
    plan = replace(PLAN, doctor=wanted, batch_size=4)
    inputs = TrainingInputs(TRAIN, VALIDATION, replace(SPEC, name="convnet"), plan)
    events = fit(inputs, store=CheckpointStore(tmp_path), examine=examine)
    notices = [each.text for each in itertools.islice(events, 5) if isinstance(each, Notice)]
    assert [notice.partition(" ")[0] for notice in notices].count("doctor:") == rules


def test_training_with_checkpointed_gradients_is_examined_too(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = ImageModel(Net(), SPEC).to(memory_format=torch.channels_last)
    checkpointed(model)
    assert look(model, tmp_path, plan=replace(PLAN, gradient_checkpointing=True)) == []


SHIPPED = {"convnet": 16, "resnet": 16, "fastnet": 32}
SAMPLE = ("resnet18", "mobilenet_v3_small", "densenet121", "googlenet")  # of torchvision's classifiers


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_model_gets_no_finding(tmp_path: Path, name: str) -> None:
    assert examined(name, SHIPPED[name], tmp_path) == []


@pytest.mark.system
@pytest.mark.parametrize("name", SAMPLE)
def test_torchvision_model_gets_no_finding(tmp_path: Path, name: str) -> None:
    assert examined(name, 32, tmp_path) == []


@pytest.mark.slow
def test_large_torchvision_model_gets_no_finding(tmp_path: Path) -> None:
    """It has layer norms, scales of layers and random depth."""
    findings = examined("convnext_tiny", 64, tmp_path)
    assert {finding.rule for finding in findings} <= {"memory"}  # the machine may be small


@pytest.mark.system
def test_vision_transformer_gets_no_finding(tmp_path: Path) -> None:
    """A small one: torchvision's own take 224 x 224 pixels, a minute of a core."""
    from torchvision.models import VisionTransformer

    torch.manual_seed(0)
    network = VisionTransformer(32, 8, num_layers=2, num_heads=4, hidden_dim=64, mlp_dim=128, num_classes=10)
    assert examined("vit", 32, tmp_path, network=network) == []


def examined(name: str, side: int, folder: Path, *, network: nn.Module | None = None, seed: int = 0) -> list[Finding]:
    """Examine a fresh model with the shipped settings, on patterns of noise."""
    train, validation = split("train", 256, 1, side=side), split("validation", 80, 2, side=side)
    spec = image_spec(name, SPEC.classes, 3, side, side, (127.0,) * 3, (60.0,) * 3)
    torch.manual_seed(seed)
    model = ImageModel(network, spec) if network else build(spec)
    if hasattr(model.network, "initialise"):
        with torch.no_grad():
            model.network.initialise(*model.prepared(*train.batch(np.arange(96), CPU)[0]))
    plan = make_plan(seed=seed, device="cpu")
    return look(model, folder, plan=plan, spec=spec, splits=(train, validation))
