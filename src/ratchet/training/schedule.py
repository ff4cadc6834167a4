"""The learning rate as a pure function of step and history, so it needs no state in a checkpoint."""

import math
from collections.abc import Sequence

from ratchet.training.plan import Plan

__all__ = ["learning_rate", "plateau_falls"]

_CYCLE_START = 25.0  # one-cycle begins at the highest rate divided by this (Smith and Topin 2018, PyTorch's default)


def learning_rate(plan: Plan, *, step: int, total_steps: int, steps_per_epoch: int, falls: int = 0) -> float:
    """Return the learning rate for optimizer step `step` (counted from 0) of `total_steps`.

    constant, step, plateau: `learning_rate`, for the last two multiplied by `rate_factor` at each fall.
    cosine: half a cosine down from the highest rate (Loshchilov and Hutter 2017).
    warmup-cosine, warmup-linear: a linear rise over `warmup_epochs`, already above 0 in the first step, then the fall.
    exponential, of `ratchet lr-find`: from `learning_rate` to its product with `rate_factor`, evenly by logarithm.
    one-cycle: a cosine up over `cycle_rise` of the steps, then a cosine down (Smith and Topin 2018).
    All but the first three and exponential end at `final_rate` of the highest rate.

    Args:
        falls: falls of the plateau schedule so far.
    """
    top, last = plan.learning_rate, plan.learning_rate * plan.final_rate
    if plan.schedule == "constant":
        return top
    if plan.schedule == "exponential":
        return float(top * plan.rate_factor ** (step / max(1, total_steps - 1)))
    if plan.schedule == "step":
        return top * plan.rate_factor ** (step // steps_per_epoch // plan.step_epochs)
    if plan.schedule == "one-cycle":
        summit = plan.cycle_rise * total_steps - 1.0
        if summit > 0 and step <= summit:
            return _cosine(top / _CYCLE_START, top, step / summit)
        return _cosine(top, last, (step - summit) / max(1, total_steps - 1 - summit))
    warmup = 0 if plan.schedule == "cosine" else min(round(plan.warmup_epochs * steps_per_epoch), total_steps - 1)
    if step < warmup:
        return top * (step + 1) / (warmup + 1)
    if plan.schedule == "plateau":
        return float(top * plan.rate_factor**falls)
    done = (step - warmup) / max(1, total_steps - warmup)
    return top + (last - top) * done if plan.schedule == "warmup-linear" else _cosine(top, last, done)


def plateau_falls(values: Sequence[float], *, patience: int, min_delta: float) -> int:
    """Return how often the rate has fallen after epochs with these metric values (larger is better).

    It falls after more than `patience` epochs in a row that are not better than the best by more than `min_delta`, as
    torch.optim.lr_scheduler.ReduceLROnPlateau does with an absolute threshold.
    """
    best, stale, falls = -math.inf, 0, 0
    for value in values:
        if value > best + min_delta:
            best, stale = value, 0
        else:
            stale += 1
        if stale > patience:
            falls, stale = falls + 1, 0
    return falls


def _cosine(start: float, end: float, done: float) -> float:
    return end + (start - end) * 0.5 * (1.0 + math.cos(math.pi * done))
