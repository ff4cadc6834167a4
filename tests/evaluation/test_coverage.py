"""Do the intervals hold the truth as often as they say? By simulation, with the true figures known.

bench/coverage.py measures the same for more kinds of data, and docs/gate.md has its table.
"""

import pytest

from bench.coverage import POPULATIONS, figures_held, paired_held, shares_held
from bench.gate_errors import PAIRS, Pair


def test_every_headline_interval_holds_the_truth_as_often_as_it_says() -> None:
    """300 rows, of which 95 % are answered rightly and the rest with too much confidence."""
    held = figures_held(POPULATIONS[0], rows=300, sets=1000, resamples=150)
    assert set(held) == {"accuracy", "top_k", "macro_f1", "log_loss", "roc_auc", "ece"}
    assert held.pop("ece") >= 0.95  # a wide one on purpose: see calibration_interval
    assert all(0.93 <= share <= 0.97 for share in held.values()), held


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.name)
def test_paired_interval_holds_the_true_difference_as_often_as_it_says(pair: Pair) -> None:
    assert 0.93 <= paired_held(pair, rows=300, sets=1000, resamples=1000) <= 0.975


@pytest.mark.parametrize(
    ("rows", "shares"), [((300, 300), (0.95, 0.9)), ((40, 260), (0.8, 0.9)), ((1000, 100), (0.6, 0.7))]
)
def test_intervals_of_shares_hold_the_truth_as_often_as_they_say(
    rows: tuple[int, int], shares: tuple[float, float]
) -> None:
    held = shares_held(rows=rows, shares=shares, sets=1000)
    assert all(0.93 <= share <= 0.97 for share in held.values()), held
