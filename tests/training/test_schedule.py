"""The learning rate at every step, against torch's own schedulers stepped the usual way."""

import math

import pytest
import torch
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, LRScheduler, SequentialLR

from ratchet.training import Points
from ratchet.training.schedule import learning_rate

PEAK = 0.3


def rates(plan, *, total: int, epoch: int) -> list[float]:
    return [learning_rate(plan, step=step, total_steps=total, steps_per_epoch=epoch) for step in range(total)]


def torch_rates(make, total: int) -> list[float]:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(()))], lr=PEAK)
    scheduler: LRScheduler = make(optimizer)
    found = []
    for _ in range(total):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return found


@pytest.mark.parametrize("total", [1, 2, 7, 100])
def test_constant_is_constant(lab, total: int) -> None:
    assert rates(lab.plan(schedule="constant", learning_rate=PEAK), total=total, epoch=5) == [PEAK] * total


@pytest.mark.parametrize("total", [1, 2, 7, 100])
def test_cosine_is_torchs(lab, total: int) -> None:
    found = rates(lab.plan(schedule="cosine", learning_rate=PEAK), total=total, epoch=5)
    assert found == pytest.approx(torch_rates(lambda own: CosineAnnealingLR(own, total), total), abs=1e-12)
    assert found[0] == PEAK


@pytest.mark.filterwarnings("ignore:The epoch parameter:UserWarning")  # torch's SequentialLR uses what torch deprecates
@pytest.mark.parametrize(("warmup_epochs", "steps"), [(1.0, 10), (0.5, 5), (2.25, 22)])
def test_warmup_cosine_is_torchs_linear_then_cosine(lab, warmup_epochs: float, steps: int) -> None:
    total = 60
    found = rates(
        lab.plan(schedule="warmup-cosine", warmup_epochs=warmup_epochs, learning_rate=PEAK), total=total, epoch=10
    )

    def make(optimizer) -> LRScheduler:
        rise = LinearLR(optimizer, start_factor=1 / (steps + 1), end_factor=1.0, total_iters=steps)
        return SequentialLR(optimizer, [rise, CosineAnnealingLR(optimizer, total - steps)], milestones=[steps])

    assert found == pytest.approx(torch_rates(make, total), abs=1e-9)
    assert found[0] == pytest.approx(PEAK / (steps + 1))
    assert found[steps] == PEAK
    assert max(found) == PEAK
    assert found[-1] == pytest.approx(PEAK / 2 * (1 + math.cos(math.pi * (total - steps - 1) / (total - steps))))


def test_no_warmup_is_plain_cosine(lab) -> None:
    warm = lab.plan(schedule="warmup-cosine", warmup_epochs=0.0)
    assert rates(warm, total=30, epoch=10) == rates(lab.plan(schedule="cosine"), total=30, epoch=10)


def test_a_warmup_longer_than_the_run_only_rises_to_the_highest_rate(lab) -> None:
    found = rates(lab.plan(schedule="warmup-cosine", warmup_epochs=50.0, learning_rate=PEAK), total=20, epoch=10)
    assert found == sorted(found)
    assert found[-1] == PEAK


@pytest.mark.parametrize("schedule", ["constant", "cosine", "warmup-cosine"])
def test_each_step_of_a_run_is_taken_at_its_own_rate(lab, schedule: str) -> None:
    plan = lab.plan(schedule=schedule)
    told = [point.values["step/learning_rate"] for point in lab.every(lab.events(plan), Points)]
    assert told == rates(plan, total=12, epoch=4)


def test_max_steps_shortens_the_course_too(lab) -> None:
    plan = lab.plan(schedule="cosine", max_steps=6)
    told = [point.values["step/learning_rate"] for point in lab.every(lab.events(plan), Points)]
    assert told == rates(plan, total=6, epoch=4)
