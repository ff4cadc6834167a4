"""Thresholds of confidence keep the error rate that they promise, and say so where validation rows do not suffice."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import binomtest

from ratchet.evaluation.predictions import Predictions
from ratchet.evaluation.selective import AbstentionMetrics, abstention_of, measure_abstention
from ratchet.problems import Classes
from ratchet.problems.abstention import Abstention
from ratchet.reports.abstention_text import abstention_limits, abstention_section, abstention_table
from ratchet.settings.model import EvaluationSettings

ANIMALS = Classes(("ant", "bee", "cat"))
Rows = tuple[np.ndarray, np.ndarray]


def drawn(rows: int, *, seed: int, overconfident: float = 1.0) -> Rows:
    """Return probabilities, float32 (rows, 3), and classes that are right as often as these say."""
    random = np.random.default_rng(seed)
    logits = 2.0 * random.normal(size=(rows, 3))
    shares, served = (np.exp(factor * logits) for factor in (1.0, overconfident))
    ranks = (shares / shares.sum(axis=1, keepdims=True)).cumsum(axis=1)
    targets = (random.random((rows, 1)) > ranks[:, :-1]).sum(axis=1)
    return (served / served.sum(axis=1, keepdims=True)).astype(np.float32), targets


def measured(validation: int, *, test: int = 4000, overconfident: float = 1.0, **more: str) -> AbstentionMetrics:
    """Choose thresholds on drawn validation rows and measure on drawn test rows, which may be overconfident."""
    samples = drawn(validation, seed=1), drawn(test, seed=2, overconfident=overconfident)
    return measure_abstention(ANIMALS, *samples, confidence=0.95, **{"ordered_by": "none", **more})


def test_rates_hold_in_as_many_draws_as_promised() -> None:
    """The true error of the answered rows is above a rate in at most 5 % of the draws, of all rates together."""
    predictions, targets = drawn(400_000, seed=0)
    confidences, wrong = predictions.max(axis=1), predictions.argmax(axis=1) != targets
    order = np.argsort(-confidences)
    ordered, errors = confidences[order], np.cumsum(wrong[order]) / np.arange(1, len(order) + 1)
    broken, draws = 0, 300
    for seed in range(draws):
        thresholds = abstention_of(ANIMALS, *drawn(400, seed=1 + seed), 0.95)
        true = [errors[np.searchsorted(-ordered, -at) - 1] if at else errors[-1] for at in thresholds.thresholds]
        broken += any(value > bound for value, bound in zip(true, thresholds.bounds, strict=True))
    assert binomtest(broken, draws, 0.05, alternative="greater").pvalue > 0.01


def test_the_lenient_threshold_that_holds_is_chosen() -> None:
    thresholds = Abstention(100, 0.95, (0.9, 0.7, 0.5, 0.0), (0.02, 0.03, 0.015, 0.2))
    assert [thresholds.threshold(rate) for rate in (0.015, 0.1, 0.2)] == [0.5, 0.5, 0.0]
    assert thresholds.lowest == 0.015
    predictions = np.array([[0.5, 0.3, 0.2], [0.51, 0.3, 0.19], [np.nan] * 3], np.float32)
    assert thresholds.abstains(predictions, 0.1).tolist() == [True, False, True]


def test_bounds_are_exact_and_corrected() -> None:
    confidences, right = np.linspace(0.4, 0.9, 200), np.ones(200, bool)
    right[:20] = False
    thresholds = Abstention.of(confidences, right, confidence=0.95)
    level = 1 - 2 * 0.05 / 20  # two-sided, whose upper tail is 5 % of 20
    assert len(thresholds.bounds) == 20
    for wrong, rows, bound in ((20, 200, thresholds.bounds[-1]), (0, 10, thresholds.bounds[0])):
        assert bound == pytest.approx(binomtest(wrong, rows).proportion_ci(level, method="exact").high)


@pytest.mark.parametrize("rows", [0, 1, 2, 19])
def test_few_rows_support_no_rate(rows: int) -> None:
    metrics = measured(rows)
    assert (metrics.rates, metrics.thresholds.lowest > 0.2) == ((), True)


def test_equal_confidences_are_answered_together() -> None:
    """As of a model with one answer: a difference of rounding does not answer half of the rows."""
    confidences = np.repeat([0.8, 0.6], [300, 300])
    thresholds = Abstention.of(confidences, confidences > 0.7, confidence=0.95)
    rounded = np.array([[0.6 + 1e-6, 0.4], [0.8 - 1e-6, 0.2]], np.float32)
    assert thresholds.abstains(rounded, 0.05).tolist() == [True, False]


def test_metrics_are_of_the_answered_test_rows() -> None:
    metrics = measured(3000)
    predictions, targets = drawn(4000, seed=2)
    assert [each.rate for each in metrics.rates] == [0.1, 0.2]
    shares = [each.answered.value for each in metrics.rates]
    assert shares == sorted(shares)
    for each in metrics.rates:
        answered = ~metrics.thresholds.abstains(predictions, each.rate)
        assert each.error is not None
        assert each.error.value == (predictions.argmax(axis=1) != targets)[answered].mean()
        assert each.error.low <= each.rate


def test_a_rate_that_does_not_hold_is_a_limit() -> None:
    outputs, targets = drawn(40, seed=3)
    metrics = Predictions(outputs, targets, tuple(map(str, range(40))), ANIMALS).checked()
    whole = metrics.measure(EvaluationSettings(resamples=100))
    assert (abstention_section(whole), abstention_limits(whole), abstention_table(whole).rows) == ([], [], [])
    good, bad, sorted_by_day = (
        replace(whole, abstention=each)
        for each in (measured(3000), measured(3000, overconfident=3.0), measured(3000, ordered_by="day"))
    )
    assert abstention_limits(good) == []
    assert abstention_limits(bad)[0].startswith("Where an error rate of 10.0 % is asked for, ")
    assert abstention_limits(bad)[0].endswith(" of the answers to test samples are wrong. That is significantly more.")
    assert abstention_limits(sorted_by_day)[0].startswith("The splits are in the order of day, ")
    grouped = replace(whole, abstention=replace(measured(3000), groups=150))
    assert abstention_limits(grouped) == [
        "The 3,000 validation samples are of 150 groups, and the samples of a group err together, so error rates that "
        "are asked for are not guaranteed."
    ]
    (section,) = abstention_section(good)
    assert (section.title, len(section.tables[0].rows)) == ("Abstention", 2)
    assert "If samples are independent, all rates hold with 95 % confidence" in section.note
    few = replace(whole, abstention=measured(0))
    assert "No rate can be asked for: 0 validation samples support none." in abstention_section(few)[0].sentences
