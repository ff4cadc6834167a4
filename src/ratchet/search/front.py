"""The Pareto front of a search with several objectives."""

from ratchet.search.optuna_view import view_of
from ratchet.search.records import Study, Trial

__all__ = ["pareto_front"]


def pareto_front(study: Study) -> list[Trial]:
    """Return the complete trials that no other one beats in all objectives, the best of the first objective first."""
    best = {trial.number for trial in view_of(study, ()).best_trials}
    return [trial for trial in study.ranked() if trial.number in best]
