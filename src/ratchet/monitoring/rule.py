"""The rule W3: conformal test martingales over windows.

Each feature of a window has scores: its distance from the reference, and for numbers how high and how low they are.
A score's rank among those of earlier windows of the same season class is a p-value. A martingale bets that ranks are
extreme. If windows of a class are exchangeable, its wealth ever reaches w with a probability of at most 1/w (Ville).
With d martingales the alarm is at d/alpha, so a false alarm has a probability of at most alpha, over all time.

Vovk et al., Retrain or not retrain: conformal test martingales for change-point detection, arXiv 2102.10439.
"""

import hashlib
import math
from bisect import bisect_left, bisect_right, insort
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ratchet.monitoring.sketch import FeatureBins, WindowSketch
from ratchet.typed_json import STRICT

__all__ = ["RULE", "SEASONS", "Alarm", "DriftRule", "DriftVerdict", "bets", "judge", "scores"]

RULE = "W3"
"""Name of the rule in events; another rule gets another name."""
SEASONS = {"none": 0, "day": 86_400, "week": 604_800}
"""Seconds of each season."""
_EXPONENTS = np.array([[0.15], [0.4], [0.7]])  # k of the bets k p^(k-1)
_JUMP = 0.03  # share of the wealth that moves between the bets, and no bet, before each window
_FLOOR_SD, _FLOOR_TV = 0.1, 0.05  # a smaller change is no alarm
_LEAST_P = 1e-12
_DIRECTIONS = ("different", "higher", "lower")
Counts = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class DriftRule:
    """Settings of the rule.

    Attributes:
        window: seconds.
        season: none, day or week.
        alpha: largest probability of a false alarm for one served version, over all time.
        good_windows: windows of a season class before its first bet.
    """

    window: int
    season: str
    alpha: float
    good_windows: int

    __pydantic_config__ = STRICT

    @property
    def classes(self) -> int:
        """Number of season classes."""
        return max(1, SEASONS[self.season] // self.window)

    def season_class(self, start: int) -> int:
        """Return the place of a window in its season."""
        return start // self.window % self.classes


@dataclass(frozen=True)
class Alarm:
    """The first window at which a martingale reached its limit.

    Attributes:
        direction: different, higher or lower.
        window: its start.
        since: start of the window after which the evidence began to grow.
        evidence, limit: wealth of the martingale, and d/alpha, as natural logarithms.
        effect: change since then: of lower and higher in standard deviations, else total variation.
    """

    feature: str
    direction: str
    window: int
    since: int
    evidence: float
    limit: float
    effect: float

    __pydantic_config__ = STRICT


@dataclass(frozen=True)
class DriftVerdict:
    """Result of the rule for one version.

    Attributes:
        judged: windows in which at least one martingale bet.
        learned: good windows of the season class that has most of them.
        learning_classes: season classes without enough good windows.
        limit: logarithm of d/alpha.
        evidence: logarithm of the largest wealth after each window that is not of the reference.
        alarm: None: no drift.
    """

    judged: int = 0
    learned: int = 0
    learning_classes: int = 0
    limit: float = 0.0
    evidence: list[float] = field(default_factory=list)
    alarm: Alarm | None = None

    __pydantic_config__ = STRICT


def scores(counts: Counts, reference: Counts, *, is_number: bool) -> Floats:
    """Return the scores (windows, 3 or 1) of counts (windows, bins); NaN: the window has no rows of this feature.

    Sums are of integers, so each score is the same in whatever order and company it is computed.
    """
    total, total_reference = counts.sum(1), int(reference.sum())
    with np.errstate(invalid="ignore"):
        if not is_number:
            gaps = np.abs(counts * total_reference - reference * total[:, None]).sum(1)
            return np.asarray(gaps / (2.0 * total * total_reference))[:, None]
        cumulated = np.cumsum(reference)
        gaps = np.abs(np.cumsum(counts, 1) * total_reference - cumulated * total[:, None]).max(1)
        mean_rank = (counts * (2 * cumulated - reference)).sum(1) / (2.0 * total * total_reference)
        return np.stack([gaps / (1.0 * total * total_reference), mean_rank, -mean_rank], 1)


def bets(values: Floats, classes: NDArray[np.int64], random: Floats, *, good_windows: int) -> Floats:
    """Return the logarithm of the wealth (windows, martingales) after each window, for that of its season class.

    Args:
        values: scores (windows, martingales); larger is stranger, NaN: no score.
        classes: season class of each window.
        random: uniform numbers like `values`, which decide between equal scores.
        good_windows: scores of a class before its first bet.
    """
    wealth = np.zeros(values.shape)
    for season_class in np.unique(classes):
        rows = np.flatnonzero(classes == season_class)
        wealth[rows] = _wealth(_ranks(values[rows], random[rows], good_windows))
    return wealth


def _ranks(values: Floats, random: Floats, good_windows: int) -> Floats:
    """Return the smoothed conformal ranks of scores among all earlier ones; NaN: there is no bet."""
    ranks = np.full(values.shape, np.nan)
    for place in range(values.shape[1]):
        earlier: list[float] = []
        for window, (value, uniform) in enumerate(
            zip(values[:, place].tolist(), random[:, place].tolist(), strict=True)
        ):
            if math.isnan(value):
                continue
            if len(earlier) >= good_windows:
                below, upto = bisect_left(earlier, value), bisect_right(earlier, value)
                ranks[window, place] = (len(earlier) - upto + uniform * (upto - below + 1)) / (len(earlier) + 1)
            insort(earlier, value)
    return ranks


def _wealth(ranks: Floats) -> Floats:
    """Return the logarithm of the wealth after each window, betting by its ranks."""
    wealth, total = np.zeros(ranks.shape), np.zeros(ranks.shape[1])
    shares = np.zeros((len(_EXPONENTS) + 1, ranks.shape[1]))
    shares[0] = 1.0  # no bet
    has_bet = ~np.isnan(ranks)
    gains = _EXPONENTS[..., None] * np.maximum(np.where(has_bet, ranks, 1.0), _LEAST_P) ** (_EXPONENTS[..., None] - 1)
    for window in range(len(ranks)):
        moved = (1 - _JUMP) * shares + _JUMP / len(shares)  # the shares add up to one
        moved[1:] *= gains[:, window]
        sums = moved.sum(0)
        shares = np.where(has_bet[window], moved / sums, shares)
        total = total + np.where(has_bet[window], np.log(sums), 0.0)
        wealth[window] = total
    return wealth


def judge(
    version: str, layouts: Sequence[FeatureBins], windows: Sequence[WindowSketch], rule: DriftRule, reference: int
) -> DriftVerdict:
    """Judge the windows of a version. It is a function of them alone: the same windows give the same bits.

    Args:
        version: NAME/VERSION, which seeds the random numbers with the start of each window.
        windows: in the order in which they closed.
        reference: number of first windows that are the reference.
    """
    judged = [window for window in windows[reference:] if window.rows]
    columns = [(layout, direction) for layout in layouts for direction in _DIRECTIONS[: 3 if layout.is_number else 1]]
    limit = math.log(max(1, len(columns)) * rule.classes / rule.alpha)
    if not judged or not columns:
        return DriftVerdict(learning_classes=rule.classes, limit=limit)
    counts = {layout.name: _counts(layout, judged) for layout in layouts}
    base = {layout.name: _counts(layout, windows[:reference]).sum(0) for layout in layouts}
    values = [scores(counts[each.name], base[each.name], is_number=each.is_number) for each in layouts]
    classes = np.array([rule.season_class(window.start) for window in judged])
    random = np.array([_uniform(version, window.start, len(columns)) for window in judged])
    wealth = bets(np.concatenate(values, 1), classes, random, good_windows=rule.good_windows)
    alarm = _first_alarm(wealth, limit, judged, classes, columns, counts, base)
    if alarm:  # what comes after it is not judged
        end = 1 + [window.start for window in judged].index(alarm.window)
        classes, wealth = classes[:end], wealth[:end]
    has_scores = ~np.isnan(np.concatenate(values, 1)[: len(classes)]).all(1)
    seen = np.bincount(classes[has_scores], minlength=rule.classes)
    return DriftVerdict(
        int(np.maximum(0, seen - rule.good_windows).sum()),
        int(min(rule.good_windows, seen.max())),
        int((seen < rule.good_windows).sum()),
        limit,
        wealth.max(1).tolist(),
        alarm,
    )


def _first_alarm(
    wealth: Floats,
    limit: float,
    judged: Sequence[WindowSketch],
    classes: NDArray[np.int64],
    columns: Sequence[tuple[FeatureBins, str]],
    counts: Mapping[str, Counts],
    reference: Mapping[str, Counts],
) -> Alarm | None:
    """Return the alarm of the first window in which a martingale reached the limit, if the change is large enough."""
    alarms: list[Alarm] = []
    for window, place in np.argwhere(wealth >= limit).tolist():
        start = judged[window].start
        if alarms and alarms[0].window != start:
            break
        layout, direction = columns[place]
        changed = _since(wealth[:, place], classes, window)
        effect = _effect(counts[layout.name][changed].sum(0), reference[layout.name], direction)
        if effect >= (_FLOOR_TV if direction == "different" else _FLOOR_SD):
            reached, since = float(wealth[window, place]), judged[changed[0]].start
            alarms.append(Alarm(layout.name, direction, start, since, reached, limit, effect))
    return max(alarms, key=lambda alarm: alarm.evidence, default=None)


def _since(wealth: Floats, classes: NDArray[np.int64], window: int) -> NDArray[np.int64]:
    """Return the windows of the same class after which one martingale's wealth was last at its minimum."""
    same = np.flatnonzero(classes[: window + 1] == classes[window])
    before = np.concatenate([[0.0], wealth[same[:-1]]])
    return same[len(before) - 1 - int(np.argmin(before[::-1])) :]


def _counts(layout: FeatureBins, windows: Sequence[WindowSketch]) -> Counts:
    """Return the counts (windows, bins) of a feature."""
    none = [0] * layout.bins
    return np.array([window.counts.get(layout.name, none) for window in windows], np.int64).reshape(-1, layout.bins)


def _effect(after: Counts, reference: Counts, direction: str) -> float:
    """Return the change of a feature: the total variation, or how many standard deviations the ranks have moved."""
    shares, expected = after / after.sum(), reference / reference.sum()
    if direction == "different":
        return float(np.abs(shares - expected).sum() / 2)
    ranks = np.cumsum(expected) - expected / 2
    deviation = math.sqrt(float((expected * (ranks - 0.5) ** 2).sum()))
    moved = abs(float((shares * ranks).sum()) - 0.5)
    return moved / deviation if deviation else math.inf if moved else 0.0


def _uniform(version: str, start: int, number: int) -> Floats:
    seed = hashlib.sha256(f"{version} {start}".encode()).digest()
    return np.random.default_rng(int.from_bytes(seed[:8])).random(number)
