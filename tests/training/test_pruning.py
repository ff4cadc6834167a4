"""Channel pruning. A pruned model answers as the full one does when the removed channels are zero."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from ratchet.errors import TrainingError
from ratchet.kinds import Column, ModelSpec, TableInput, TextInput, Width
from ratchet.problems import Classes
from ratchet.training import TrainingInputs, build, initial_model, load_model, models, pruned_spec, save_model
from ratchet.training.pruning import pruned

TABLE = TableInput((Column("a", "numeric", quantiles=(0.0, 1.0)), Column("b", "categorical", categories=("x", "y"))))


def stored(folder: Path, spec: ModelSpec, *, seed: int = 3) -> Path:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        save_model(folder, build(spec).state_dict(), spec, about={"training": {}})
    return folder / "model.safetensors"


def size(spec: ModelSpec) -> int:
    return sum(weight.numel() for weight in build(spec).parameters())


class Crossed(nn.Module):
    """A residual sum, a concatenation, a depthwise convolution and gates: with one output less each, 57 channels."""

    def __init__(self, *, classes: int, channels: int, height: int, width: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(channels, 8, 3, padding=1)
        self.side = nn.Conv2d(8, 8, 3, padding=1)
        self.depthwise = nn.Conv2d(8, 16, 3, groups=8, padding=1)
        self.norm = nn.BatchNorm2d(16)
        self.gate = nn.Conv2d(16, 16, 1)
        self.head = nn.Linear(24 * 4, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.stem(images))
        x = x + self.side(x)
        wide = self.norm(self.depthwise(x))
        wide = wide * torch.sigmoid(self.gate(wide.mean((2, 3), keepdim=True)))
        both = torch.cat([x, wide], 1)
        return self.head(nn.functional.adaptive_avg_pool2d(both, 2).flatten(1))


class Written(nn.Module):
    """A width in forward."""

    def __init__(self, *, classes: int, channels: int, height: int, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, 8, 3)
        self.head = nn.Linear(8, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.head(self.conv(images).mean((2, 3)).view(-1, 8))


class Halved(nn.Module):
    """Channels that belong to a position: neither half may lose any."""

    def __init__(self, *, classes: int, channels: int, height: int, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, 8, 3)
        self.middle = nn.Conv2d(4, 8, 3)
        self.head = nn.Linear(8, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        first, second = self.conv(images).chunk(2, dim=1)
        return self.head(self.middle(first * second).amax((2, 3)))


@pytest.fixture
def nets(lab: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for network in (Crossed, Written, Halved):
        monkeypatch.setitem(models._networks("image"), network.__name__.lower(), network)


def test_channels_that_belong_together_go_together(lab: Any, nets: None) -> None:
    """Stem and side are added, so they lose the same channels, and depthwise loses two for each."""
    spec = pruned_spec(lab.make_spec("crossed"), 0.5)
    assert spec.widths == (
        Width("stem", 4, 1), Width("side", 4, 4), Width("depthwise", 8, 4), Width("norm", 8, 8), Width("gate", 8, 8),
        Width("head", 3, 48),
    )  # fmt: skip


def test_largest_norm_stays(lab: Any, nets: None) -> None:
    spec = lab.make_spec("crossed")
    full, smaller = build(spec), pruned_spec(spec, 0.5)
    with torch.no_grad():
        for number, weight in enumerate(full.network.state_dict().values()):
            weight.copy_(torch.rand(weight.shape) * 0.01 + number)
        for channel in (1, 2, 5, 7):
            full.network.side.weight[:, channel] += 100.0  # read by side, made by stem
    kept = pruned(full, smaller, 0.5).network
    assert torch.equal(kept.stem.weight, full.network.stem.weight[[1, 2, 5, 7]])
    assert torch.equal(kept.depthwise.weight, full.network.depthwise.weight[[2, 3, 4, 5, 10, 11, 14, 15]])


@pytest.mark.parametrize("name", ["crossed", "convnet", "resnet", "fastnet", "mobilenet_v3_small", "halved"])
def test_a_pruned_model_answers_as_without_removed_channels(lab: Any, nets: None, name: str) -> None:
    """`pruned_spec` refuses one that does not; here by its output for channels whose weights are zero."""
    spec = replace(lab.make_spec(name, size=32), flip_average=False)
    smaller = pruned_spec(spec, 0.5)
    assert size(smaller) < 0.8 * size(spec)
    assert smaller == ModelSpec.from_json(smaller.to_json())
    if name == "halved":
        assert [width.layer for width in smaller.widths] == ["middle", "head"]


@pytest.mark.parametrize(
    ("name", "described", "layers"),
    [
        ("mlp", TABLE, {"backbone.0", "backbone.3", "head"}),
        ("tabm", TABLE, {"backbone.0", "backbone.3"}),
        (
            "transformer",
            TextInput("bytes", longest=16),
            {f"blocks.{block}.layers.{layer}" for block in (0, 1) for layer in (0, 2)},
        ),
    ],
)
def test_hidden_units_of_other_kinds_are_pruned(name: str, described: Any, layers: set[str]) -> None:
    spec = ModelSpec(name, described, Classes(("a", "b")))
    smaller = pruned_spec(spec, 0.5)
    assert {width.layer for width in smaller.widths} == layers
    assert size(smaller) < size(spec)


@pytest.mark.parametrize("changes", [{}, {"precision": "bf16", "accumulation": 2, "ema_decay": 0.9}])
def test_a_pruned_run_resumes_exactly(lab: Any, tmp_path: Path, changes: dict[str, Any]) -> None:
    lab.pretrained = stored(tmp_path / "t", replace(lab.spec, name="convnet"))
    lab.spec = pruned_spec(replace(lab.spec, name="convnet"), 0.5)
    plan = lab.plan(epochs=2, prune_channels=0.5, **changes)
    finished = lab.run(plan, name="undisturbed")
    _, end = lab.store(plan, "undisturbed").newest()
    for step in (1, 4, 6):
        lab.stop_at(step, plan, name=f"stopped at {step}")
        resumed = lab.run(plan, name=f"stopped at {step}")
        assert resumed.history == finished.history
        lab.assert_same(lab.store(plan, f"stopped at {step}").newest()[1].tensors, end.tensors)
    save_model(tmp_path / "pruned", finished.weights, lab.spec, about={"training": {}})
    model, spec = load_model(tmp_path / "pruned")
    assert spec == lab.spec
    lab.assert_same(model.state_dict(), finished.weights)


def test_pretrained_weights_of_a_pruned_model(lab: Any, tmp_path: Path) -> None:
    """They continue its training with the same share, and are refused with another one."""
    spec = pruned_spec(replace(lab.spec, name="convnet"), 0.5)
    path = stored(tmp_path / "t", spec)
    inputs = TrainingInputs(lab.train, lab.validation, spec, lab.plan(prune_channels=0.5), pretrained=path)
    model, _ = initial_model(inputs)
    lab.assert_same(model.network.state_dict(), load_model(tmp_path / "t")[0].network.state_dict())
    with pytest.raises(TrainingError, match=r"^model\.pretrained: .* is of a pruned model"):
        initial_model(replace(inputs, spec=replace(spec, widths=())))


def test_initial_model_is_the_pruned_pretrained_one(lab: Any, tmp_path: Path) -> None:
    path = stored(tmp_path / "t", replace(lab.spec, name="convnet"))
    spec = pruned_spec(replace(lab.spec, name="convnet"), 0.5)
    plan = lab.plan(prune_channels=0.5)
    model, messages = initial_model(TrainingInputs(lab.train, lab.validation, spec, plan, pretrained=path))
    full, _ = load_model(tmp_path / "t")
    rows = {row.numpy().tobytes() for row in full.network.features[0].weight.detach()}
    assert all(row.numpy().tobytes() in rows for row in model.network.features[0].weight.detach())
    assert "pruned from 160,707 to 40,931 parameters" in messages[-1]


def test_a_network_that_cannot_lose_channels_is_refused(lab: Any, nets: None) -> None:
    with pytest.raises(TrainingError, match=r"^training\.prune_channels: written does not work with fewer channels"):
        pruned_spec(lab.make_spec("written"), 0.5)
    bag = ModelSpec("bag", TextInput("hashed", buckets=16, longest=8), Classes(("a", "b")))
    with pytest.raises(TrainingError, match=r"no layer of bag can lose channels"):
        pruned_spec(bag, 0.5)
    spec = lab.make_spec("convnet")
    state = torch.get_rng_state()
    assert pruned_spec(spec, 0.0) == spec
    assert pruned_spec(spec, 0.5) == pruned_spec(spec, 0.5)
    assert torch.equal(torch.get_rng_state(), state)
    with pytest.raises(TrainingError, match=r"no convolution, linear layer or batch norm gone"):
        build(replace(spec, widths=(Width("gone", 1, 1),)))
    assert np.isclose(size(pruned_spec(spec, 0.999)), 0, atol=2000)
