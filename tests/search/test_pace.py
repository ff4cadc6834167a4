"""The expected end of a search, against searches whose length is known."""

from dataclasses import replace

import pytest

from ratchet.search.pace import epochs_trained, seconds_left
from ratchet.search.records import Study

from .made_study import made_study


def searched_for(study: Study, seconds: float) -> Study:
    """Return the study with so many seconds of searching."""
    return replace(study, trials=[replace(trial, spans=((0.0, float(seconds)),)) for trial in study.trials])


@pytest.mark.parametrize(("pruner", "done"), [("none", 15), ("successive-halving", 30), ("hyperband", 15)])
def test_expected_end_is_near_the_real_one(pruner: str, done: int) -> None:
    """A search whose epochs take one second each ends within a factor of two of the estimate."""
    whole = epochs_trained(made_study(trials=25, sampler="random", epochs=9, pruner=pruner))
    study = made_study(trials=25, sampler="random", epochs=9, pruner=pruner, assignments=done)
    passed = epochs_trained(study)
    left = seconds_left(searched_for(study, passed), now=0.0)
    assert left is not None
    assert (whole - passed) / 2 - 20 <= left <= 2 * (whole - passed) + 20


def test_budget_limits_the_expected_end() -> None:
    study = made_study(trials=30, sampler="random", assignments=20)
    for limit, value, expected in (("hours", 1.5, 1800.0), ("cpu_hours", 2 * study.cpu_hours, 3600.0)):
        limited = replace(study, search=study.search.model_copy(update={limit: value}))
        left = seconds_left(limited, now=0.0)
        assert left is not None
        assert left <= expected + 1


def test_expected_end_is_unknown_without_epochs_or_after_the_end() -> None:
    study = made_study(trials=3, sampler="random", seeds=1)
    assert seconds_left(study, now=2_000_000.0) is None
    assert seconds_left(replace(study, state="running", trials=()), now=2_000_000.0) is None
