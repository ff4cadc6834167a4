"""Optimizers over groups, averages of weights: against torch's own, or worked out by hand."""

import copy

import pytest
import torch
from torch import nn

from ratchet.training import build, models
from ratchet.training.optim import Muon, build_optimizer, inputs_and_outputs, move_average, orthogonal, set_rate
from tests.training.conftest import Operations

CPU = torch.device("cpu")


def with_gradients(model: nn.Module, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator)


@pytest.mark.parametrize("shape", [(8, 20), (20, 8), (6, 6)])
@pytest.mark.parametrize("nesterov", [True, False])
def test_muon_on_a_matrix_is_torchs(shape: tuple[int, int], nesterov: bool) -> None:
    ours, theirs = (nn.Parameter(torch.ones(shape)) for _ in range(2))
    own = Muon(
        [{"params": [ours], "weight_decay": 0.1}],
        momentum=0.9, nesterov=nesterov, betas=(0.9, 0.999), eps=1e-8, fused=True,
    )  # fmt: skip
    torchs = torch.optim.Muon(
        [theirs], lr=0.02, momentum=0.9, nesterov=nesterov, weight_decay=0.1, adjust_lr_fn="match_rms_adamw"
    )
    for step in range(4):
        gradient = torch.randn(shape, generator=torch.Generator().manual_seed(step))
        for parameter, optimizer in ((ours, own), (theirs, torchs)):
            parameter.grad = gradient.clone()
            optimizer.param_groups[0]["lr"] = 0.02
            optimizer.step()
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


def test_muon_steps_filters_as_matrices_and_the_rest_by_adamw() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8))
    other = copy.deepcopy(model)
    groups = [{"params": list(model.parameters()), "weight_decay": 0.0}]
    muon = Muon(groups, momentum=0.0, nesterov=False, betas=(0.9, 0.99), eps=1e-8, fused=True)
    adamw = torch.optim.AdamW(other.parameters(), lr=0.02, betas=(0.9, 0.99), weight_decay=0.0, fused=True)
    for optimizer, net in ((muon, model), (adamw, other)):
        with_gradients(net, 0)
        for group in optimizer.param_groups:
            group["lr"] = 0.02
        optimizer.step()
    for (name, ours), theirs in zip(model.named_parameters(), other.parameters(), strict=True):
        if ours.dim() == 1:
            assert torch.equal(ours, theirs), name
    step = (model[0].weight - nn.Sequential(*copy.deepcopy(list(model)))[0].weight).flatten(1)
    assert step.abs().max() == 0
    assert {len(state) for state in muon.state.values()} == {1, 3}  # a moving average; AdamW's two and its step


@pytest.mark.parametrize("shape", [(16, 64), (64, 16), (32, 32)])
def test_an_orthogonal_matrix_has_singular_values_near_1(shape: tuple[int, int]) -> None:
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    values = torch.linalg.svdvals(orthogonal(matrix))
    assert values.min() > 0.3
    assert values.max() < 1.4


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw", "muon"])
def test_norms_and_biases_decay_only_when_all_do(lab, optimizer: str) -> None:
    torch.manual_seed(0)
    model = build(lab.make_spec("convnet"))
    for decay_all in (True, False):
        built = build_optimizer(model, lab.plan(optimizer=optimizer, weight_decay=0.1, decay_all=decay_all), CPU)
        result = {id(each): group["weight_decay"] for group in built.param_groups for each in group["params"]}
        assert len(result) == len(list(model.parameters()))
        for name, parameter in model.named_parameters():
            assert result[id(parameter)] == (0.1 if decay_all or parameter.dim() > 1 else 0.0), name


@pytest.mark.parametrize("optimizer", ["sgd", "muon"])
def test_each_stage_has_its_share_of_every_rate(lab, optimizer: str) -> None:
    from ratchet.training.transfer import stages

    torch.manual_seed(0)
    model = build(lab.make_spec("convnet"))
    built = build_optimizer(model, lab.plan(optimizer=optimizer, layer_decay=0.5), CPU)
    set_rate(built, 0.8)
    rates = {id(each): group["lr"] for group in built.param_groups for each in group["params"]}
    named, result = dict(model.named_parameters()), stages(model)
    assert len(result) >= 4
    for position, stage in enumerate(result):
        expected = 0.8 * 0.5 ** (len(result) - 1 - position)
        assert [rates[id(named[name])] for name in stage.parameters] == [expected] * len(stage.parameters)


