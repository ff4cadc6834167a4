"""What the figures warn of is said, and only that: the figures are measured on made answers whose faults are known."""

import numpy as np
import pytest
import sklearn.metrics  # noqa: F401  # as it is imported it draws from Python's random state, which a test must not

from ratchet.evaluation.figures import Figures
from ratchet.evaluation.limits import limits, weak_classes
from ratchet.evaluation.metrics import measure
from ratchet.settings.model import EvaluationSettings

CLASSES = ("ant", "bee", "cat", "dog")


def figures(
    right: dict[str, float], rows: dict[str, int], *, sure: float = 4.0, parts: list[str | None] | None = None
) -> Figures:
    """Of answers that are right for so much of each class, each given with the same confidence."""
    labels = np.repeat(np.arange(4), [rows[name] for name in CLASSES])
    answers = labels.copy()
    for number, name in enumerate(CLASSES):
        mine = np.flatnonzero(labels == number)
        wrong = mine[: round(len(mine) * (1 - right[name]))]
        answers[wrong] = (number + 1) % 4
    logits = np.zeros((len(labels), 4), np.float32)
    logits[np.arange(len(labels)), answers] = sure
    settings = EvaluationSettings(resamples=200)
    return measure(logits, labels, classes=CLASSES, settings=settings, columns={"light": parts} if parts else {})


MANY = dict.fromkeys(CLASSES, 2000)
GOOD = dict.fromkeys(CLASSES, 0.95)


def test_a_good_model_measured_on_many_rows_is_warned_of_for_nothing() -> None:
    assert limits(figures(GOOD, MANY)) == []


def test_a_class_that_is_recognised_less_often_is_named_with_its_recall() -> None:
    measured = figures({**GOOD, "cat": 0.8}, MANY, sure=3.5)
    (weak,) = weak_classes(measured)
    assert (weak.name, weak.rows, weak.recall.value) == ("cat", 2000, 0.8)
    (said,) = limits(measured)
    assert said.startswith("class cat is recognised in 80.0% of its 2,000 test rows (")


def test_a_low_recall_that_chance_explains_is_not_called_weak() -> None:
    assert weak_classes(figures({**GOOD, "cat": 0.9}, {**MANY, "cat": 10})) == []


def test_classes_with_few_rows_or_none_are_named_and_a_small_test_set_is() -> None:
    said = limits(figures(dict.fromkeys(CLASSES, 1.0), {"ant": 60, "bee": 0, "cat": 29, "dog": 5}, sure=9.0))
    assert said == [
        "not measured at all, without a single test row: bee",
        "hardly measured, with fewer than 30 test rows: cat (29), dog (5)",
    ]
    (small,) = [one for one in limits(figures({**GOOD}, dict.fromkeys(CLASSES, 40))) if "are few" in one]
    assert small.startswith("160 test rows are few: its accuracy may be anywhere from 9")


def test_a_part_of_the_rows_that_is_answered_worse_is_named() -> None:
    rows = dict.fromkeys(CLASSES, 2000)
    parts: list[str | None] = ["dark" if number % 2000 < 200 else "bright" for number in range(8000)]
    said = [one for one in limits(figures(GOOD, rows, parts=parts)) if one.startswith("where ")]
    assert len(said) == 1
    assert said[0].startswith("where light is dark, 50.0% of 800 rows are answered rightly (")


@pytest.mark.parametrize("sure", [1.0, 12.0])
def test_probabilities_that_do_not_mean_what_they_say_are_warned_of(sure: float) -> None:
    (said,) = limits(figures(GOOD, MANY, sure=sure))
    assert said.startswith("its probabilities are off by ")
    assert "evaluation.temperature_scaling" in said
