"""The settings, held against the length of the run and against the model: what is allowed and nobody means."""

from collections.abc import Iterator
from pathlib import Path

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from ratchet.training.batches import run_steps
from ratchet.training.doctor.findings import Finding
from ratchet.training.plan import Plan
from ratchet.training.schedule import learning_rate
from ratchet.training.transfer import without_pretrained

__all__ = ["examine_course"]

_POINTS = 1000  # of the learning rate's course that are looked at
_LOW = 1e-3  # a share of learning_rate below which hardly anything is learned
_FEWEST = 8  # samples: below, batch norm's error rises (Wu and He 2018, figure 1: +1 % at 8, +2 % at 4, +10 % at 2)


def examine_course(model: nn.Module, plan: Plan, *, rows: int, pretrained: Path | None) -> Iterator[Finding]:
    """Look at schedule, micro-batches and transfer settings of a training on `rows` samples."""
    yield from _schedule(plan, *run_steps(rows, plan))
    yield from _batch_norm(model, plan, rows)
    yield from _transfer(plan, pretrained)


def _schedule(plan: Plan, total: int, steps_per_epoch: int) -> Iterator[Finding]:
    epochs = total / steps_per_epoch
    long = f"the run of {total:,} steps ({epochs:.3g} epochs)"
    if plan.schedule in ("warmup-cosine", "warmup-linear", "plateau") and 2 * plan.warmup_epochs > max(epochs, 1):
        yield Finding(
            "schedule",
            f"training.warmup_epochs {plan.warmup_epochs:g} is more than half of {long}: the learning rate "
            f"{'never stands' if plan.warmup_epochs >= epochs else 'stands only briefly'} at training.learning_rate",
            "shorten the warm-up to a tenth of the run, or train longer",
        )
    elif plan.schedule == "step" and plan.step_epochs >= epochs:
        yield Finding(
            "schedule",
            f"training.step_epochs {plan.step_epochs} lies beyond {long}: the learning rate never falls",
            "set it to a third of training.epochs, or training.schedule to constant if that is meant",
        )
    elif plan.schedule == "plateau" and plan.plateau_patience + 1 >= epochs:
        yield Finding(
            "schedule",
            f"training.plateau_patience {plan.plateau_patience} lasts beyond {long}: the learning rate never falls",
            "lower it, or set training.schedule to constant if that is meant",
        )
    else:
        every = max(1, total // _POINTS)
        looked_at = range(0, total, every)
        low = sum(
            learning_rate(plan, step=step, total_steps=total, steps_per_epoch=steps_per_epoch)
            < _LOW * plan.learning_rate
            for step in looked_at
        )
        if 2 * low > len(looked_at):
            yield Finding(
                "schedule",
                f"for {low / len(looked_at):.0%} of {long} the learning rate lies below a thousandth of "
                "training.learning_rate: hardly anything is learned there",
                "raise training.step_epochs or training.rate_factor, or train for fewer epochs",
            )


def _batch_norm(model: nn.Module, plan: Plan, rows: int) -> Iterator[Finding]:
    norms = sum(isinstance(module, _BatchNorm) for module in model.modules())
    samples = min(plan.batch_size, rows) // plan.accumulation
    if norms and samples < _FEWEST:
        yield Finding(
            "batch norm",
            f"{norms} batch norms take mean and variance of {samples} samples at a time (training.batch_size "
            f"{plan.batch_size} in training.accumulation {plan.accumulation} parts): both are little but noise",
            f"give each part at least {_FEWEST} samples, or take a model with group or layer norm",
        )


def _transfer(plan: Plan, pretrained: Path | None) -> Iterator[Finding]:
    sentence = without_pretrained(plan, pretrained)
    if sentence:
        told, _, way_out = sentence.partition("; ")
        yield Finding("transfer", told, way_out)
