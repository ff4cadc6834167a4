"""Shares of settings on studies in which it is known by construction which setting decides."""

import math
from dataclasses import replace
from typing import Any

import pytest

from ratchet.search.records import Study
from ratchet.search.setting_importance import importance

from .made_study import SPACE, Values, accuracy, accuracy_and_size, made_study

RANDOM: dict[str, Any] = {"sampler": "random", "pruner": "none", "seeds": 1, "epochs": 2}


def loss(values: Values, seed: int | None, epoch: int) -> tuple[float, ...]:
    return (1 - accuracy(values, seed, epoch)[0],)


def by_momentum(values: Values, seed: int | None, epoch: int) -> tuple[float, ...]:
    """Only momentum decides, and so only trials with sgd can be good."""
    return (1 - 5 * abs(values["training.momentum"] - 0.9) if "training.momentum" in values else 0.1,)


def equal(values: Values, seed: int | None, epoch: int) -> tuple[float, ...]:
    return (0.5,)


@pytest.mark.parametrize(("objectives", "name"), [(accuracy, "validation/accuracy"), (loss, "validation/loss")])
def test_setting_that_decides_comes_first_in_either_direction(objectives: Any, name: str) -> None:
    shares = importance(made_study(trials=60, objectives=objectives, names=(name,), **RANDOM))
    assert next(iter(shares)) == "training.learning_rate"
    assert shares["training.learning_rate"] > 0.5
    assert math.isclose(sum(shares.values()), 1)
    assert {*shares} == {*SPACE}
    assert [*shares.values()] == sorted(shares.values(), reverse=True)


def test_conditional_setting_that_decides_comes_first() -> None:
    shares = importance(made_study(trials=80, objectives=by_momentum, **RANDOM))
    assert next(iter(shares)) == "training.momentum"


def test_setting_that_no_trial_has_gets_nothing() -> None:
    space = {**SPACE, "training.optimizer": {"choice": ["adamw"]}, "training.momentum": {"float": [0.8, 0.99]}}
    study = made_study(trials=30, space=space, **RANDOM)
    trials = [
        replace(trial, values={key: value for key, value in trial.values.items() if key != "training.momentum"})
        for trial in study.trials
    ]
    shares = importance(replace(study, trials=trials))
    assert shares["training.momentum"] == shares["training.optimizer"] == 0


def test_setting_by_which_trials_end_early_is_important() -> None:
    """The learning rate decides which trials pass their rung. Among those that pass, it differs little."""
    study = made_study(trials=120, sampler="random", seeds=1, epochs=9)
    assert sum(trial.state == "complete" for trial in study.trials) < 40
    assert next(iter(importance(study))) == "training.learning_rate"


def test_several_objectives_are_compared_by_their_front() -> None:
    study = made_study(
        trials=60, objectives=accuracy_and_size, names=("validation/accuracy", "parameters"), **RANDOM
    )  # fmt: skip
    shares = importance(study)
    assert math.isclose(sum(shares.values()), 1)
    assert max(shares, key=lambda key: shares[key]) in ("training.learning_rate", "training.batch_size")


def few() -> Study:
    return made_study(trials=9, **RANDOM)


@pytest.mark.parametrize(
    "study",
    [few, lambda: made_study(trials=30, objectives=equal, **RANDOM), lambda: replace(few(), trials=())],
    ids=["few trials", "equal values", "no trials"],
)
def test_importance_is_empty_if_nothing_can_be_compared(study: Any) -> None:
    assert importance(study()) == {}
