"""The rule W3 on counts: its ranks, bets, seasons and floor."""

import tracemalloc

import numpy as np
import pytest

from ratchet.kinds.protocol import UNKNOWN
from ratchet.monitoring.rule import DriftRule, Martingales, judge, scores
from ratchet.monitoring.sketch import FeatureBins, WindowSketch, layout_of

HOUR = 3600


def sketches(values: np.ndarray, layout: FeatureBins) -> list[WindowSketch]:  # type: ignore[type-arg]
    """Windows of an hour, from rows of values."""
    return [
        WindowSketch("x/1", place * HOUR, len(row), {layout.name: layout.count(row)})
        for place, row in enumerate(values)
    ]


def test_wealth_follows_its_definition() -> None:
    """Smoothed ranks among earlier scores, bets k p^(k-1) for three k and none, and a jump of .03 before each."""
    random = np.random.default_rng(3)
    values, uniform = random.integers(0, 9, (60, 2)) / 9, random.random((60, 2))
    wealth, rule = [], DriftRule(HOUR, "none", 0.05, 20)
    martingales = Martingales(1, 2)
    for begin, end in ((0, 25), (25, 60)):  # judged in parts as at once
        martingales.add(
            [HOUR * place for place in range(begin, end)],
            values[begin:end],
            uniform[begin:end],
            rule,
            lambda _, after: bool(wealth.append(after.copy())),
        )
    for column in range(2):
        shares, total = np.array([1.0, 0, 0, 0]), 0.0
        for place in range(60):
            past, value = values[:place, column], values[place, column]
            if place >= 20:
                rank = ((past > value).sum() + uniform[place, column] * ((past == value).sum() + 1)) / (place + 1)
                shares = 0.97 * shares + 0.03 * shares.sum() / 4
                shares[1:] *= [k * rank ** (k - 1) for k in (0.15, 0.4, 0.7)]
                total += np.log(shares.sum())
                shares /= shares.sum()
            assert wealth[place][column] == pytest.approx(total, abs=1e-9)


def test_memory_of_ranks_does_not_grow_with_the_columns() -> None:
    random, starts = np.random.default_rng(4), [HOUR * place for place in range(300)]
    values, uniform = random.integers(0, 50, (300, 400)) / 50, random.random((300, 400))
    values[random.random(values.shape) < 0.1] = np.nan
    rule, together = DriftRule(HOUR, "none", 0.05, 20), Martingales(1, 400)
    tracemalloc.start()
    together.add(starts, values, uniform, rule)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 48 << 20, "bytes; 256 windows of 400 columns are compared with each other"
    for column in (0, 63, 64, 399):
        alone = Martingales(1, 1)
        alone.add(starts, values[:, [column]], uniform[:, [column]], rule)
        assert together.wealth[0, column] == alone.wealth[0, 0] != 0


def test_season_classes_are_judged_apart() -> None:
    """Weekends differ from other days. That is drift without a season, and none with one."""
    values = np.random.default_rng(1).normal(size=(168 * 15, 20))
    values += 2.0 * (np.arange(168 * 15) % 168 >= 120)[:, None]
    layout = layout_of("load", values[:168].ravel())
    windows = sketches(values, layout)
    seasonal = judge("load/1", [layout], windows, DriftRule(HOUR, "week", 0.05, 4), 168)
    assert (seasonal.alarm, seasonal.judged, seasonal.learning_classes) == (None, 168 * 10, 0)
    assert judge("load/1", [layout], windows, DriftRule(HOUR, "none", 0.05, 20), 5).alarm


def test_change_below_the_floor_is_no_alarm(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(2)
    values = random.normal(size=(400, 4000))
    values[200:] += 0.05
    layout = layout_of("x", values[:50].ravel())
    windows, rule = sketches(values, layout), DriftRule(HOUR, "none", 0.05, 30)
    assert judge("x/1", [layout], windows, rule, 50).alarm is None
    monkeypatch.setattr("ratchet.monitoring.rule._FLOOR_SD", 0.0)
    assert judge("x/1", [layout], windows, rule, 50).alarm is not None


def test_window_without_a_feature_moves_no_martingale() -> None:
    counts = np.array([[0, 3, 1], [0, 0, 0]])
    assert np.isnan(scores(counts, np.array([0, 5, 5]), is_number=True)[1]).all()


def test_windows_without_scores_are_not_judged() -> None:
    layout = layout_of("load", np.arange(100.0))
    first = sketches(np.random.default_rng(0).uniform(0, 100, (5, 60)), layout)
    later = [WindowSketch("x/1", HOUR * number, 60) for number in range(10, 60)]
    verdict = judge("x/1", [layout], [*first, *later], DriftRule(HOUR, "none", 0.05, 30), 5)
    assert (verdict.judged, verdict.learned) == (0, 0)


def test_frequent_values_have_bins_of_their_own() -> None:
    layout = layout_of("gain", np.array([0.0] * 80 + list(range(1, 21))))
    below, zero = layout.count(np.array([-1.0, 0.0]))[1:3]
    assert (below, zero) == (1, 1)
    assert layout.count(np.array([99.0, np.nan, np.inf]))[-1] == 2
    assert len(layout.names) == layout.bins
    near = layout_of("probability", np.repeat([0.055819, 0.055820, 0.055824, 0.3], 9))
    assert len({*near.names}) == near.bins
    assert "0.055819" in near.names


def test_categories_are_counted_with_missing_unknown_and_other() -> None:
    layout = layout_of("job", np.array(["cook", "cook", "nurse", None, UNKNOWN], object))
    assert layout.count(np.array(["pilot", None, None, UNKNOWN, "nurse"], object)) == [2, 1, 1, 0, 1]
    assert layout.names == ["missing", "unknown", "other", "cook", "nurse"]


def test_sketches_of_parts_add_up() -> None:
    first = WindowSketch("x/1", 0, 2, {"x": [0, 2]}, {"answered": 2})
    second = WindowSketch("x/1", 0, 3, {"x": [1, 1], "y": [3]}, {"answered": 1, "refused (400)": 4})
    both = {"answered": 3, "refused (400)": 4}
    assert first + second == WindowSketch("x/1", 0, 5, {"x": [1, 3], "y": [3]}, both)
