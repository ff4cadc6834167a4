"""rate_range: the range test of the learning rate (Smith 2017, "Cyclical Learning Rates for Training Neural Networks").

The training of the settings runs for some steps, by the same loop, while the rate grows exponentially. It ends when
the loss diverges. No stage of DVC: no checkpoint is written and nothing is recorded.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from ratchet import training
from ratchet.data.manifest import Manifest
from ratchet.errors import NotFinite, TrainingError
from ratchet.settings.model import Params
from ratchet.training.checkpoint import OthersCheckpoints, Snapshot
from ratchet.workspace import Workspace
from tasks.progress import StageProgress
from tasks.training_job import TrainingJob

__all__ = ["RateRange", "rate_range"]

_WINDOWS = 10  # of the moving average in the test; before the first one it has no suggestion
_DIVERGED = 3.0  # rise of the loss above its minimum, as a factor of that, at which the test ends


class _NoCheckpoints(OthersCheckpoints):
    """Writes none."""

    def put(self, snapshot: Snapshot) -> None:
        """Drop the snapshot."""


@dataclass
class RateRange:
    """Rates and mean losses of the steps, and the smoothed losses: their moving average, corrected for its start."""

    steps: int  # that the test may have
    rates: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    smoothed: list[float] = field(default_factory=list)
    end: str = ""  # why it ended before the last step

    def add(self, rate: float, loss: float) -> bool:
        """Add a step, and return whether the loss has diverged."""
        decay = 1.0 - _WINDOWS / self.steps
        self.rates.append(rate)
        self.losses.append(loss)
        weights = decay ** np.arange(len(self.losses))[::-1]
        self.smoothed.append(float((weights * self.losses).sum() / weights.sum()))
        best = min(self.smoothed)
        return len(self.losses) > self._first and self.smoothed[-1] - best > _DIVERGED * abs(best)

    @property
    def _first(self) -> int:
        return self.steps // _WINDOWS

    @property
    def _lowest(self) -> int:
        """Step with the smallest smoothed loss."""
        return int(np.argmin(self.smoothed)) if self.smoothed else 0

    @property
    def falls(self) -> bool:
        """Whether the loss falls in the test, by more than it varies from batch to batch at the first rates."""
        if self._lowest <= self._first:
            return False
        noise = float(np.std(self.losses[: self._first])) + 1e-6 * abs(self.losses[0])
        return self.smoothed[self._first] - self.smoothed[self._lowest] > noise

    @property
    def still_falls(self) -> bool:
        """Whether the loss is smallest at the largest rate, so that its minimum is not known."""
        return self.falls and not self.end and self._lowest >= self.steps - self._first // 2

    @property
    def steepest(self) -> float:
        """The rate at which the smoothed loss falls most steeply over the logarithm of the rate."""
        slopes = np.gradient(self.smoothed, np.log(self.rates))[self._first : self._lowest + 1]
        return self.rates[self._first + int(np.argmin(slopes))]

    @property
    def tenth(self) -> float:
        """A tenth of the rate with the smallest smoothed loss."""
        return self.rates[self._lowest] / 10


def rate_range(
    params: Params, workspace: Workspace, *, steps: int, lowest: float, highest: float, progress: StageProgress
) -> RateRange:
    """Train `steps` steps from rate `lowest` to rate `highest`, or until the loss diverges.

    Raises:
        TrainingError: the model has no learning rate, or the training cannot begin.
    """
    job = TrainingJob.of(params, workspace, Manifest.read(workspace.packed))
    if job.variant == "baseline":
        raise TrainingError(
            "model.name: found baseline, which has no learning rate. Allowed: a network. Fix: `ratchet set "
            "model.name=auto`"
        )
    result = RateRange(steps)
    inputs = job.inputs(workspace.packed)
    try:
        plan = _test_plan(job.plan, len(inputs.train), steps, lowest, highest)
        for event in _points(replace(inputs, plan=plan), workspace):
            progress.update(event.step, steps, f"rate {event.values['step/learning_rate']:.2g}")
            if result.add(event.values["step/learning_rate"], event.values["step/loss"]):
                result.end = "the loss diverged"
                break
            if event.step == steps:
                break  # before the validation at the end of an epoch
    except NotFinite as error:
        result.end = str(error).partition(". Fix:")[0]
    finally:
        inputs.train.close()
        inputs.validation.close()
    return result


def _points(inputs: training.TrainingInputs, workspace: Workspace) -> Iterator[training.Points]:
    store = _NoCheckpoints(workspace.state / "no-checkpoints")
    events = training.fit(inputs, store=store)
    try:
        yield from (event for event in events if isinstance(event, training.Points))
    finally:
        events.close()


def _test_plan(plan: training.Plan, rows: int, steps: int, lowest: float, highest: float) -> training.Plan:
    """Return the plan of the test: one process, every step reported, nothing kept."""
    _, per_epoch = training.run_steps(rows, plan)
    return replace(
        plan,
        schedule="exponential",
        learning_rate=lowest,
        rate_factor=highest / lowest,
        epochs=math.ceil(steps / per_epoch),
        max_steps=steps,
        log_every=1,
        processes=1,
        nodes=1,
        shard="none",
        patience=0,
        max_rollbacks=0,
        checkpoint_steps=0,
        profile=0,
        doctor="never",
    )
