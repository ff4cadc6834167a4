"""Robustness: what is counted is what the model answered to the very pictures that `corrupt` makes."""

import json
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from ratchet.evaluation.corruptions import KINDS, STRENGTHS, corrupt
from ratchet.evaluation.figures import Figures
from ratchet.evaluation.intervals import share_interval
from ratchet.evaluation.metrics import measure
from ratchet.evaluation.robustness import NotMeasured, Robustness, enough, measure_robustness, spread
from ratchet.settings.model import EvaluationSettings

ROWS = 60
Answer = Callable[[np.ndarray], np.ndarray]


@pytest.fixture(scope="module")
def pictures() -> np.ndarray:
    """Half dark, half bright."""
    drawn = np.random.default_rng(0)
    base = np.where(np.arange(ROWS) % 2, 150, 90)[:, None, None, None]
    return (base + drawn.integers(-40, 40, (ROWS, 16, 16, 3))).astype(np.uint8)


def by_brightness(pictures: np.ndarray) -> np.ndarray:
    return (pictures.mean(axis=(1, 2, 3)) > 120).astype(np.int64)


@pytest.fixture(scope="module")
def found(pictures: np.ndarray) -> Robustness:
    labels = np.arange(ROWS) % 2
    return measure_robustness(by_brightness, pictures, labels, clean=by_brightness(pictures), confidence=0.9)


@pytest.fixture(scope="module")
def figures(found: Robustness) -> Figures:
    labels = np.arange(ROWS) % 2
    logits = np.eye(2, dtype=np.float32)[labels]
    whole = measure(logits, labels, classes=("dark", "bright"), settings=EvaluationSettings(resamples=100))
    return replace(whole, robustness=found)


@pytest.mark.parametrize("kind", KINDS)
def test_each_share_is_that_of_right_answers_to_the_spoilt_pictures(
    kind: str, found: Robustness, pictures: np.ndarray
) -> None:
    labels = np.arange(ROWS) % 2
    for strength, share in zip(STRENGTHS, found.spoilt[kind], strict=True):
        right = int((by_brightness(corrupt(pictures, kind, strength)) == labels).sum())
        assert share == share_interval(right, ROWS, confidence=0.9)


def test_a_model_that_goes_by_brightness_fails_where_brightness_changes_and_nowhere_else(found: Robustness) -> None:
    assert found.clean.value == 1.0
    assert {kind for kind in KINDS if found.mean(kind) < 1.0} == {"brightness"}
    assert found.spoilt["brightness"][-1].value == 0.5
    assert found.overall == pytest.approx((4 + found.mean("brightness")) / 5)


def test_the_same_pictures_give_the_same_figures(found: Robustness, pictures: np.ndarray) -> None:
    again = measure_robustness(
        by_brightness, pictures.copy(), np.arange(ROWS) % 2, clean=by_brightness(pictures), confidence=0.9
    )
    assert again == found


def test_progress_ends_at_every_kind_and_strength_of_every_row(pictures: np.ndarray) -> None:
    told: list[int] = []
    labels = np.zeros(ROWS, np.int64)
    measure_robustness(by_brightness, pictures, labels, clean=labels, confidence=0.9, report=told.append)
    assert told == sorted(told)
    assert told[-1] == ROWS * len(KINDS) * len(STRENGTHS)


@pytest.mark.parametrize(("rows", "wanted"), [(10_000, 500), (287, 500), (7, 3), (501, 500), (1, 1)])
def test_rows_are_spread_evenly_each_once(rows: int, wanted: int) -> None:
    taken = spread(rows, wanted)
    assert len(taken) == min(rows, wanted)
    steps = np.diff([*taken, rows])
    assert steps.min() >= 1
    assert steps.max() - steps.min() <= 1


def test_large_pictures_are_asked_for_fewer_rows() -> None:
    assert [enough(side, side) for side in (8, 64, 128, 224, 1024)] == [500, 500, 125, 50, 50]


def test_figures_keep_robustness_and_its_numbers(figures: Figures, found: Robustness) -> None:
    assert Figures.from_json(json.loads(json.dumps(figures.to_json()))) == figures
    numbers = figures.numbers()
    assert numbers["robustness"] == found.overall
    assert {f"robustness_{kind}" for kind in KINDS} < numbers.keys()


def test_figures_without_robustness_say_why_and_have_no_number_of_it(figures: Figures) -> None:
    without = replace(figures, robustness=NotMeasured("it was Sunday"))
    assert Figures.from_json(json.loads(json.dumps(without.to_json()))) == without
    assert not any(name.startswith("robustness") for name in without.numbers())


def test_figures_of_an_earlier_version_are_read_as_without(figures: Figures) -> None:
    content = figures.to_json()
    del content["robustness"]
    old = Figures.from_json(content)
    assert isinstance(old.robustness, NotMeasured)
    assert "run evaluate again" in old.robustness.why
    assert old.accuracy == figures.accuracy
