"""Coverage of the confidence intervals, by simulation with known true values.

bench/coverage.py measures the same for more kinds of data, and docs/evaluation.md has a summary. test_slices.py tests
the intervals of shares and of their differences.
"""

import numpy as np
import pytest
from measured import class_answers
from scipy.stats import norm

from ratchet.evaluation import headline
from ratchet.evaluation.intervals import exact_share
from ratchet.settings.model import EvaluationSettings
from tests.simulations.coverage import POPULATIONS, few_errors_coverage, metric_coverage, paired_coverage
from tests.simulations.gate import PAIRS, Pair


@pytest.mark.system
def test_headline_intervals_have_their_nominal_coverage() -> None:
    """300 images, accuracy 95 %, an overconfident model."""
    coverage = metric_coverage(POPULATIONS[0], rows=300, sets=1000, resamples=100)
    assert set(coverage) == {"accuracy", "top_k", "macro_f1", "log_loss", "roc_auc", "ece"}
    assert coverage.pop("ece") >= 0.95  # conservative on purpose, see calibration_interval
    assert all(0.93 <= share <= 0.97 for share in coverage.values()), coverage


@pytest.mark.system
@pytest.mark.parametrize("errors", [0.5, 2.0, 8.0])
def test_interval_of_macro_f1_with_few_errors_covers(errors: float) -> None:
    """270 rows of 10 classes, as the digits: the mean interval begins no farther below than that of an exact count."""
    coverage, lows = few_errors_coverage(errors, rows=270, sets=400)
    assert 0.93 <= coverage <= 0.99
    exact = 1 - exact_share(round(errors), 270, confidence=0.95).high
    assert exact - 0.01 < lows.mean() < 1 - errors / 270
    assert lows.min() > 0.85


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.name)
def test_interval_of_paired_difference_has_its_nominal_coverage(pair: Pair) -> None:
    most = 0.97 if pair.accuracy < 0.99 else 1.0  # where only 2 of 300 images differ, the difference has few values
    assert 0.93 <= paired_coverage(pair, rows=300, sets=1000, resamples=1000) <= most


def roc_auc_coverage(positives: int, *, sets: int = 200, distance: float = 1.2) -> float:
    """Return the share of intervals that contain the true ROC-AUC, of 300 rows; few are of the second class."""
    generator, settings = np.random.default_rng(0), EvaluationSettings(resamples=100)
    labels = np.arange(300) < positives
    held = 0
    for seed in range(sets):
        logits = generator.normal(size=300) + distance * labels
        answers = class_answers(np.stack([np.zeros(300), logits], 1).astype(np.float32), labels.astype(np.int64))
        area = float((logits[labels][:, None] > logits[~labels]).mean())
        interval = headline.intervals(answers, macro_f1=0.5, roc_auc=area, settings=settings, seed=seed)["roc_auc"]
        held += interval.low <= norm.cdf(distance / 2**0.5) <= interval.high
    return held / sets


@pytest.mark.system
def test_interval_of_roc_auc_needs_some_rows_of_each_class(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(headline, "rare_class", lambda counts: None)  # else there is no interval below FEW_ROWS
    assert roc_auc_coverage(1) < 0.5
    assert roc_auc_coverage(headline.FEW_ROWS) >= 0.9
