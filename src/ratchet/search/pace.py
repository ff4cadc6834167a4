"""The time that a search still needs, estimated from its pace."""

from itertools import pairwise

from ratchet.search.pruning import bracket_of, rungs
from ratchet.search.records import Study

__all__ = ["epochs_trained", "seconds_left"]


def epochs_trained(study: Study) -> int:
    """Return the epochs of all trials, or the folds."""
    return sum(trial.epochs for trial in study.trials)


def seconds_left(study: Study, *, now: float) -> float | None:
    """Return the seconds until the search is likely to end; None: it has ended, or nothing is known yet.

    The pace is the number of epochs per second so far, by all workers. `now` is in seconds since 1970.
    """
    done, passed = epochs_trained(study), study.active or now - study.created
    if study.state == "ended" or not done or passed <= 0:
        return None
    left = [(_expected_epochs(study) - done) * passed / done]
    if study.search.hours:
        left.append(3600 * study.search.hours - study.active)
    if study.search.cpu_hours and study.cpu_hours:
        left.append((study.search.cpu_hours / study.cpu_hours - 1) * passed)
    return max(0.0, min(left))


def _expected_epochs(study: Study) -> float:
    """Return the epochs of the whole search, of which each trial has at least those that it has now."""
    length, search = study.search.folds or study.epochs, study.search
    expected = _usual_length(study)
    of_trials = [max(trial.epochs, expected) if trial.state == "running" else trial.epochs for trial in study.searched]
    begun = len(study.searched)
    missing = 0 if study.reason else max(0, search.trials - begun)
    total = sum(of_trials) + missing * expected
    if rungs(study):  # trials that are paused now continue later
        total = max(total, sum(_halving_length(study, number) for number in range(begun + missing)))
    if len(study.objectives) > 1:
        return total
    finalists = min(search.finalists, begun + missing) if search.seeds > 1 else 1
    complete = sum(trial.state == "complete" for trial in study.searched)
    total += max(0, finalists - complete) * max(0.0, length - expected) if rungs(study) else 0.0
    return total + (search.seeds - 1) * finalists * length


def _usual_length(study: Study) -> float:
    """Return the mean length of trials that have ended; if there are none, that of a whole training."""
    ended = [trial.epochs for trial in study.searched if trial.state in ("complete", "pruned", "paused", "failed")]
    return sum(ended) / len(ended) if ended else float(study.search.folds or study.epochs)


def _halving_length(study: Study, number: int) -> float:
    """Return the mean length of trials of successive halving: each rung lets one of `reduction` trials pass."""
    places = [*rungs(study, bracket_of(study, number)), study.epochs]
    steps = (end - start for start, end in pairwise(places))
    reduction = float(study.search.reduction)
    return float(places[0] + sum(step / reduction ** (at + 1) for at, step in enumerate(steps)))
