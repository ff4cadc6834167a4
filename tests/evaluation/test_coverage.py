"""Do the intervals hold the truth as often as they say? By simulation, with the true figures known.

bench/coverage.py measures the same for more kinds of data, and docs/gate.md has its table. test_slices.py holds the
intervals of shares and of their differences to the same.
"""

import pytest

from bench.coverage import POPULATIONS, figures_held, paired_held
from bench.gate_errors import PAIRS, Pair


def test_every_headline_interval_holds_the_truth_as_often_as_it_says() -> None:
    """300 rows, of which 95 % are answered rightly and the rest with too much confidence."""
    held = figures_held(POPULATIONS[0], rows=300, sets=1000, resamples=100)
    assert set(held) == {"accuracy", "top_k", "macro_f1", "log_loss", "roc_auc", "ece"}
    assert held.pop("ece") >= 0.95  # a wide one on purpose: see calibration_interval
    assert all(0.93 <= share <= 0.97 for share in held.values()), held


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.name)
def test_paired_interval_holds_the_true_difference_as_often_as_it_says(pair: Pair) -> None:
    most = 0.97 if pair.accuracy < 0.99 else 1.0  # where but 2 rows in 300 differ, few differences can be seen at all
    assert 0.93 <= paired_held(pair, rows=300, sets=1000, resamples=1000) <= most
