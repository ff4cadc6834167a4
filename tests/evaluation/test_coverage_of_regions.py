"""Prediction intervals and sets cover as split conformal prediction promises, and say so where they do not."""

from dataclasses import replace
from fractions import Fraction
from math import ceil

import numpy as np
import pytest
from scipy.stats import binomtest

from ratchet.evaluation.coverage import CoverageMetrics, measure_coverage
from ratchet.evaluation.intervals import exact_share
from ratchet.evaluation.metrics import Metrics
from ratchet.evaluation.predictions import Predictions
from ratchet.problems import Classes, Numbers, Target
from ratchet.problems.named_answers import named_answers
from ratchet.problems.regions import LEVELS, REGIONS, Calibration, ClassSets, NumberIntervals
from ratchet.reports.coverage_text import coverage_limits, coverage_section, coverage_table
from ratchet.settings.model import EvaluationSettings

SETTINGS = EvaluationSettings(resamples=100, slice_rows=20)
NUMBER = Numbers(("price",), (100.0,), (20.0,))
PAIR = Numbers(("price", "area"), (100.0, 5.0), (20.0, 2.0))
ANIMALS = Classes(("ant", "bee", "cat", "dog"))


def drawn(target: Target, rows: int, *, seed: int, noise: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """Return outputs and targets of rows; the noise of numbers is a factor, logits are calibrated."""
    random = np.random.default_rng(seed)
    if isinstance(target, Numbers):
        outputs = random.normal(size=(rows, target.outputs)).astype(np.float32)
        errors = noise * random.standard_t(3, outputs.shape) * np.array(target.std) / 2
        return outputs, (target.predictions(outputs) + errors).astype(np.float32)
    outputs = (1.5 * random.normal(size=(rows, target.outputs))).astype(np.float32)
    ranks = target.predictions(outputs).cumsum(axis=1)
    return outputs, (random.random((rows, 1)) > ranks[:, :-1]).sum(axis=1)


def covered(
    target: Target, *, validation: int, test: int = 4000, noise: float = 1.0, **more: object
) -> CoverageMetrics:
    """Calibrate on drawn validation rows and measure on drawn test rows, whose errors have this factor."""
    outputs, targets = drawn(target, test, seed=1, noise=noise)
    predictions = Predictions(outputs, targets, tuple(map(str, range(test))), target)
    options = {"columns": {}, "ordered_by": "none"} | more
    return measure_coverage(predictions, drawn(target, validation, seed=2), options.pop("columns"), SETTINGS, **options)


def with_coverage(coverage: CoverageMetrics, target: Target) -> Metrics:
    """Return metrics with this coverage."""
    outputs, targets = drawn(target, 40, seed=3)
    predictions = Predictions(outputs, targets, tuple(map(str, range(40))), target)
    metrics = predictions.checked().measure(SETTINGS)
    return replace(metrics, coverage=coverage)


def text(coverage: CoverageMetrics, target: Target) -> list[str]:
    """Return the limits that a page lists."""
    metrics = with_coverage(coverage, target)
    assert coverage_section(metrics)[0].title.startswith("Prediction ")
    return coverage_limits(metrics)


def test_quantiles_have_the_rank_of_the_definition() -> None:
    random = np.random.default_rng(0)
    for rows in range(130):
        scores = random.random((rows, 2))
        calibration = Calibration.of(scores)
        attainable = [level for level in LEVELS if Fraction(level, 100) * (rows + 1) <= rows]
        assert calibration.highest == max(attainable, default=49)
        for level in attainable:
            rank = ceil(Fraction(level, 100) * (rows + 1))
            assert (calibration.at(level) == np.sort(scores, axis=0)[rank - 1]).all()


def test_nine_rows_are_needed_for_90_percent() -> None:
    assert [Calibration.of(np.zeros((rows, 1))).highest for rows in (0, 1, 8, 9, 98, 99)] == [49, 50, 88, 90, 98, 99]


def test_answers_that_are_not_finite_lower_the_highest_level() -> None:
    scores = np.arange(100.0)[:, None]
    scores[::4] = np.nan
    assert Calibration.of(scores).highest == 74


def test_exact_interval_of_a_share_equals_scipy() -> None:
    for right, rows in ((0, 12), (12, 12), (7, 12), (903, 1000)):
        exact = binomtest(right, rows).proportion_ci(0.95, method="exact")
        interval = exact_share(right, rows, confidence=0.95)
        assert (interval.low, interval.high) == pytest.approx((exact.low, exact.high), abs=1e-12)


@pytest.mark.parametrize("target", [NUMBER, ANIMALS], ids=["numbers", "classes"])
@pytest.mark.parametrize(("rows", "level"), [(19, 90), (60, 80)])
def test_mean_coverage_over_calibrations_equals_the_theory(target: Target, rows: int, level: int) -> None:
    """It is ceil((n + 1) level) / (n + 1) where scores have no ties; those of classes tie at 0, which only adds."""
    kind, inside, total = REGIONS[target.problem], 0, 0
    for seed in range(400):
        (first, truth), (second, hidden) = (
            drawn(target, count, seed=2 * seed + at) for at, count in ((0, rows), (1, 50))
        )
        regions = kind(target, Calibration.of(kind.scores(target.predictions(first), truth)).at(level))
        inside += int(regions.covers(target.predictions(second), hidden).sum())
        total += len(hidden)
    expected = -(-(rows + 1) * level // 100) / (rows + 1)
    spread = 4 * (expected * (1 - expected) / total * 4) ** 0.5
    assert inside / total == pytest.approx(expected, abs=spread)


def test_coverage_is_measured_for_each_number_and_level() -> None:
    measured = covered(PAIR, validation=2000)
    assert [(each.percent, each.name) for each in measured.levels] == [
        (level, name) for level in (80, 90, 95, 99) for name in PAIR.names
    ]
    for each in measured.levels:
        assert each.share.value == pytest.approx(each.percent / 100, abs=0.03)
    widths = {each.name: each.size for each in measured.main}
    assert widths["price"] / widths["area"] == pytest.approx(10, rel=0.2)  # each in its own unit


def test_sets_have_the_answer_and_the_likely_classes() -> None:
    predictions = np.array([[0.1, 0.6, 0.25, 0.05], [0.28, 0.26, 0.25, 0.21]], np.float32)
    sets = ClassSets(ANIMALS, np.array([0.745]))
    assert sets.rows(predictions) == [{"set": ["bee"]}, {"set": ["ant", "bee"]}]
    assert sets.columns(predictions)["set"].tolist() == ['["bee"]', '["ant", "bee"]']
    assert sets.tensors(predictions)["set"].tolist() == [[False, True, False, False], [True, True, False, False]]
    assert ClassSets(ANIMALS, np.array([0.0])).rows(predictions) == [{"set": ["bee"]}, {"set": ["ant"]}]
    assert sets.sizes(predictions).tolist() == [1.5]


def test_names_of_numbers_are_in_the_columns_only_of_several() -> None:
    single, pair = (
        NumberIntervals(target, np.full(target.outputs, 2.0)).columns(np.full((3, target.outputs), 7.0, np.float32))
        for target in (NUMBER, PAIR)
    )
    assert {name: values.tolist() for name, values in single.items()} == {"lower": [5.0] * 3, "upper": [9.0] * 3}
    assert list(pair) == ["lower price", "upper price", "lower area", "upper area"]
    assert list(named_answers(PAIR).columns(np.zeros((1, 2), np.float32))) == ["price", "area"]


def test_significantly_low_coverage_is_a_limit() -> None:
    (sentence,) = text(covered(NUMBER, validation=500, noise=2.0), NUMBER)
    assert sentence.startswith("90 % intervals cover 65.4 % (95 % CI ")
    assert sentence.endswith("That is significantly less than they promise.")
    assert text(covered(NUMBER, validation=3000), NUMBER) == []


def test_of_many_numbers_the_main_level_is_listed() -> None:
    many = Numbers(tuple("abcdefghi"), (100.0,) * 9, (20.0,) * 9)
    coverage = covered(many, validation=500, noise=2.0)
    rows = coverage_table(with_coverage(coverage, many)).rows
    assert [row[0] for row in rows] == [f"90 % of {name}" for name in many.names]
    lowest = sorted(coverage.main, key=lambda each: each.share.value)[:5]
    assert [sentence.split()[4] for sentence in text(coverage, many)] == [each.name for each in lowest]


def test_few_validation_rows_are_a_limit() -> None:
    sentence, *_ = text(covered(NUMBER, validation=4), NUMBER)
    assert sentence == "There are at most 80 % intervals: 4 validation samples calibrate them, and 90 % needs 9."
    empty = covered(ANIMALS, validation=0)
    assert (empty.levels, empty.main, empty.slices) == ((), (), ())
    (sentence,) = text(empty, ANIMALS)
    assert sentence == "There are no prediction sets: 0 validation samples calibrate them, and 90 % needs 9."


def test_splits_in_order_of_time_are_a_limit() -> None:
    assert text(covered(NUMBER, validation=3000, ordered_by="day"), NUMBER) == [
        "The splits are in the order of day: validation samples are older than test samples, so the level of "
        "prediction intervals is not guaranteed. Their coverage is only measured."
    ]


def test_a_slice_with_low_coverage_is_a_limit() -> None:
    outputs, targets = drawn(NUMBER, 1000, seed=1)
    targets[:200] += 100.0
    predictions = Predictions(outputs, targets, tuple(map(str, range(1000))), NUMBER)
    columns = {"town": ["far"] * 200 + ["near"] * 800}
    measured = measure_coverage(predictions, drawn(NUMBER, 900, seed=2), columns, SETTINGS, ordered_by="none")
    assert [(part.value, part.coverage.is_low) for part in measured.lowest_slices] == [("far", True), ("near", False)]
    assert any(
        sentence.startswith("Where town is far, 90 % intervals cover only ") for sentence in text(measured, NUMBER)
    )
