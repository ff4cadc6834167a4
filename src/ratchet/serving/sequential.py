"""Tests of a version against the served one that stay valid however often they are looked at.

Each multiplies e-values. In the test of errors, if the version is not worse, the product reaches 1 / alpha at any time
with a probability of at most alpha (Ville's inequality), so no number of requests must be fixed before.
"""

from collections import deque
from dataclasses import dataclass, field

__all__ = ["MoreErrors", "Slower"]

_BETS = (0.1, 0.3, 0.6, 0.9)  # shares of the capital
_RUN = 5000  # pairs
_PRIOR = 0.18  # of the Beta prior that Turner et al. recommend


@dataclass
class MoreErrors:
    """Whether a version's error rate is higher than the served one's.

    The e-values of 2x2 tables, in blocks of one request each, from Turner, Ly & Grünwald, "Generic E-variables for
    exact sequential k-sample tests that allow for optional stopping" (2024).

    Attributes:
        evidence: product of the e-values.
        pairs: blocks so far.
        errors: of the version and of the served one, among the pairs.
    """

    evidence: float = 1.0
    pairs: int = 0
    errors: list[int] = field(default_factory=lambda: [0, 0])

    def add(self, failed: bool, served_failed: bool) -> None:
        """Add one request of the version and one of the served version."""
        rates = [(errors + _PRIOR) / (self.pairs + 2 * _PRIOR) for errors in self.errors]
        if rates[0] > rates[1]:  # otherwise the version is the better one so far, and the e-value is 1
            common = sum(rates) / 2
            for rate, is_error in zip(rates, (failed, served_failed), strict=True):
                self.evidence *= rate / common if is_error else (1 - rate) / (1 - common)
        self.pairs += 1
        self.errors = [count + error for count, error in zip(self.errors, (failed, served_failed), strict=True)]


@dataclass
class Slower:
    """Whether a version needs more than `factor` times the seconds of the served one in more than half of the pairs.

    A sign test by betting, as an e-detector (Shin, Ramdas & Rinaldo, "E-detectors: a nonparametric framework for
    sequential change detection", 2024): it begins again at 1 whenever the bets have lost, so good pairs of the past do
    not hide that a version has become slow. Of a version that is not slower, `evidence` reaches 1 / alpha once in
    5,000 / alpha pairs at most.

    Attributes:
        pairs: so far.
        slower: pairs in which the version was slower than allowed.
        latest: of the latest 100 pairs, whether the version was slower than allowed.
    """

    factor: float
    pairs: int = 0
    slower: int = 0
    latest: deque[bool] = field(default_factory=lambda: deque(maxlen=100))
    _capital: dict[float, float] = field(default_factory=lambda: dict.fromkeys(_BETS, 1.0))

    @property
    def evidence(self) -> float:
        """Mean capital of the bets, for each pair in which a false alarm is allowed."""
        return sum(self._capital.values()) / len(self._capital) / _RUN

    def add(self, seconds: float, served_seconds: float) -> None:
        """Add the seconds of one request of the version, and of a similar one of the served version."""
        is_slower = seconds > self.factor * served_seconds
        for bet, capital in self._capital.items():
            self._capital[bet] = max(1.0, capital) * (1 + bet if is_slower else 1 - bet)
        self.pairs += 1
        self.slower += is_slower
        self.latest.append(is_slower)
