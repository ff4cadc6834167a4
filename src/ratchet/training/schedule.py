"""The learning rate as a pure function of the step: nothing to save, nothing to step in the wrong place."""

import math

from ratchet.training.plan import Plan

__all__ = ["learning_rate"]


def learning_rate(plan: Plan, *, step: int, total_steps: int, steps_per_epoch: int) -> float:
    """The rate for optimizer step `step` (counted from 0) of `total_steps`.

    cosine: half a cosine from the highest rate to 0 (Loshchilov and Hutter 2017); warmup-cosine: a linear rise over the
    first `warmup_epochs` before it, the first step already above 0.
    """
    if plan.schedule == "constant":
        return plan.learning_rate
    warmup = 0
    if plan.schedule == "warmup-cosine":
        warmup = min(round(plan.warmup_epochs * steps_per_epoch), total_steps - 1)
    if step < warmup:
        return plan.learning_rate * (step + 1) / (warmup + 1)
    done = (step - warmup) / max(1, total_steps - warmup)
    return plan.learning_rate * 0.5 * (1.0 + math.cos(math.pi * done))
