"""Plots of a search: any study with a value gives them, and the Pareto front is true."""

import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from simulated_search import CannotTrain

from ratchet.reports.search_plots import write_plots
from ratchet.search.optuna_view import frozen, pareto_front
from ratchet.search.records import Study
from ratchet.search.setting_importance import dimensions, importance

from .made_study import Values, accuracy_and_size, made_study

TWO = ("validation/accuracy", "parameters")


def always_failing(values: Values, seed: int | None, epoch: int) -> tuple[float, ...]:
    raise CannotTrain("loss is not finite")


def two_objectives() -> Study:
    return made_study(trials=12, objectives=accuracy_and_size, names=TWO, epochs=3)


@pytest.mark.parametrize(
    ("study", "names"),
    [
        (lambda: replace(made_study(trials=1, assignments=1), trials=()), []),
        (lambda: made_study(trials=3, objectives=always_failing), []),
        (lambda: made_study(assignments=12, sampler="random"), ["history", "values", "curves"]),
        (two_objectives, ["history", "values", "front"]),
    ],
    ids=["empty", "all failed", "running", "two objectives"],
)
def test_study_with_a_value_has_plots(study: Callable[[], Study], names: list[str], tmp_path: Path) -> None:
    written = write_plots(study(), tmp_path / "plots")
    assert [path.stem for path in written] == names
    for path in written:
        assert ElementTree.parse(path).getroot().tag.endswith("svg")


def test_present_settings_outside_the_space_are_kept() -> None:
    space = {
        "training.learning_rate": {"float": [0.01, 0.1], "log": True},
        "training.optimizer": {"choice": ["adam", "sgd"]},
        "training.label_smoothing": {"float": [0.1, 0.2]},
    }
    study = made_study(trials=30, space=space, epochs=3, sampler="gp", seeds=1)
    assert list(study.trials[0].values.values()) == [0.002, "adamw", "auto"]
    assert {*importance(study)} == {*space}
    copied = frozen(study.trials[0], dimensions(study))
    assert (copied.params, copied.user_attrs["values"]["training.optimizer"]) == ({}, "adamw")


def test_nothing_beats_a_trial_of_the_front() -> None:
    study = two_objectives()
    front = pareto_front(study)
    for trial in study.searched:
        beaten = any(
            other.objectives[0] >= trial.objectives[0] and other.objectives[1] <= trial.objectives[1]
            and other.objectives != trial.objectives
            for other in study.searched
        )  # fmt: skip
        assert (trial in front) is not beaten
