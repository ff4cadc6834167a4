"""Tests of a version against the served one that stay valid however often they are looked at.

Each multiplies e-values. If the version is not worse, the product reaches 1 / alpha at any time with a probability of
at most alpha (Ville's inequality), so no number of requests must be fixed before.
"""

from dataclasses import dataclass, field

__all__ = ["MoreErrors", "Slower"]

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

    A sign test by betting, with the bet that has earned most so far; see Waudby-Smith & Ramdas, "Estimating means of
    bounded random variables by betting" (2024).

    Attributes:
        evidence: product of the e-values.
        pairs: so far.
        slower: pairs in which the version was slower than allowed.
    """

    factor: float
    evidence: float = 1.0
    pairs: int = 0
    slower: int = 0

    def add(self, seconds: float, served_seconds: float) -> None:
        """Add the seconds of one request of the version, and of a similar one of the served version."""
        bet = max(0.0, 2 * (self.slower + 0.5) / (self.pairs + 1) - 1)
        is_slower = seconds > self.factor * served_seconds
        self.evidence *= 1 + bet if is_slower else 1 - bet
        self.pairs += 1
        self.slower += is_slower
