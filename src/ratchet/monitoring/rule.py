"""The rule W3: conformal test martingales over windows.

Each feature of a window has scores: its distance from the reference, and for numbers how high and how low they are.
A score's rank among those of earlier windows of the same season class is a p-value. A martingale bets that ranks are
extreme. If windows of a class are exchangeable, its wealth ever reaches w with a probability of at most 1/w (Ville).
With d martingales the alarm is at d/alpha, so a false alarm has a probability of at most alpha, over all time.

Vovk et al., Retrain or not retrain: conformal test martingales for change-point detection, arXiv 2102.10439.
"""

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ratchet.monitoring.sketch import FeatureBins, WindowSketch
from ratchet.typed_json import STRICT

__all__ = [
    "RULE",
    "SEASONS",
    "Alarm",
    "DriftRule",
    "DriftVerdict",
    "Martingales",
    "Watch",
    "counts_of",
    "effect",
    "judge",
    "scores",
    "windows_between",
]

RULE = "W3"
"""Name of the rule in events; another rule gets another name."""
SEASONS = {"none": 0, "day": 86_400, "week": 604_800}
"""Seconds of each season."""
_EXPONENTS = np.array([[0.15], [0.4], [0.7]])  # k of the bets k p^(k-1)
_JUMP = 0.03  # share of the wealth that moves between the bets, and no bet, before each window
_FLOOR_SD, _FLOOR_TV = 0.1, 0.05  # a smaller change is no alarm
_EVEN_SD = math.sqrt(1 / 12)  # of evenly spread ranks: where all normal rows are in one bin
_LEAST_P = 1e-12
_NO_SCORE = 65_535  # level of a window without rows of a feature
_AT_ONCE, _COLUMNS = 256, 64  # windows and columns that are ranked together: about 20 MB
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

    @property
    def ranked(self) -> int:
        """Number of windows among which scores are ranked, at most."""
        return max(20_000, 100 * self.classes)

    @property
    def remembered(self) -> int:
        """Number of the latest windows from which the size of a change is measured."""
        return min(4096, max(256, 16 * self.classes))

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
        learned: good windows of the season class that has most of them, since the ranks began.
        learning_classes: season classes without enough good windows.
        limit: logarithm of d/alpha.
        alarm: None: no drift.
    """

    judged: int = 0
    learned: int = 0
    learning_classes: int = 0
    limit: float = 0.0
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
        return np.stack([gaps / (1.0 * total * total_reference), mean_rank, 1 - mean_rank], 1)


class Martingales:
    """The bets of one version after some windows. Each is a function of those before: judged at once or one by one.

    Attributes:
        starts: int64, of the windows.
        evidence: logarithm of the largest wealth after each window.
        levels: uint16 (windows, d), scores in steps; 65535: no score.
        wealth: logarithm of the wealth, (classes, d).
        shares: of the wealth on each bet, (classes, 4, d).
        lowest: least wealth after any window, (classes, d).
        since: start of the first window after that, (classes, d).
        seen: windows with scores since the ranks began, (classes,).
        judged: windows of which at least one martingale could bet, (classes,).
    """

    starts: NDArray[np.int64]
    evidence: Floats
    levels: NDArray[np.uint16]
    wealth: Floats
    shares: Floats
    lowest: Floats
    since: NDArray[np.int64]
    seen: NDArray[np.int64]
    judged: NDArray[np.int64]

    def __init__(self, classes: int, number: int, stored: Mapping[str, bytes] | None = None) -> None:
        """Begin `number` martingales for each class, or go on from the bytes of `arrays`."""
        bets = len(_EXPONENTS) + 1
        begin: dict[str, NDArray[Any]] = {
            "starts": np.empty(0, np.int64),
            "evidence": np.empty(0),
            "levels": np.empty((0, number), np.uint16),
            "wealth": np.zeros((classes, number)),
            "shares": np.concatenate([np.ones((classes, 1, number)), np.zeros((classes, bets - 1, number))], 1),
            "lowest": np.zeros((classes, number)),
            "since": np.zeros((classes, number), np.int64),
            "seen": np.zeros(classes, np.int64),
            "judged": np.zeros(classes, np.int64),
        }
        for name, array in begin.items():
            if stored and name in stored:
                array = np.frombuffer(stored[name], array.dtype).reshape((-1, *array.shape[1:])).copy()
            setattr(self, name, array)

    @property
    def arrays(self) -> dict[str, NDArray[Any]]:
        """All that is remembered, by name."""
        return dict(vars(self))

    def forget(self) -> None:
        """Forget the scores, among which the next ones are ranked; the wealth stays. The next are learned again."""
        self.seen[:] = 0
        self.starts, self.levels, self.evidence = self.starts[:0], self.levels[:0], self.evidence[:0]

    def add(
        self,
        starts: Sequence[int],
        values: Floats,
        random: Floats,
        rule: DriftRule,
        ends: Callable[[int, Floats], bool] = lambda number, wealth: False,
    ) -> None:
        """Add windows, up to the first after which `ends` returns True.

        Args:
            starts: of the windows, in the order in which they closed.
            values: scores (windows, d) from 0 to 1; larger is stranger, NaN: no score.
            random: uniform numbers like `values`, which decide between equal scores.
            rule: with the good windows of a class before its first bet.
            ends: called with the number of added windows and the wealth (d,) after the latest.
        """
        levels = np.where(np.isnan(values), _NO_SCORE, np.nan_to_num(values) * (_NO_SCORE - 1)).astype(np.uint16)
        before, classes = self.starts // rule.window % rule.classes, np.array([rule.season_class(at) for at in starts])
        ranks = np.full(values.shape, np.nan)
        for season_class in np.unique(classes):
            earlier, rows = self.levels[before == season_class], classes == season_class
            for begin in range(0, values.shape[1], _COLUMNS):
                part = slice(begin, begin + _COLUMNS)
                among = earlier[:, part], levels[rows, part], random[rows, part]
                ranks[rows, part] = _ranks(*among, rule.good_windows)
        evidence: list[float] = []
        for window, season_class in enumerate(classes.tolist()):
            self._bet(season_class, ranks[window], starts[window])
            wealth = self.wealth[season_class]
            evidence.append(float(wealth.max()))
            has_score = bool((levels[window] != _NO_SCORE).any())
            self.judged[season_class] += has_score and self.seen[season_class] >= rule.good_windows
            self.seen[season_class] += has_score
            if ends(window + 1, wealth):
                break
        self.starts = np.concatenate([self.starts, np.array(starts[: len(evidence)], np.int64)])
        self.levels = np.concatenate([self.levels, levels[: len(evidence)]])
        self.evidence = np.concatenate([self.evidence, evidence])

    def _bet(self, season_class: int, ranks: Floats, start: int) -> None:
        """Bet on one window of a class by its ranks; NaN: there is no bet."""
        has_bet, shares, wealth = ~np.isnan(ranks), self.shares[season_class], self.wealth[season_class]
        is_lowest = wealth <= self.lowest[season_class]
        self.lowest[season_class] = np.minimum(wealth, self.lowest[season_class])
        self.since[season_class] = np.where(is_lowest, start, self.since[season_class])
        moved = (1 - _JUMP) * shares + _JUMP / len(shares)  # the shares add up to one
        moved[1:] *= _EXPONENTS * np.maximum(np.where(has_bet, ranks, 1.0), _LEAST_P) ** (_EXPONENTS - 1)
        sums = moved.sum(0)
        self.shares[season_class] = np.where(has_bet, moved / sums, shares)
        self.wealth[season_class] = wealth + np.where(has_bet, np.log(sums), 0.0)


def _ranks(earlier: NDArray[np.uint16], levels: NDArray[np.uint16], random: Floats, good_windows: int) -> Floats:
    """Return the smoothed conformal ranks (windows, d) of levels among all earlier ones; NaN: there is no bet."""
    ranks, ordered = np.full(random.shape, np.nan), np.sort(earlier, 0)
    for begin in range(0, len(levels), _AT_ONCE):
        part = levels[begin : begin + _AT_ONCE]
        is_before = np.tri(len(part), k=-1, dtype=bool)[..., None]
        seen, below, upto = (
            (before.sum(1) + among)
            for before, among in (
                (is_before & (part != _NO_SCORE), (ordered != _NO_SCORE).sum(0)),
                (is_before & (part < part[:, None]), _places(ordered, part, "left")),
                (is_before & (part <= part[:, None]), _places(ordered, part, "right")),
            )
        )
        smoothed = (seen - upto + random[begin : begin + _AT_ONCE] * (upto - below + 1)) / (seen + 1)
        has_bet = (seen >= good_windows) & (part != _NO_SCORE)
        ranks[begin : begin + _AT_ONCE] = np.where(has_bet, smoothed, np.nan)
        ordered = np.sort(np.concatenate([ordered, part]), 0)
    return ranks


def _places(ordered: NDArray[np.uint16], levels: NDArray[np.uint16], side: Literal["left", "right"]) -> Counts:
    """Return the place of each level among the ordered ones of its column."""
    columns = [np.searchsorted(ordered[:, at], levels[:, at], side) for at in range(levels.shape[1])]
    return np.stack(columns, 1)


@dataclass(frozen=True)
class Watch:
    """Rule for the windows of one version.

    Attributes:
        version: NAME/VERSION, which seeds the random numbers with the start of each window.
        layouts: bins of its features.
        reference: counts of each feature from which scores are distances.
        normal: counts of the good windows, from which the size of a change is measured.
        rule: settings.
    """

    version: str
    layouts: Sequence[FeatureBins]
    reference: Mapping[str, Counts]
    normal: Mapping[str, Counts]
    rule: DriftRule

    @property
    def columns(self) -> list[tuple[FeatureBins, str]]:
        """Feature and direction of each martingale."""
        return [(each, way) for each in self.layouts for way in _DIRECTIONS[: 3 if each.is_number else 1]]

    @property
    def limit(self) -> float:
        """Logarithm of d/alpha."""
        return math.log(max(1, len(self.columns)) * self.rule.classes / self.rule.alpha)

    def judge(
        self, martingales: Martingales, windows: Sequence[WindowSketch], latest: Sequence[WindowSketch] = ()
    ) -> DriftVerdict:
        """Add windows that have closed to the martingales, up to the first alarm, and return the verdict.

        Args:
            martingales: after the windows before.
            windows: in the order in which they closed.
            latest: windows before, as far as they are remembered, for the size of a change.
        """
        alarms: list[Alarm] = []

        def ends(number: int, wealth: Floats) -> bool:
            if wealth.max() >= self.limit:
                alarms.extend(self._alarms(martingales, wealth, [*latest, *part[:number]][-self.rule.remembered :]))
            return bool(alarms)

        windows = list(windows)
        while windows and not alarms:
            if len(martingales.starts) == self.rule.ranked:  # a new epoch of ranks keeps the state small
                martingales.forget()
            end = self.rule.ranked - len(martingales.starts)
            part, windows = windows[:end], windows[end:]
            starts, width = [window.start for window in part], len(self.columns)
            random = np.array([_uniform(self.version, start, width) for start in starts])
            martingales.add(starts, self._scores(part), random, self.rule, ends)
            latest = [*latest, *part]
        seen, good = martingales.seen, self.rule.good_windows
        judged, learning = int(martingales.judged.sum()), int((seen < good).sum())
        alarm = max(alarms, key=lambda alarm: alarm.evidence, default=None)
        return DriftVerdict(judged, int(min(good, seen.max())), learning, self.limit, alarm)

    def _scores(self, windows: Sequence[WindowSketch]) -> Floats:
        return np.concatenate(
            [
                scores(counts_of(each, windows), self.reference[each.name], is_number=each.is_number)
                for each in self.layouts
            ],
            1,
        )

    def _alarms(self, martingales: Martingales, wealth: Floats, windows: Sequence[WindowSketch]) -> Iterator[Alarm]:
        """Yield the alarms of the last window whose change is large enough."""
        start = windows[-1].start
        for place in np.flatnonzero(wealth >= self.limit).tolist():
            layout, direction = self.columns[place]
            since = int(martingales.since[self.rule.season_class(start), place])
            changed = counts_of(layout, windows_between(windows, since, start, self.rule)).sum(0)
            size = effect(changed, self.normal[layout.name], direction)
            if size >= (_FLOOR_TV if direction == "different" else _FLOOR_SD):
                yield Alarm(layout.name, direction, start, since, float(wealth[place]), self.limit, size)


def judge(
    version: str, layouts: Sequence[FeatureBins], windows: Sequence[WindowSketch], rule: DriftRule, reference: int
) -> DriftVerdict:
    """Judge windows at once, of which the first `reference` ones are the reference."""
    base = {each.name: counts_of(each, windows[:reference]).sum(0) for each in layouts}
    watch, rest = Watch(version, layouts, base, base, rule), windows[reference:]
    return watch.judge(Martingales(rule.classes, len(watch.columns)), rest)


def windows_between(windows: Sequence[WindowSketch], since: int, upto: int, rule: DriftRule) -> list[WindowSketch]:
    """Return the windows of the season class of `upto` that start from `since` to `upto`."""
    wanted = rule.season_class(upto)
    return [each for each in windows if since <= each.start <= upto and rule.season_class(each.start) == wanted]


def counts_of(layout: FeatureBins, windows: Sequence[WindowSketch]) -> Counts:
    """Return the counts (windows, bins) of a feature."""
    return np.array([window.counts_of(layout) for window in windows], np.int64).reshape(-1, layout.bins)


def effect(after: Counts, normal: Counts, direction: str) -> float:
    """Return the change of a feature: the total variation, or how many standard deviations the ranks have moved."""
    shares, expected = after / max(1, after.sum()), normal / max(1, normal.sum())
    if direction == "different":
        return float(np.abs(shares - expected).sum() / 2)
    ranks = np.cumsum(expected) - expected / 2
    deviation = math.sqrt(float((expected * (ranks - 0.5) ** 2).sum())) or _EVEN_SD
    return abs(float((shares * ranks).sum()) - 0.5) / deviation


def _uniform(version: str, start: int, number: int) -> Floats:
    seed = hashlib.sha256(f"{version} {start}".encode()).digest()
    return np.random.default_rng(int.from_bytes(seed[:8])).random(number)
