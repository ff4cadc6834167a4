"""Augmentation of a whole batch, decided by counters.

What happens to a sample depends on (seed, epoch, sample key) and on nothing else: not on the batch it is in, its place
there, the micro-batch size or the number of workers. So a resumed run sees the pixels an undisturbed one would have.
"""

import numpy as np
import torch
from numpy.typing import NDArray

__all__ = ["augment", "epoch_order", "sample_bits"]

Keys = NDArray[np.uint64]


def sample_bits(keys: Keys, *, seed: int, epoch: int) -> Keys:
    """64 random bits per sample key, uint64 (n,), by the SplitMix64 finaliser (Steele, Lea and Flood 2014)."""
    stream = _mix(_mix(np.array([seed], np.uint64)) ^ np.array([epoch], np.uint64))
    return _mix(keys ^ stream)


def _mix(value: Keys) -> Keys:
    with np.errstate(over="ignore"):  # arithmetic modulo 2^64 is the method
        value = value + np.uint64(0x9E3779B97F4A7C15)
        value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return value ^ (value >> np.uint64(31))


def epoch_order(rows: int, *, seed: int, epoch: int) -> NDArray[np.int64]:
    """The order of the samples in one epoch: a permutation of range(rows), int64, that (seed, epoch) decide."""
    return np.random.Generator(np.random.Philox(key=np.array([seed, epoch], np.uint64))).permutation(rows)


def augment(images: torch.Tensor, keys: Keys, *, seed: int, epoch: int, flip: bool, padding: int) -> torch.Tensor:
    """Mirror half the images and shift each by up to `padding` pixels, filling with zeros.

    Args:
        images: uint8 (n, height, width, channels), on any device.
        keys: uint64 (n,), one per image.

    Returns:
        uint8 of the same shape, on the same device.
    """
    if not flip and not padding:
        return images
    count, height, width, _ = images.shape
    bits = sample_bits(keys, seed=seed, epoch=epoch)
    span = np.uint64(2 * padding + 1)
    down = ((bits >> np.uint64(8)) & np.uint64(0xFFFF)) % span
    across = ((bits >> np.uint64(24)) & np.uint64(0xFFFF)) % span
    rows = np.arange(height) + down.astype(np.int64)[:, None]
    columns = np.broadcast_to(np.arange(width), (count, width))
    if flip:
        mirrored = (bits & np.uint64(1)).astype(bool)
        columns = np.where(mirrored[:, None], columns[:, ::-1], columns)
    columns = columns + across.astype(np.int64)[:, None]
    padded = torch.nn.functional.pad(images, (0, 0, padding, padding, padding, padding))
    which = torch.arange(count, device=images.device)[:, None, None]
    down_index = torch.from_numpy(rows).to(images.device)[:, :, None]
    across_index = torch.from_numpy(np.ascontiguousarray(columns)).to(images.device)[:, None, :]
    return padded[which, down_index, across_index]
