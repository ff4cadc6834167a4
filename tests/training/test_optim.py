"""Optimizers over groups, averages of weights: against torch's own, or worked out by hand."""

import copy

import pytest
import torch
from torch import nn

from ratchet.training import build
from ratchet.training.muon import Muon, orthogonal
from ratchet.training.optim import build_optimizer, move_average, set_rate

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
        found = {id(one): group["weight_decay"] for group in built.param_groups for one in group["params"]}
        assert len(found) == len(list(model.parameters()))
        for name, parameter in model.named_parameters():
            assert found[id(parameter)] == (0.1 if decay_all or parameter.dim() > 1 else 0.0), name


@pytest.mark.parametrize("optimizer", ["sgd", "muon"])
def test_each_stage_has_its_share_of_every_rate(lab, optimizer: str) -> None:
    from ratchet.training.transfer import stages

    torch.manual_seed(0)
    model = build(lab.make_spec("convnet"))
    built = build_optimizer(model, lab.plan(optimizer=optimizer, layer_decay=0.5), CPU)
    set_rate(built, 0.8)
    rates = {id(one): group["lr"] for group in built.param_groups for one in group["params"]}
    named, found = dict(model.named_parameters()), stages(model)
    assert len(found) >= 4
    for position, stage in enumerate(found):
        expected = 0.8 * 0.5 ** (len(found) - 1 - position)
        assert [rates[id(named[name])] for name in stage.parameters] == [expected] * len(stage.parameters)


def test_an_average_is_the_closed_form_and_the_buffers_go_with_it() -> None:
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


def test_with_an_average_it_is_the_average_that_is_judged_and_kept(lab) -> None:
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
