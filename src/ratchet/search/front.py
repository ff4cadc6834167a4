"""The Pareto front of a search with several objectives."""

import math

from ratchet.search.records import Study, Trial

__all__ = ["pareto_front"]


def pareto_front(study: Study) -> list[Trial]:
    """Return the complete trials that no other one beats in all objectives, the best of the first objective first."""
    signs = [-1.0 if larger else 1.0 for larger in study.maximize]

    def losses(trial: Trial) -> tuple[float, ...]:
        return tuple(sign * value for sign, value in zip(signs, trial.objectives, strict=True))

    complete = [
        trial for trial in study.searched if trial.state == "complete" and all(map(math.isfinite, trial.objectives))
    ]
    front: list[tuple[Trial, tuple[float, ...]]] = []
    for trial in sorted(complete, key=lambda each: (losses(each), each.number)):
        loss = losses(trial)  # in this order no later trial beats an earlier one
        if not any(other != loss and all(a <= b for a, b in zip(other, loss, strict=True)) for _, other in front):
            front.append((trial, loss))
    return [trial for trial, _ in front]
