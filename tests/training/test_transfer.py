"""Transfer learning: the stages of known nets, what learns when and how fast; gradient checkpointing."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from ratchet.training import build
from ratchet.training.memory import checkpointed
from ratchet.training.models import Model
from ratchet.training.transfer import freeze, rate_shares, stages, without_pretrained
from tests.training.conftest import make_plan


def names(model: Model) -> list[str]:
    return [stage.name.removeprefix("network.") for stage in stages(model)]


def learning(model: Model) -> set[str]:
    """The stages in which anything learns; all of a stage's parameters must agree."""
    result = set()
    for stage in stages(model):
        states = {model.get_parameter(name).requires_grad for name in stage.parameters}
        assert len(states) == 1, stage.name
        assert states == {module.training for module in stage.modules}
        if states == {True}:
            result.add(stage.name.removeprefix("network."))
    return result


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("convnet", ["features.0", "features.4", "features.8", "head.2", "head.5"]),
        ("resnet", ["stem", "blocks.0", "blocks.1", "blocks.2", "head"]),
        ("fastnet", ["groups.0", "groups.1", "groups.2", "head"]),
        ("resnet18", ["conv1", "layer1", "layer2", "layer3", "layer4", "fc"]),
        ("mobilenet_v3_small", [*(f"features.{number}" for number in range(13)), "classifier.0", "classifier.3"]),
        ("shufflenet_v2_x0_5", ["conv1", "stage2", "stage3", "stage4", "conv5", "fc"]),
        ("regnet_y_400mf", ["stem", *(f"trunk_output.block{number}" for number in (1, 2, 3, 4)), "fc"]),
        ("squeezenet1_1", [*(f"features.{number}" for number in (0, 3, 4, 6, 7, 9, 10, 11, 12)), "classifier.1"]),
    ],
)
def test_known_nets_have_the_stages_their_authors_drew(lab, name: str, expected: list[str]) -> None:
    model = build(lab.make_spec(name, size=64, channels=3))
    assert names(model) == expected
    in_stages = [parameter for stage in stages(model) for parameter in stage.parameters]
    assert sorted(in_stages) == sorted(name for name, _ in model.named_parameters())


class HeadFirst(nn.Module):
    """Its head is made before its body, and used after it; both share a scale."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))
        self.head = nn.Linear(4, 3)
        self.blocks = nn.ModuleDict({"last": nn.Linear(4, 4), "first": nn.Linear(64, 4)})

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        hidden = self.blocks["first"](images.flatten(1)) * self.scale
        return self.head(self.blocks["last"](hidden))


def test_stages_follow_the_order_of_execution(lab, monkeypatch) -> None:
    """Not the order of creation."""
    monkeypatch.setitem(build.__globals__["_networks"]("image"), "headfirst", lambda **_: HeadFirst())
    model = build(lab.make_spec("headfirst"))
    assert names(model) == ["blocks.first", "blocks.last", "head"]
    assert stages(model)[0].parameters[0] == "network.scale"


def test_a_net_of_one_layer_is_all_head(lab, monkeypatch) -> None:
    single = nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
    monkeypatch.setitem(build.__globals__["_networks"]("image"), "single", lambda **_: single)
    model = build(lab.make_spec("single")).train()
    freeze(model, make_plan(frozen_epochs=3), 0)
    assert all(parameter.requires_grad for parameter in model.parameters())


@pytest.mark.parametrize(
    ("frozen", "between", "course"),
    [
        (0, 0, [5, 5, 5, 5, 5, 5]),
        (2, 0, [1, 1, 5, 5, 5, 5]),
        (1, 1, [1, 2, 3, 4, 5, 5]),
        (1, 2, [1, 2, 2, 3, 3, 4]),
        (0, 2, [2, 2, 3, 3, 4, 4]),
        (9, 1, [1, 1, 1, 1, 1, 1]),
    ],
)
def test_stages_thaw_from_the_head_down_as_planned(lab, frozen: int, between: int, course: list[int]) -> None:
    model = build(lab.make_spec("resnet"))
    plan = make_plan(frozen_epochs=frozen, unfreeze_epochs=between)
    for epoch, thawed in enumerate(course):
        model.train()
        freeze(model, plan, epoch)
        assert learning(model) == set(names(model)[-thawed:]), epoch


def test_frozen_stages_depend_only_on_the_epoch(lab) -> None:
    """So a resumed run freezes the same stages."""
    plan = make_plan(frozen_epochs=1, unfreeze_epochs=1)
    once, on_the_way = build(lab.make_spec("resnet")), build(lab.make_spec("resnet"))
    for epoch in (4, 0, 1, 2):
        on_the_way.train()
        freeze(on_the_way, plan, epoch)
    for _ in range(2):
        once.train()
        freeze(once, plan, 2)
    assert learning(once) == learning(on_the_way) == {"blocks.1", "blocks.2", "head"}


def test_a_frozen_stage_changes_neither_weights_nor_statistics(lab) -> None:
    model = build(lab.make_spec("resnet18", size=32, channels=3)).train()
    freeze(model, make_plan(frozen_epochs=1), 0)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.randint(0, 256, (4, 3, 32, 32))).square().sum().backward()
        optimizer.step()
    changed = {name for name, tensor in model.state_dict().items() if not torch.equal(tensor, before[name])}
    assert changed == {"network.fc.weight", "network.fc.bias"}


def test_what_the_network_itself_keeps_from_learning_is_never_thawed(lab, monkeypatch) -> None:
    def partly_fixed(**_: Any) -> nn.Module:
        layers = [nn.Linear(64 if number == 0 else 6, 6) for number in range(4)]
        layers[1].requires_grad_(False)
        return nn.Sequential(nn.Flatten(), *layers, nn.Linear(6, 3))

    monkeypatch.setitem(build.__globals__["_networks"]("image"), "partly", partly_fixed)
    model = build(lab.make_spec("partly")).train()
    freeze(model, make_plan(frozen_epochs=1), 5)
    still = {name for name, parameter in model.named_parameters() if not parameter.requires_grad}
    assert still == {"network.2.weight", "network.2.bias"}


def test_each_stage_has_a_share_of_the_rate(lab) -> None:
    model = build(lab.make_spec("resnet18", size=32, channels=3))
    shares = rate_shares(model, make_plan(layer_decay=0.5))
    assert shares.keys() == dict(model.named_parameters()).keys()
    assert shares["network.fc.weight"] == 1.0
    assert shares["network.layer4.1.bn2.bias"] == 0.5
    assert shares["network.conv1.weight"] == shares["network.bn1.weight"] == 0.5**5
    assert set(rate_shares(model, make_plan()).values()) == {1.0}


def test_transfer_without_weights_to_transfer_is_said() -> None:
    assert without_pretrained(make_plan(), None) is None
    assert without_pretrained(make_plan(frozen_epochs=1), Path("resnet18.pt")) is None
    for settings in ({"frozen_epochs": 2}, {"unfreeze_epochs": 1}, {"layer_decay": 0.7}):
        message = without_pretrained(make_plan(**settings), None)
        assert message is not None
        assert "model.pretrained is none" in message
        assert f"training.{next(iter(settings))}" in message
        assert "random weights" in message


class Noisy(nn.Module):
    """Every way to keep state or draw numbers in a forward pass, in a block that is not a Sequential."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.utils.spectral_norm(nn.Conv2d(8, 8, 3, padding=1))
        self.norm = nn.InstanceNorm2d(8, affine=True, track_running_stats=True)
        self.second = nn.Conv2d(8, 8, 3, padding=1)
        self.drop = nn.Dropout(0.3)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        return value + self.drop(self.second(torch.relu(self.norm(self.first(value)))))


