"""Check settings against the length of the run and the model: allowed combinations that are hardly intended."""

from collections.abc import Iterator
from pathlib import Path

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from ratchet.training.batches import run_steps
from ratchet.training.doctor.findings import Finding
from ratchet.training.plan import Plan
from ratchet.training.schedule import learning_rate

__all__ = ["check_settings"]

_POINTS = 1000  # steps whose learning rate is computed
_LOW = 1e-3  # share of learning_rate below which hardly anything is learned
_FEWEST = 8  # samples: below, batch norm's error rises (Wu and He 2018, figure 1: +1 % at 8, +2 % at 4, +10 % at 2)
_WITH_WARMUP = ("warmup-cosine", "warmup-linear", "plateau")


def check_settings(model: nn.Module, plan: Plan, *, rows: int, pretrained: Path | None) -> Iterator[Finding]:
    """Check schedule, micro-batches and transfer settings of a training on `rows` samples."""
    yield from _schedule(plan, *run_steps(rows, plan))
    norms = sum(isinstance(module, _BatchNorm) for module in model.modules())
    samples = min(plan.batch_size, rows) // plan.accumulation
    if norms and samples < _FEWEST:
        sizes = {"batch_size": plan.batch_size, "accumulation": plan.accumulation}
        yield Finding("small-micro-batch", values={"norms": norms, "samples": samples, "fewest": _FEWEST, **sizes})
    transfer = [name for name in ("frozen_epochs", "unfreeze_epochs") if getattr(plan, name)]
    transfer += ["layer_decay"] if plan.layer_decay < 1.0 else []
    if transfer and pretrained is None:
        yield Finding("transfer-without-weights", tuple(f"training.{name}" for name in transfer))


def _schedule(plan: Plan, steps: int, steps_per_epoch: int) -> Iterator[Finding]:
    epochs = steps / steps_per_epoch
    run = {"steps": steps, "epochs": epochs}
    if plan.schedule in _WITH_WARMUP and 2 * plan.warmup_epochs > max(epochs, 1):
        rule = "endless-warmup" if plan.warmup_epochs >= epochs else "long-warmup"
        yield Finding(rule, values={"warmup": plan.warmup_epochs, **run})
    elif plan.schedule == "step" and plan.step_epochs >= epochs:
        yield Finding("late-step", values={"step_epochs": plan.step_epochs, **run})
    elif plan.schedule == "plateau" and plan.plateau_patience + 1 >= epochs:
        yield Finding("late-plateau", values={"patience": plan.plateau_patience, **run})
    else:
        points = range(0, steps, max(1, steps // _POINTS))
        rates = (learning_rate(plan, step=step, total_steps=steps, steps_per_epoch=steps_per_epoch) for step in points)
        share = sum(rate < _LOW * plan.learning_rate for rate in rates) / len(points)
        if share > 0.5:
            yield Finding("low-learning-rate", values={"share": share, **run})
