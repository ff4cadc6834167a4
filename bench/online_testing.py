"""Other procedures that spread an error over tries, for comparison with the gate's own series.

Each procedure takes p-values in their order and returns which of them win. All have the error .05. LORD++ is by Ramdas,
Yang, Wainwright and Jordan 2017 ("Online control of the false discovery rate with decaying memory"), SAFFRON by Ramdas,
Zrnic, Wainwright and Jordan 2018, ADDIS by Tian and Ramdas 2019. These control the false discovery rate and assume
independent p-values, which those of one test set are not.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from ratchet.gate.significance import FIRST_TRY, Tries, spend

__all__ = ["PROCEDURES"]

_ERROR = 0.05
_LONGEST = 100_000
_TIMES = np.arange(1, _LONGEST + 1)
_HALF = 0.5


def _normed(series: "np.ndarray[tuple[int], np.dtype[np.float64]]") -> list[float]:
    return [float(value) for value in (series / series.sum())[:1000]]


_LORD = _normed(np.log(np.maximum(_TIMES, 2)) / (_TIMES * np.exp(np.sqrt(np.log(_TIMES)))))
_POWER = _normed(_TIMES**-1.6)


def gate(history: Sequence[float]) -> list[bool]:
    """Use the gate's own series, which restarts after a promotion."""
    tries, won = FIRST_TRY, []
    for p in history:
        won.append(p <= spend(tries, confidence=1 - _ERROR).level)
        tries = FIRST_TRY if won[-1] else Tries(tries.count + 1, tries.spent + 1, 0.0)
    return won


def unspent(history: Sequence[float]) -> list[bool]:
    """Use half of the error for every try, as a two-sided interval does."""
    return [p <= _ERROR / 2 for p in history]


def even(history: Sequence[float]) -> list[bool]:
    """Share the error evenly among the first 90 tries (Bonferroni)."""
    return [p <= _ERROR / 90 for p in history]


def lord(history: Sequence[float]) -> list[bool]:
    """Use LORD++, with half of the error as initial wealth."""
    won: list[bool] = []
    for time, p in enumerate(history, start=1):
        wins = [number for number, has_won in enumerate(won, start=1) if has_won]
        level = _ERROR / 2 * _LORD[time - 1]
        for place, win in enumerate(wins):
            level += (_ERROR / 2 if place == 0 else _ERROR) * _LORD[time - win - 1]
        won.append(p <= level)
    return won


def saffron(history: Sequence[float]) -> list[bool]:
    """Use SAFFRON with lambda = 1/2: p-values up to lambda do not advance the series."""
    return _adaptive(history, discard=1.0, candidate=_HALF)


def addis(history: Sequence[float]) -> list[bool]:
    """Use ADDIS with tau = 1/2 and lambda = 1/4: p-values above tau are not counted."""
    return _adaptive(history, discard=_HALF, candidate=_HALF / 2)


def _adaptive(history: Sequence[float], *, discard: float, candidate: float) -> list[bool]:
    won: list[bool] = []
    counted: list[int] = []  # tries that advance the series
    for time, p in enumerate(history, start=1):
        wins = [number for number, has_won in enumerate(won, start=1) if has_won]
        level = _ERROR / 2 * _POWER[len(counted)]
        for place, win in enumerate(wins):
            since = sum(1 for number in counted if number > win)
            level += (_ERROR / 2 if place == 0 else _ERROR) * _POWER[since]
        level = min(candidate, (discard - candidate) * level)
        won.append(p <= level)
        if candidate < p <= discard:
            counted.append(time)
    return won


PROCEDURES: Mapping[str, Callable[[Sequence[float]], list[bool]]] = {
    "the gate's series": gate,
    "no spending (.025 each)": unspent,
    "evenly over 90 tries": even,
    "LORD++": lord,
    "SAFFRON": saffron,
    "ADDIS": addis,
}
