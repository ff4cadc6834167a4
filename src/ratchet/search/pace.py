"""The time that a search still needs, estimated from its pace."""

from ratchet.search.records import Study

__all__ = ["epochs_trained", "seconds_left"]


def epochs_trained(study: Study) -> int:
    """Return the epochs of all trials."""
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
    """Return the epochs of the whole search: trials that are missing are as long as those that have ended."""
    search = study.search
    ended = [trial.epochs for trial in study.searched if trial.state in ("complete", "pruned", "failed")]
    usual = sum(ended) / len(ended) if ended else float(study.epochs)
    begun = [max(trial.epochs, usual) if trial.state == "running" else trial.epochs for trial in study.searched]
    missing = 0 if study.reason else max(0, search.trials - len(begun))
    repeated = min(search.finalists, len(begun) + missing) if len(study.objectives) == 1 else 0
    return sum(begun) + missing * usual + (search.seeds - 1) * repeated * study.epochs