def test_the_moving_average_equals_its_closed_form() -> None:
    """Buffers are averaged too."""
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    averaged = copy.deepcopy(model)
    expected = {name: tensor.clone().double() for name, tensor in model.state_dict().items()}
    for step in range(1, 30):
        with torch.no_grad():
            for position, tensor in enumerate([*model.parameters(), model[1].running_mean]):
                tensor.copy_(torch.full_like(tensor, float(step * position)))
            model[1].num_batches_tracked += 1
        move_average(averaged, model, decay=0.6, step=step)
        decay = min(0.6, step / (step + 10))
        for name, tensor in model.state_dict().items():
            expected[name] = decay * expected[name] + (1 - decay) * tensor.double()
    for name, tensor in averaged.state_dict().items():
        if name.endswith("num_batches_tracked"):
            assert tensor.item() == 29
        else:
            torch.testing.assert_close(tensor.double(), expected[name], rtol=1e-5, atol=1e-5)


def test_counts_of_all_batch_norms_are_copied_at_once() -> None:
    model = nn.Sequential(nn.BatchNorm1d(2), nn.BatchNorm1d(2), nn.BatchNorm1d(2))
    averaged = copy.deepcopy(model)
    for number, norm in enumerate(model):
        norm.num_batches_tracked += number
    with Operations() as operations:
        move_average(averaged, model, decay=0.6, step=1)
    assert operations.types_copied() == [{torch.int64}]
    assert not operations.count("copy_")
    assert [norm.num_batches_tracked.item() for norm in averaged] == [0, 1, 2]


def test_the_moving_average_is_validated_and_kept(lab) -> None:
    plan = lab.plan(epochs=1, ema_decay=0.5, optimizer="sgd", learning_rate=0.1)
    finished = lab.run(plan)
    _, snapshot = lab.store(plan).newest()
    kept = {
        name.removeprefix("averaged/"): tensor
        for name, tensor in snapshot.tensors.items()
        if name.startswith("averaged/")
    }
    lab.assert_same(finished.weights, kept)
    moving = [name for name in kept if "weight" in name]
    assert not any(torch.equal(kept[name], snapshot.tensors[f"model/{name}"]) for name in moving)


class Words(nn.Module):
    """Pixels as words: embeddings of three sorts, a hidden layer, a head that is declared first and runs last."""

    def __init__(self, *, classes: int, channels: int, height: int, width: int) -> None:
        super().__init__()
        self.head = nn.Linear(8, classes)
        self.words = nn.Embedding(256, 8)
        self.pos_embedding = nn.Parameter(torch.zeros(channels * height * width, 8))
        self.summary = nn.Parameter(torch.zeros(1, 1, 8))
        self.hidden = nn.Linear(8, 8)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        text = self.words(images.flatten(1).clamp(0, 255).long()) + self.pos_embedding
        return self.head(torch.relu(self.hidden(torch.cat([self.summary.expand(len(text), 1, 8), text], 1))).mean(1))


HEADS = {
    "words": {"head.weight", "head.bias", "words.weight", "pos_embedding", "summary"},
    "convnet": None,
    "fastnet": {"head.weight"},
    "resnet18": {"fc.weight", "fc.bias"},
    "squeezenet1_1": {"classifier.1.weight", "classifier.1.bias"},
    "vit_b_16": {"class_token", "encoder.pos_embedding", "heads.head.weight", "heads.head.bias"},
}


@pytest.mark.parametrize("name", HEADS)
def test_muon_leaves_embeddings_and_the_head_to_adamw(lab, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setitem(models._networks("image"), "words", Words)
    model = build(lab.make_spec(name, size=224 if name == "vit_b_16" else 32, channels=3))
    optimizer = build_optimizer(model, lab.plan(optimizer="muon"), CPU)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    by_adamw = {
        names[id(each)].removeprefix("network.")
        for group in optimizer.param_groups
        if not group["matrices"]
        for each in group["params"]
        if each.dim() > 1
    }
    last = [each for each, layer in model.network.named_modules() if isinstance(layer, nn.Linear | nn.Conv2d)][-1]
    expected = HEADS[name] or {f"{last}.weight"}
    assert by_adamw == {each for each in expected if not each.endswith("bias")}
    assert expected <= {each.removeprefix("network.") for each in inputs_and_outputs(model)} | {f"{last}.bias"}
    assert sum(len(group["params"]) for group in optimizer.param_groups) == len(names)


def test_the_heads_step_of_muon_is_adamws(lab) -> None:
    torch.manual_seed(0)
    model = build(lab.make_spec("fastnet"))
    other = copy.deepcopy(model)
    plan = lab.plan(optimizer="muon", weight_decay=0.3, betas=(0.9, 0.95))
    theirs = torch.optim.AdamW(other.network.head.parameters(), lr=0.02, betas=plan.betas, weight_decay=0.3)
    ours = build_optimizer(model, plan, CPU)
    set_rate(ours, 0.02)
    for step in range(3):
        with_gradients(model, step)
        for mine, its in zip(model.parameters(), other.parameters(), strict=True):
            its.grad = mine.grad.clone()
        ours.step(), theirs.step()
    torch.testing.assert_close(model.network.head.weight, other.network.head.weight, rtol=1e-6, atol=1e-7)