def noisy(*, classes: int, channels: int, **_: int) -> nn.Module:
    stem = nn.Sequential(nn.Conv2d(channels, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(0.2))
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, classes)]
    return nn.Sequential(stem, Noisy(), Noisy(), Noisy(), *head)


def kept_bytes(model: nn.Module, images: torch.Tensor) -> int:
    """Bytes of activations that a forward pass keeps for the backward one."""
    own = {tensor.data_ptr() for tensor in model.state_dict().values()}
    kept: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.data_ptr() not in own:
            kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = model(images).sum()
    assert loss.requires_grad
    return sum(kept.values())


@pytest.mark.parametrize("frozen", [0, 1])
@pytest.mark.parametrize("name", ["noisy", "convnet", "resnet", "fastnet", "resnet18", "densenet121"])
def test_checkpointed_gradients_are_equal_in_less_memory(lab, monkeypatch, name, frozen) -> None:
    """Gradients and buffers have the same bits."""
    monkeypatch.setitem(build.__globals__["_networks"]("image"), "noisy", noisy)
    model = build(lab.make_spec(name, size=32, channels=3)).train()
    twin = copy.deepcopy(model)
    checkpointed(twin)
    twin = copy.deepcopy(twin)  # a copy of a checkpointed model runs its own weights
    images = torch.randint(0, 256, (4, 3, 32, 32), dtype=torch.uint8)
    results = []
    for item in (model, twin):
        freeze(item, make_plan(frozen_epochs=2 * frozen, unfreeze_epochs=frozen), 3)
        torch.manual_seed(5)
        for _ in range(2):
            loss = item(images).logsumexp(1).sum()
            loss.backward()
        gradients = {name: p.grad for name, p in item.named_parameters() if p.grad is not None}
        results.append(({"loss": loss.detach()}, gradients, dict(item.named_buffers())))
    for plain, checked in zip(*results, strict=True):
        lab.assert_same(plain, checked)
    assert [*model.state_dict()] == [*twin.state_dict()]
    with torch.no_grad():
        assert torch.equal(twin.eval()(images), model.eval()(images))
    for item in (model, twin):
        item.train()
        freeze(item, make_plan(frozen_epochs=2 * frozen, unfreeze_epochs=frozen), 3)
    assert kept_bytes(twin, images) < (0.9 if frozen else 0.7) * kept_bytes(model, images)
