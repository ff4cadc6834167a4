"""Error rates of the gate, by simulation. bench/gate_errors.py measures more, docs/gate.md has a summary."""

import itertools

import numpy as np
import pytest

from ratchet.gate.significance import Tries, spend
from tests.simulations.gate import FIVE_PER_CENT, Pair, detectable, share_promoted, simulate_nights

FIRST_LEVEL = 0.05 * (0.3 / 2 + 0.7 / 31)  # of the first try, as in docs/gate.md


def test_equal_models_are_promoted_as_rarely_as_documented() -> None:
    assert share_promoted(Pair(0.9, 0.0), rows=400, sets=2000) <= FIRST_LEVEL + 3 * (FIRST_LEVEL / 2000) ** 0.5


@pytest.mark.parametrize("accuracy", [0.97, 0.99])
def test_nearly_identical_models_are_promoted_no_more_often(accuracy: float) -> None:
    """Of 400 images, about 8 and about 3 are answered differently."""
    assert share_promoted(Pair(accuracy, 0.0), rows=400, sets=1000) <= FIRST_LEVEL + 3 * (FIRST_LEVEL / 1000) ** 0.5


def test_detectable_improvement_is_promoted_four_times_in_five() -> None:
    better = detectable(0.9, 1000)
    assert 0.018 < better < 0.03
    assert 0.75 <= share_promoted(Pair(0.9, better), rows=1000, sets=600) <= 0.85


def test_clearly_better_model_is_promoted_nearly_always() -> None:
    assert share_promoted(Pair(0.85, 0.08), rows=400, sets=300) >= 0.96


def test_worse_model_is_never_promoted() -> None:
    assert share_promoted(Pair(0.9, -0.08), rows=400, sets=300) == 0.0


def test_levels_of_all_tries_add_up_to_the_error() -> None:
    levels = [spend(Tries(count=count, spent=float(count)), confidence=0.95) for count in range(5000)]
    assert sum(level.level for level in levels) + levels[-1].remaining == pytest.approx(0.05)
    assert all(level.level > later.level > 0 for level, later in itertools.pairwise(levels))


def test_new_images_restore_at_most_their_share_of_error() -> None:
    for spent, new in itertools.product((1.0, 5.5, 30.0, 400.0), (0.01, 0.3, 1.0)):
        before = spend(Tries(spent=spent), confidence=0.95).remaining
        after = spend(Tries(spent=spent * (1 - new)), confidence=0.95).remaining
        assert after - before <= 0.05 * new + 1e-12


def test_thirtieth_try_still_promotes_one_point_better() -> None:
    """10,000 images, 5 % answered differently; the candidates before it are equal to the champion."""
    assert FIVE_PER_CENT.differing == pytest.approx(0.05, abs=0.0005)
    histories = [simulate_nights(FIVE_PER_CENT, rows=10_000, count=31, better_on=30, seed=seed) for seed in range(60)]
    assert np.mean([30 in history.promotions for history in histories]) >= 0.8 - 2 * (0.16 / 60) ** 0.5
    restored = [history.levels[30] for history in histories if history.promotions == (30,)]
    assert restored == pytest.approx([FIRST_LEVEL] * len(restored))


def test_ninety_equal_nights_seldom_promote_anything() -> None:
    """At most 5 % of histories, as bench/gate_errors.py measures; three standard errors are added for these few."""
    histories = [simulate_nights(Pair(0.9, 0.0), rows=300, seed=seed) for seed in range(100)]
    assert np.mean([bool(history.wrong) for history in histories]) <= 0.05 + 3 * (0.05 * 0.95 / 100) ** 0.5
