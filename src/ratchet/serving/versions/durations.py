"""Expected seconds of work, by what the latest work took."""

from dataclasses import dataclass

__all__ = ["Duration", "Slack"]

_FORGET = 0.98  # of the times of earlier work, per piece of work
_WEIGHT = 0.05  # of the latest answer
_SHORT = 0.01  # seconds below which an expected time says little
_MOST = 20.0


@dataclass
class Duration:
    """Seconds of work as start + slope * amount, by least squares over the latest pieces of work."""

    sums: tuple[float, ...] = (0.0,) * 5  # of 1, n, n*n, t, n*t
    start: float = 0.0
    slope: float = 0.0

    def add(self, amount: float, seconds: float) -> None:
        """Add one piece of work."""
        latest = (1, amount, amount * amount, seconds, amount * seconds)
        self.sums = tuple([_FORGET * before + value for before, value in zip(self.sums, latest, strict=True)])
        count, n, nn, t, nt = self.sums
        spread = count * nn - n * n
        self.slope = max(0.0, (count * nt - n * t) / spread) if spread > 1e-9 * nn * count else t / max(n, 1.0)
        self.start = max(0.0, (t - self.slope * n) / count)

    def of(self, amount: float, *, per: int = 0, starts: int = 1) -> float:
        """Return the expected seconds; 0 before the first piece of work. Each request asks several times.

        Args:
            amount: of all pieces.
            per: the largest amount of one piece, from which their number follows.
            starts: number of pieces, without `per`.
        """
        return self.start * (-(-amount // per) if per else starts) + self.slope * amount


@dataclass
class Slack:
    """Factor from expected to true seconds: other threads and the event loop need the processor, too."""

    ratio: float = 1.0

    def add(self, expected: float, seconds: float) -> None:
        """Add one answer."""
        if expected > _SHORT:
            self.ratio += _WEIGHT * (min(_MOST, max(1.0, seconds / expected)) - self.ratio)
