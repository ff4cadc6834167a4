"""Classes with another share in validation or test than in train, which given splits, groups or time order force."""

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["ClassShare", "other_shares"]

_NOTABLE = 0.05  # difference of shares
_LEAST = 1.0  # samples more or fewer than the share of train: less is rounding


@dataclass(frozen=True)
class ClassShare:
    """The share of a class among the samples of a split, and among those of train."""

    split: str
    name: str
    share: float
    train: float


def other_shares(classes: Mapping[str, Mapping[str, int]]) -> list[ClassShare]:
    """Return the classes with another share than in train, or with none: split by split, largest difference first.

    Args:
        classes: number of samples by split and class, as in profile.json.
    """
    known, notable = _shares(classes["train"]), []
    for split, counts in classes.items():
        size, different = sum(counts.values()), []
        for name, share in _shares(counts).items() if size else ():
            difference = abs(share - known[name])
            if difference * size >= _LEAST and (difference >= _NOTABLE or not counts[name]):
                different.append(ClassShare(split, name, share, known[name]))
        notable += sorted(different, key=lambda share: (-abs(share.share - share.train), share.name))
    return notable


def _shares(counts: Mapping[str, int]) -> dict[str, float]:
    total = max(1, sum(counts.values()))
    return {name: count / total for name, count in counts.items()}
