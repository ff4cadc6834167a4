"""The figures of steps on their way from the device to whoever reads them, and how fast they come."""

import math
from collections.abc import Iterator

import torch

from ratchet.errors import NotFinite
from ratchet.training.events import Points
from ratchet.training.plan import Plan
from ratchet.training.step import Figures
from ratchet.training.throughput import Throughput

__all__ = ["Meter", "require_finite"]

_LONGEST_SILENCE = 1.0  # seconds that figures may wait on a device that runs ahead: fetching makes it stop and wait


class Meter:
    """Holds figures on the device until they are fetched together."""

    def __init__(self, plan: Plan, device: torch.device) -> None:
        self.plan, self.device = plan, device
        self.step_clock, self.epoch_clock = Throughput(), Throughput()
        self._waiting: list[Figures] = []

    def add(self, figures: Figures, *, samples: int) -> None:
        """A step over so many samples is made."""
        self._waiting.append(figures)
        for clock in (self.step_clock, self.epoch_clock):
            clock.samples += samples

    def forget(self) -> None:
        """Figures not yet fetched are of a course that was given up."""
        self._waiting.clear()

    @property
    def is_due(self) -> bool:
        """A CPU does not run ahead, so there fetching costs nothing."""
        return self.device.type == "cpu" or self.step_clock.seconds > _LONGEST_SILENCE

    def fetch(self, *, epoch: int, attempt: int) -> Iterator[Points]:
        """The points to log among the waiting figures, brought from the device at once.

        Raises:
            NotFinite: a loss is not finite, or a gradient norm where no loss scaling makes that harmless.
        """
        if not self._waiting:
            return
        steps, self._waiting = self._waiting, []
        fetched = torch.stack([torch.stack([one.loss, one.norm]) for one in steps]).tolist()
        for one, (loss, norm) in zip(steps, fetched, strict=True):
            figures = {"loss": loss} if one.is_scaled else {"loss": loss, "gradient norm": norm}
            require_finite(figures, step=one.step, epoch=epoch, rate=one.rate)
        logged = [(one, *pair) for one, pair in zip(steps, fetched, strict=True) if one.parameter_norm is not None]
        if not logged:
            return
        speed, waited = self.step_clock.lap()
        rates = {"step/samples_per_second": speed, "step/data_wait": waited}
        for one, loss, norm in logged:
            assert one.parameter_norm is not None
            values = {
                "step/loss": loss,
                "step/gradient_norm": norm,
                "step/parameter_norm": one.parameter_norm.item(),
                "step/learning_rate": one.rate,
            }
            if one.loss_scale is not None:
                values["step/loss_scale"] = one.loss_scale
            values = {name: value for name, value in values.items() if math.isfinite(value)}
            yield Points(one.step, epoch, values, rates if one is logged[-1][0] else {}, attempt)


def require_finite(figures: dict[str, float], *, step: int, epoch: int, rate: float) -> None:
    """Refuse to go on with a figure that is infinite or not a number.

    Raises:
        NotFinite: naming it.
    """
    for name, value in figures.items():
        if not math.isfinite(value):
            raise NotFinite(
                f"the {name} is {value} at step {step} (epoch {epoch}, learning rate {rate:.3g})", step=step
            )
