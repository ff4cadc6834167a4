"""The learning rate at every step, against torch's own schedulers stepped the usual way."""

import math

import pytest
import torch
from torch.optim.lr_scheduler import (
    CosineAnnealingLR,
    LinearLR,
    LRScheduler,
    OneCycleLR,
    ReduceLROnPlateau,
    SequentialLR,
    StepLR,
)

from ratchet.training import Points
from ratchet.training.schedule import learning_rate, plateau_falls

PEAK = 0.3


def rates(plan, *, total: int, epoch: int) -> list[float]:
    return [learning_rate(plan, step=step, total_steps=total, steps_per_epoch=epoch) for step in range(total)]


def torch_rates(make, total: int) -> list[float]:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(()))], lr=PEAK)
    scheduler: LRScheduler = make(optimizer)
    result = []
    for _ in range(total):
        result.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return result


@pytest.mark.parametrize("total", [1, 2, 7, 100])
def test_constant_is_constant(lab, total: int) -> None:
    assert rates(lab.plan(schedule="constant", learning_rate=PEAK), total=total, epoch=5) == [PEAK] * total


@pytest.mark.parametrize("total", [1, 2, 7, 100])
def test_cosine_is_torchs(lab, total: int) -> None:
    result = rates(lab.plan(schedule="cosine", learning_rate=PEAK), total=total, epoch=5)
    assert result == pytest.approx(torch_rates(lambda own: CosineAnnealingLR(own, total), total), abs=1e-12)
    assert result[0] == PEAK


@pytest.mark.filterwarnings("ignore:The epoch parameter:UserWarning")  # torch's SequentialLR uses what torch deprecates
@pytest.mark.parametrize(("warmup_epochs", "steps"), [(1.0, 10), (0.5, 5), (2.25, 22)])
def test_warmup_cosine_is_torchs_linear_then_cosine(lab, warmup_epochs: float, steps: int) -> None:
    total = 60
    result = rates(
        lab.plan(schedule="warmup-cosine", warmup_epochs=warmup_epochs, learning_rate=PEAK), total=total, epoch=10
    )

    def make(optimizer) -> LRScheduler:
        rise = LinearLR(optimizer, start_factor=1 / (steps + 1), end_factor=1.0, total_iters=steps)
        return SequentialLR(optimizer, [rise, CosineAnnealingLR(optimizer, total - steps)], milestones=[steps])

    assert result == pytest.approx(torch_rates(make, total), abs=1e-9)
    assert result[0] == pytest.approx(PEAK / (steps + 1))
    assert result[steps] == PEAK
    assert max(result) == PEAK
    assert result[-1] == pytest.approx(PEAK / 2 * (1 + math.cos(math.pi * (total - steps - 1) / (total - steps))))


def test_no_warmup_is_plain_cosine(lab) -> None:
    warm = lab.plan(schedule="warmup-cosine", warmup_epochs=0.0)
    assert rates(warm, total=30, epoch=10) == rates(lab.plan(schedule="cosine"), total=30, epoch=10)


def test_a_warmup_longer_than_the_run_only_rises(lab) -> None:
    result = rates(lab.plan(schedule="warmup-cosine", warmup_epochs=50.0, learning_rate=PEAK), total=20, epoch=10)
    assert result == sorted(result)
    assert result[-1] == PEAK


SCHEDULES = ["constant", "step", "cosine", "warmup-cosine", "warmup-linear", "one-cycle"]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_each_step_has_its_own_rate(lab, schedule: str) -> None:
    plan = lab.plan(schedule=schedule)
    reported = [point.values["step/learning_rate"] for point in lab.every(lab.events(plan), Points)]
    assert reported == rates(plan, total=12, epoch=4)


def test_max_steps_shortens_the_course_too(lab) -> None:
    plan = lab.plan(schedule="cosine", max_steps=6)
    reported = [point.values["step/learning_rate"] for point in lab.every(lab.events(plan), Points)]
    assert reported == rates(plan, total=6, epoch=4)


