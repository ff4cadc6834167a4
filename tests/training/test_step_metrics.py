"""Metrics of steps are fetched from the device seldom, whatever is logged."""

import pytest
import torch
from waiting import until

from ratchet.errors import NotFinite
from ratchet.training.state import EpochSums
from ratchet.training.step import StepMetrics
from ratchet.training.step_metrics import MetricBuffer
from tests.training.conftest import Operations, make_plan


def metrics(step: int, loss: torch.Tensor, *, weight: float = 4.0, is_logged: bool = False) -> StepMetrics:
    norm = loss * 3
    return StepMetrics(step, 0.1, loss, torch.tensor(step), weight, norm, False, torch.ones(()) if is_logged else None)


def test_a_fetch_without_a_logged_step_is_not_due_again() -> None:
    buffer = MetricBuffer(make_plan(), torch.device("cuda"))  # which runs ahead; nothing here computes on it
    until(lambda: buffer.is_due)
    buffer.add(metrics(1, torch.zeros(())), samples=4)
    assert list(buffer.fetch(EpochSums(), epoch=1, attempt=0)) == []
    assert not buffer.is_due
    assert buffer.step_clock.samples == 4  # the next logged step reports the speed of all


def test_fetched_sums_and_means_have_the_bits_of_single_steps() -> None:
    """Against each step by itself, as PyTorch adds and divides in float32."""
    losses = torch.rand(40, generator=torch.Generator().manual_seed(1)).mul_(100).unbind()
    weights = [4.0 if step % 7 else 3.7 for step in range(40)]
    sums, total, norm = EpochSums(), torch.zeros(()), torch.zeros(())
    points = []
    for steps in (range(13), range(13, 40)):
        buffer = MetricBuffer(make_plan(), torch.device("cpu"))
        for step in steps:
            buffer.add(metrics(step, losses[step], weight=weights[step], is_logged=True), samples=4)
            total += losses[step]
            norm += losses[step] * 3
        points += buffer.fetch(sums, epoch=1, attempt=0)
    assert (sums.loss, sums.correct, sums.norm) == (total.item(), sum(range(40)), norm.item())
    expected = [(loss / weight).item() for loss, weight in zip(losses, weights, strict=True)]
    assert [each.values["step/loss"] for each in points] == expected


def test_a_fetch_of_many_steps_takes_few_operations() -> None:
    buffer = MetricBuffer(make_plan(), torch.device("cpu"))
    for step in range(50):
        buffer.add(metrics(step, torch.ones(())), samples=4)
    with Operations() as operations:
        assert list(buffer.fetch(EpochSums(), epoch=1, attempt=0)) == []
    assert operations.count("stack", "cat", "div") < 10


def test_steps_before_one_that_is_not_finite_are_reported() -> None:
    """A GPU fetches many steps at once."""
    buffer, points = MetricBuffer(make_plan(), torch.device("cpu")), []
    for step, loss in enumerate((1.0, 2.0, torch.inf, torch.nan), 1):
        buffer.add(metrics(step, torch.tensor(loss), is_logged=True), samples=4)
    with pytest.raises(NotFinite, match="the loss is inf at step 3"):
        points.extend(buffer.fetch(EpochSums(), epoch=1, attempt=0))
    assert [(each.step, each.values["step/loss"]) for each in points] == [(1, 0.25), (2, 0.5)]


def test_a_step_that_is_not_finite_is_in_no_sum() -> None:
    buffer, sums = MetricBuffer(make_plan(), torch.device("cpu")), EpochSums()
    buffer.add(metrics(1, torch.ones(())), samples=4)
    buffer.add(metrics(2, torch.tensor(torch.nan)), samples=4)
    with pytest.raises(NotFinite, match="the loss is nan at step 2"):
        list(buffer.fetch(sums, epoch=1, attempt=0))
    assert sums == EpochSums()
