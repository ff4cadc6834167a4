"""A model must be better than one constant answer to the same rows; the error rates are simulated."""

from dataclasses import replace

import numpy as np
import pytest
from measured import class_answers

from ratchet.evaluation.answers import Answers, CommonAnswer
from ratchet.evaluation.classification import ClassAnswers
from ratchet.evaluation.intervals import Interval
from ratchet.evaluation.language import PieceAnswers
from ratchet.evaluation.metrics import ConstantResult, NamedMetric
from ratchet.evaluation.multi_label import LabelAnswers
from ratchet.evaluation.regression import NumberAnswers
from ratchet.evaluation.wording import constant_text
from ratchet.problems import Labels, NextToken, Numbers
from ratchet.settings.model import EvaluationSettings

SETTINGS = EvaluationSettings(resamples=200)
HEADLINE = NamedMetric("x", "accuracy", Interval(0.5, 0.6, 0.7), share=True)
NUMBERS = Numbers(("flow",), (40.0,), (8.0,))


def classes(labels: np.ndarray, predicted: np.ndarray, count: int = 2) -> ClassAnswers:
    names = ("ants", "bees", *map(str, range(2, count)))
    return class_answers(np.eye(count, dtype=np.float32)[predicted] * 4, labels.astype(np.int64), classes=names)


def compared(answers: Answers, shares: Answers | None = None) -> ConstantResult:
    result = answers.against_constant(SETTINGS, HEADLINE, shares)
    if answer := answers.common:
        result = replace(result, answer=answer.text, answered=answer.rows, one_answer=answer.to_nearly_all)
    return result


def common(answers: Answers) -> CommonAnswer:
    answer = answers.common
    assert answer is not None
    return answer


def numbers(predicted: np.ndarray, truth: np.ndarray) -> NumberAnswers:
    outputs = ((predicted - 40.0) / 8.0).astype(np.float32)[:, None]
    return NumberAnswers(outputs, truth[:, None].astype(np.float32), NUMBERS)


def test_one_answer_to_all_photos_is_no_success() -> None:
    """21 of 34 right by always answering ants."""
    result = compared(classes(np.repeat([0, 1], [21, 13]), np.zeros(34, np.int64)))
    assert not result.is_better
    assert result.one_answer
    assert (result.answer, result.answered) == ("'ants'", 34)
    assert result.trivial == 21 / 34
    assert (result.metric.name, result.metric.interval.value, result.constant) == ("balanced accuracy", 0.5, 0.5)
    assert constant_text(result, 0.95, 34, "image") == "gives one answer: 'ants' to 34 of 34 images"


def test_small_tests_say_what_they_can_show() -> None:
    """9 of 13 and 13 of 21 are right: above chance, but not significantly."""
    labels = np.repeat([0, 1], [21, 13])
    predicted = np.concatenate([np.repeat([0, 1], [13, 8]), np.repeat([0, 1], [4, 9])])
    result = compared(classes(labels, predicted))
    assert not result.one_answer
    assert not result.is_better
    assert 0.15 < result.smallest < 0.25
    text = constant_text(result, 0.95, 34, "image")
    assert "balanced accuracy 15.6 points better than always answering 'ants'" in text
    assert "but with 34 images that can be chance" in text
    assert f"34 images can show a difference of {100 * result.smallest:.0f} points at least" in text


def test_useful_classifier_of_rare_cases_is_better() -> None:
    """Accuracy is hardly above that of the constant answer, and balanced accuracy is."""
    labels = np.repeat([0, 1], [970, 30])
    predicted = np.concatenate([np.repeat([0, 1], [955, 15]), np.repeat([0, 1], [10, 20])])
    result = compared(classes(labels, predicted))
    assert result.is_better
    assert result.trivial == 0.97


@pytest.mark.parametrize(("rare", "flagged"), [(1, 0.02), (1, 0.15), (2, 0.1), (5, 0.3), (40, 0.5)])
def test_random_answers_are_rarely_called_better(rare: int, flagged: float) -> None:
    generator, labels = np.random.default_rng(rare), np.repeat([0, 1], [400 - rare, rare])
    better = sum(
        compared(classes(labels, (generator.random(400) < flagged).astype(np.int64))).difference.low > 0
        for _ in range(300)
    )
    assert better / 300 <= 0.05


def test_nearly_one_answer_is_named_unless_the_truth_is_so() -> None:
    labels, predicted = np.repeat([0, 1], [500, 500]), np.zeros(1000, np.int64)
    predicted[-8:] = 1
    assert common(classes(labels, predicted)).to_nearly_all
    rare = np.repeat([0, 1], [992, 8])
    assert not common(classes(rare, predicted)).to_nearly_all
    assert not common(classes(labels, labels)).to_nearly_all


def test_constant_numbers_are_compared_with_the_median() -> None:
    generator = np.random.default_rng(0)
    truth = generator.normal(40, 8, 300)
    mean = compared(numbers(np.full(300, 40.0), truth))
    assert mean.one_answer
    assert not mean.is_better
    assert mean.trivial == pytest.approx(np.abs(truth - np.median(truth)).mean(), rel=1e-5)
    good = compared(numbers(truth + generator.normal(0, 3, 300), truth))
    assert good.is_better
    noisy = compared(numbers(generator.normal(40, 8, 300), truth))
    assert not noisy.one_answer
    assert not noisy.is_better


def test_same_labels_for_all_rows_are_no_success() -> None:
    generator = np.random.default_rng(0)
    truth = generator.random((400, 3)) < (0.5, 0.2, 0.05)
    target = Labels(("a", "b", "c"))
    same = LabelAnswers(np.tile(np.array([4, -4, -4], np.float32), (400, 1)), truth.astype(np.float32), target)
    assert common(same).text == "'a'"
    assert compared(same).one_answer
    assert compared(same).difference.value == 0.0
    right = LabelAnswers(np.where(truth, 4, -4).astype(np.float32), truth.astype(np.float32), target)
    assert compared(right).is_better
    shuffled = LabelAnswers(generator.permutation(right.outputs), right.targets, target)
    assert not compared(shuffled).is_better


def test_text_is_compared_with_the_frequencies_of_tokens() -> None:
    sizes, nats = np.full((50, 3), 100), np.random.default_rng(0).normal(300, 20, (50, 1)).astype(np.float32)
    shares = PieceAnswers(nats, sizes, NextToken(50))
    assert not compared(PieceAnswers(nats, sizes, NextToken(50)), shares).is_better
    better = compared(PieceAnswers(nats - 60, sizes, NextToken(50)), shares)
    assert better.is_better
    assert better.difference.value == pytest.approx(0.6 / np.log(2), rel=1e-3)