def test_step_is_torchs(lab) -> None:
    plan = lab.plan(schedule="step", learning_rate=PEAK, step_epochs=2, rate_factor=0.3)
    by_epoch = torch_rates(lambda own: StepLR(own, 2, gamma=0.3), 7)
    assert rates(plan, total=70, epoch=10) == pytest.approx([rate for rate in by_epoch for _ in range(10)])


@pytest.mark.filterwarnings("ignore:The epoch parameter:UserWarning")
@pytest.mark.parametrize(("warmup", "final"), [(1.5, 0.0), (0.0, 0.25)])
def test_warmup_linear_is_torchs_linear_then_linear(lab, warmup: float, final: float) -> None:
    plan = lab.plan(schedule="warmup-linear", warmup_epochs=warmup, learning_rate=PEAK, final_rate=final)
    total, steps = 60, round(warmup * 10)

    def make(optimizer) -> LRScheduler:
        fall = LinearLR(optimizer, start_factor=1.0, end_factor=final, total_iters=total - steps)
        if not steps:
            return fall
        rise = LinearLR(optimizer, start_factor=1 / (steps + 1), end_factor=1.0, total_iters=steps)
        return SequentialLR(optimizer, [rise, fall], milestones=[steps])

    assert rates(plan, total=total, epoch=10) == pytest.approx(torch_rates(make, total), abs=1e-9)


@pytest.mark.parametrize(("total", "rise"), [(100, 0.3), (37, 0.45), (10, 0.25)])
def test_one_cycle_is_torchs(lab, total: int, rise: float) -> None:
    plan = lab.plan(schedule="one-cycle", learning_rate=PEAK, cycle_rise=rise, final_rate=1e-3)

    def make(optimizer) -> LRScheduler:
        return OneCycleLR(
            optimizer, PEAK, total_steps=total, pct_start=rise, cycle_momentum=False, final_div_factor=1 / (25 * 1e-3)
        )

    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(()))], lr=PEAK)
    scheduler, expected = make(optimizer), []
    for step in range(total):
        expected.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        if step < total - 1:  # torch's refuses to be stepped past its end
            scheduler.step()
    assert rates(plan, total=total, epoch=10) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("total", [1, 2, 3])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_shortest_runs_have_positive_rates(lab, schedule: str, total: int) -> None:
    result = rates(lab.plan(schedule=schedule, final_rate=0.01, learning_rate=PEAK), total=total, epoch=1)
    assert all(0 < rate <= PEAK for rate in result)


@pytest.mark.parametrize("patience", [0, 1, 3])
@pytest.mark.parametrize("min_delta", [0.0, 0.1])
def test_plateau_falls_when_torchs_does(patience: int, min_delta: float) -> None:
    generator = torch.Generator().manual_seed(patience)
    values = (torch.rand(40, generator=generator) + torch.linspace(0, 1, 40).sqrt()).tolist()
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(()))], lr=1.0)
    scheduler = ReduceLROnPlateau(
        optimizer, "max", factor=0.5, patience=patience, threshold=min_delta, threshold_mode="abs", eps=0.0
    )
    for epoch, value in enumerate(values):
        scheduler.step(value)
        falls = plateau_falls(values[: epoch + 1], patience=patience, min_delta=min_delta)
        assert optimizer.param_groups[0]["lr"] == pytest.approx(0.5**falls)
    assert falls > 1


def test_plateau_lowers_the_rate_of_a_stale_run(lab) -> None:
    """A rate too small to change an answer: every epoch after the first is one without a better."""
    plan = lab.plan(
        schedule="plateau", learning_rate=1e-12, plateau_patience=1, rate_factor=0.5, epochs=6, warmup_epochs=0.0,
        best="validation/accuracy",
    )  # fmt: skip
    reported = {point.epoch: point.values["step/learning_rate"] for point in lab.every(lab.events(plan), Points)}
    assert reported == pytest.approx({1: 1e-12, 2: 1e-12, 3: 1e-12, 4: 5e-13, 5: 5e-13, 6: 2.5e-13})
