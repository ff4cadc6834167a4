"""Metrics of steps are fetched from the device seldom, whatever is logged."""

import torch
from waiting import until

from ratchet.training.step import StepMetrics
from ratchet.training.step_metrics import MetricBuffer
from tests.training.conftest import make_plan


def test_a_fetch_without_a_logged_step_is_not_due_again() -> None:
    buffer = MetricBuffer(make_plan(), torch.device("cuda"))  # which runs ahead; nothing here computes on it
    until(lambda: buffer.is_due)
    loss = torch.zeros(())
    buffer.add(StepMetrics(step=1, rate=0.1, loss=loss, norm=loss, is_scaled=False), samples=4)
    assert list(buffer.fetch(epoch=1, attempt=0)) == []
    assert not buffer.is_due
    assert buffer.step_clock.samples == 4  # the next logged step reports the speed of all
