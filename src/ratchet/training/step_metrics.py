"""Metrics of optimizer steps: kept on the device until they are fetched, with throughput and time spent on data."""

import math
import time
from collections.abc import Generator, Iterator
from itertools import groupby
from typing import TypeVar

import torch

from ratchet.errors import NotFinite
from ratchet.training.events import Points
from ratchet.training.plan import Plan
from ratchet.training.state import EpochSums
from ratchet.training.step import StepMetrics

__all__ = ["MetricBuffer", "Throughput", "require_finite", "timed"]

Item = TypeVar("Item")
_FETCH_INTERVAL = 1.0  # seconds; a fetch makes the device stop and wait


class Throughput:
    """Samples per second and the share of time spent waiting for data, since the last lap."""

    def __init__(self) -> None:
        self.samples = 0
        self.waited = 0.0  # seconds
        self._start = time.perf_counter()

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self._start

    def lap(self) -> tuple[float, float]:
        """Return (samples per second, share of time spent waiting) and begin the next lap."""
        seconds = max(self.seconds, 1e-9)
        rates = self.samples / seconds, self.waited / seconds
        self.samples, self.waited, self._start = 0, 0.0, time.perf_counter()
        return rates


def timed(items: Generator[Item], *clocks: Throughput) -> Generator[Item]:
    """Yield the same items and add the time that each took to the clocks. Closing it closes `items`."""
    try:
        while True:
            start = time.perf_counter()
            try:
                item = next(items)
            except StopIteration:
                return
            for clock in clocks:
                clock.waited += time.perf_counter() - start
            yield item
    finally:
        items.close()


class MetricBuffer:
    """Holds the metrics of steps on the device and fetches them together."""

    def __init__(self, plan: Plan, device: torch.device) -> None:
        self.plan, self.device = plan, device
        self.step_clock, self.epoch_clock = Throughput(), Throughput()
        self._fetched = time.perf_counter()
        self._steps: list[StepMetrics] = []

    def add(self, step: StepMetrics, *, samples: int) -> None:
        self._steps.append(step)
        for clock in (self.step_clock, self.epoch_clock):
            clock.samples += samples

    def clear(self) -> None:
        """Drop the metrics that were not fetched: their steps were rolled back."""
        self._steps.clear()

    @property
    def is_due(self) -> bool:
        """Whether to fetch now. A CPU does not run ahead, so a fetch costs nothing there."""
        return self.device.type == "cpu" or time.perf_counter() - self._fetched > _FETCH_INTERVAL

    def fetch(self, sums: EpochSums, *, epoch: int, attempt: int) -> Iterator[Points]:
        """Fetch all metrics from the device at once, add them to the sums of the epoch and yield those to log.

        Raises:
            NotFinite: a loss is not finite, or a gradient norm is not and no loss scaling explains it. The steps
                before it are yielded first, and are in no sum.
        """
        if not self._steps:
            return
        steps, self._steps = self._steps, []
        fetched = _means(steps), _numbers([step.norm for step in steps])
        for place, (step, loss, norm) in enumerate(zip(steps, *fetched, strict=True)):
            metrics = {"loss": loss} if step.is_scaled else {"loss": loss, "gradient norm": norm}
            try:
                require_finite(metrics, step=step.step, epoch=epoch, rate=step.rate)
            except NotFinite:
                self._steps = steps[:place]
                yield from self.fetch(EpochSums(), epoch=epoch, attempt=attempt)
                raise
        totals, right = _numbers([step.loss for step in steps]), _numbers([step.correct for step in steps])
        for total, correct, norm in zip(totals, right, fetched[1], strict=True):
            sums.add(loss=total, correct=int(correct), norm=norm)
        self._fetched = time.perf_counter()
        logged = [each for each in zip(steps, *fetched, strict=True) if each[0].parameter_norm is not None]
        if not logged:
            return
        speed, waited = self.step_clock.lap()
        rates = {"step/samples_per_second": speed, "step/data_wait": waited}
        for step, loss, norm in logged:
            assert step.parameter_norm is not None
            values = {
                "step/loss": loss,
                "step/gradient_norm": norm,
                "step/parameter_norm": step.parameter_norm.item(),
                "step/learning_rate": step.rate,
            }
            if step.loss_scale is not None:
                values["step/loss_scale"] = step.loss_scale
            values = {name: value for name, value in values.items() if math.isfinite(value)}
            yield Points(step.step, epoch, values, rates if step is logged[-1][0] else {}, attempt)


def _numbers(scalars: list[torch.Tensor]) -> list[float]:
    """Return the numbers of scalars, which the device sends at once."""
    numbers: list[float] = torch.stack(scalars).tolist() if len(scalars) > 1 else [scalars[0].item()]
    return numbers


def _means(steps: list[StepMetrics]) -> list[float]:
    """Return the mean loss of each step. Steps of the same weight are divided together."""
    if len(steps) == 1:
        return _numbers([steps[0].loss / steps[0].weight])
    groups = [(weight, [step.loss for step in group]) for weight, group in groupby(steps, lambda step: step.weight)]
    means: list[float] = torch.cat([torch.stack(losses) / weight for weight, losses in groups]).tolist()
    return means


def require_finite(metrics: dict[str, float], *, step: int, epoch: int, rate: float) -> None:
    """Refuse a metric that is infinite or not a number.

    Raises:
        NotFinite: the message names the metric.
    """
    for name, value in metrics.items():
        if not math.isfinite(value):
            raise NotFinite(
                f"the {name} is {value} at step {step} (epoch {epoch}, learning rate {rate:.3g})", step=step
            )
