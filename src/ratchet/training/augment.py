"""Random numbers of samples, the order of samples, and the size of images, by (seed, epoch, sample key).

They depend on nothing else: not on the batch, the place there, the micro-batch size or the number of workers. So a
resumed run sees the same pixels as an uninterrupted one.
"""

import zlib
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ratchet.training.plan import Plan

__all__ = ["Keys", "Randomness", "epoch_order", "epoch_rows", "resized", "sample_bits"]

Keys = NDArray[np.uint64]
_TWELVE = 2**12


def sample_bits(keys: Keys, *, seed: int, epoch: int) -> Keys:
    """Return 64 random bits per sample key, uint64 (n,), by the SplitMix64 finaliser (Steele, Lea and Flood 2014)."""
    stream = _mix(_mix(np.array([seed], np.uint64)) ^ np.array([epoch], np.uint64))
    return _mix(keys ^ stream)


def _mix(value: Keys) -> Keys:
    with np.errstate(over="ignore"):  # arithmetic modulo 2^64 is the method
        value = value + np.uint64(0x9E3779B97F4A7C15)
        value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return value ^ (value >> np.uint64(31))


def epoch_order(rows: int, *, seed: int, epoch: int) -> NDArray[np.int64]:
    """Return the sample order of one epoch: a permutation of range(rows), int64, decided by (seed, epoch)."""
    return _generator(seed, epoch).permutation(rows)


def epoch_rows(plan: Plan, rows: int, targets: NDArray[Any], *, epoch: int) -> NDArray[np.int64]:
    """Return the rows of one epoch in their order, int64 (rows,): each once, or as `plan.sampling` says.

    `targets` are those of the rows, if they are classes. A token stream has others.
    """
    if plan.sampling == "balanced":
        return _balanced(np.asarray(targets), seed=plan.seed, epoch=epoch, ignored=plan.ignore_index)
    return epoch_order(rows, seed=plan.seed, epoch=epoch)


def _balanced(labels: NDArray[np.int64], *, seed: int, epoch: int, ignored: int) -> NDArray[np.int64]:
    """Return as many rows as there are labels, equally many of each class but for one, decided by (seed, epoch).

    A class gives its rows without replacement, again from the first when all are drawn. Ignored rows are not drawn.
    """
    random = _generator(seed, epoch)
    sorted_rows = np.argsort(labels, kind="stable")
    sorted_rows = sorted_rows[labels[sorted_rows] != ignored]
    if not sorted_rows.size:  # training refuses them
        return random.permutation(len(labels))
    starts = np.unique(labels[sorted_rows], return_index=True)[1]
    classes = np.split(sorted_rows, starts[1:])
    counts = np.full(len(classes), len(labels) // len(classes))
    counts[random.permutation(len(classes))[: len(labels) % len(classes)]] += 1
    drawn = []
    for rows, count in zip(classes, counts, strict=True):
        passes = -(-int(count) // len(rows))
        drawn.append(np.concatenate([random.permutation(rows) for _ in range(passes)])[:count])
    return random.permutation(np.concatenate(drawn))


def _generator(seed: int, epoch: int) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(key=np.array([seed, epoch], np.uint64)))


@dataclass(frozen=True)
class Randomness:
    """Random numbers of samples, (n,), each from 64 bits per sample. Each augmentation has a stream of its own."""

    keys: Keys
    seed: int
    epoch: int
    stream: str = ""  # empty: that of the older settings, whose numbers are from different bits

    def bits(self, *, epoch: int | None = None) -> Keys:
        """Return 64 random bits per sample, uint64 (n,), of another `epoch` if it is given."""
        bits = sample_bits(self.keys, seed=self.seed, epoch=self.epoch if epoch is None else epoch)
        return _mix(bits ^ np.uint64(zlib.crc32(self.stream.encode()))) if self.stream else bits

    def below(self, place: int, span: int) -> NDArray[np.int64]:
        """Return whole numbers in range(span), from the 16 bits at `place`."""
        return ((self.bits() >> np.uint64(place) & np.uint64(0xFFFF)) % np.uint64(span)).astype(np.int64)

    def evenly(self, place: int, span: int) -> NDArray[np.int64]:
        """Return uniform whole numbers in range(span).

        They are made from the 12 bits at `place` where `span` is a power of two up to 4,096, which is exact. Otherwise
        from 32 other bits, which makes no number more than span / 2^32 too frequent.
        """
        bits = self.bits()
        if _TWELVE % span == 0:
            return ((bits >> np.uint64(place) & np.uint64(_TWELVE - 1)) % np.uint64(span)).astype(np.int64)
        others = _mix(bits ^ np.uint64(place)) >> np.uint64(32)
        return (others * np.uint64(span) >> np.uint64(32)).astype(np.int64)

    def uniform(self, place: int, low: float = 0.0, high: float = 1.0) -> NDArray[np.float64]:
        """Return numbers between `low` and `high`, float64; each `place` has other ones."""
        share = ((_mix(self.bits() ^ np.uint64(place)) >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
        return low + (high - low) * share

    def beta(self, place: int, alpha: float) -> NDArray[np.float64]:
        """Return numbers of the beta distribution with both parameters `alpha`, at most 1 (Joehnk 1964)."""
        shares = np.full(len(self.keys), np.nan)
        attempt = 0
        while (open_rows := np.flatnonzero(np.isnan(shares))).size:
            random = replace(self, keys=self.keys[open_rows], stream=f"{self.stream} {place} {attempt}")
            first, second = (random.uniform(number) ** (1 / alpha) for number in (1, 2))
            is_accepted = first + second <= 1.0
            shares[open_rows[is_accepted]] = (first / (first + second))[is_accepted]
            attempt += 1
        return shares


def resized(images: torch.Tensor, plan: Plan, *, epoch: int) -> torch.Tensor:
    """Return the images in the size of `plan.progressive_sizes` for `epoch`: (n, channels, height, width), any dtype.

    The time of an epoch is proportional to its pixels, and early in training small images are enough (Howard 2018).
    Images are scaled down with an antialiasing filter, as float32. Images that have the size are returned unchanged.
    """
    if isinstance(plan.progressive_sizes, str):
        return images
    side = plan.progressive_sizes[min(epoch, len(plan.progressive_sizes) - 1)]
    height, width = images.shape[2:]
    scale = side / min(height, width)
    if scale == 1.0:
        return images
    size = round(height * scale), round(width * scale)
    return torch.nn.functional.interpolate(images.float(), size, mode="bilinear", antialias=True)
