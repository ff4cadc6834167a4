"""Coverage of the confidence intervals, by simulation with known true values.

bench/coverage.py measures the same for more kinds of data, and docs/evaluation.md has its table. test_slices.py tests
the intervals of shares and of their differences.
"""

import pytest

from tests.simulations.coverage import POPULATIONS, metric_coverage, paired_coverage
from tests.simulations.gate import PAIRS, Pair


@pytest.mark.system
def test_headline_intervals_have_their_nominal_coverage() -> None:
    """300 images, accuracy 95 %, an overconfident model."""
    coverage = metric_coverage(POPULATIONS[0], rows=300, sets=1000, resamples=100)
    assert set(coverage) == {"accuracy", "top_k", "macro_f1", "log_loss", "roc_auc", "ece"}
    assert coverage.pop("ece") >= 0.95  # conservative on purpose, see calibration_interval
    assert all(0.93 <= share <= 0.97 for share in coverage.values()), coverage


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.name)
def test_interval_of_paired_difference_has_its_nominal_coverage(pair: Pair) -> None:
    most = 0.97 if pair.accuracy < 0.99 else 1.0  # where only 2 of 300 images differ, the difference has few values
    assert 0.93 <= paired_coverage(pair, rows=300, sets=1000, resamples=1000) <= most
