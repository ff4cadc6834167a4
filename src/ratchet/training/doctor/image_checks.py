"""Check for images that are repeated, and for positions in images that reveal the label."""

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray

from ratchet.training.doctor.findings import Finding
from ratchet.training.doctor.read_samples import ReadSamples

__all__ = ["check_images"]

_FEWEST = 20  # samples, below which nothing is tested
_FEWEST_OF_CLASS = 5  # samples of a class, below which it is left out
_REPEATED, _PARTLY = 0.25, 0.75  # shares of different images: up to the first an error, up to the second a warning
_FEW_POSITIONS = 0.05  # share of all positions that the code could have written a mark to
_REVEALING, _ORDINARY = 0.9, 0.5  # shares of a position's variance that the label explains
_SHARED = 0.02  # share of other classes' samples that may have a class's value by chance
_CLASSES_TRIED = 20


def check_images(samples: ReadSamples) -> Iterator[Finding]:
    """Look for repeated images; where there are none, for positions that reveal the label."""
    count = len(samples)
    if count < _FEWEST:
        return
    different = len({image.numpy().tobytes() for image in samples.images})
    if different <= _PARTLY * count:
        values = {"count": count, "split": samples.split, "different": different}
        yield Finding("repeated-images", (), values, "error" if different <= _REPEATED * count else "warning")
        return
    flat = samples.images.reshape(count, -1)
    positions = _constant_positions(flat, samples.labels)
    if positions is None:
        positions = _explained_positions(flat, samples.labels)
    if positions is not None:
        channel, row, column = map(int, np.unravel_index(positions[0], samples.images.shape[1:]))
        first = {"channel": channel, "row": row, "column": column}
        values = {"split": samples.split, "count": len(positions), "of": flat.shape[1], **first}
        yield Finding("label-in-image", values=values)


def _constant_positions(flat: torch.Tensor, labels: NDArray[np.int64]) -> NDArray[np.int64] | None:
    """Return the positions that have one value in all samples of a class and in (almost) none of another."""
    classes, counts = np.unique(labels, return_counts=True)
    tried = classes[np.argsort(-counts, kind="stable")][:_CLASSES_TRIED]
    frequent = [label for label in tried if (labels == label).sum() >= _FEWEST_OF_CLASS]
    if len(frequent) < 2:
        return None
    marked, positions = 0, set[int]()
    for label in frequent:
        of_class = torch.from_numpy(labels == label)
        inside = flat[of_class]
        constant = torch.nonzero((inside == inside[0]).all(0)).flatten()
        others = flat[~of_class][:, constant]
        revealing = constant[(others == inside[0, constant]).float().mean(0) <= _SHARED]
        marked += len(revealing) > 0
        positions.update(revealing.tolist())
    if 2 * marked < len(frequent) or marked < 2 or len(positions) > max(1, _FEW_POSITIONS * flat.shape[1]):
        return None
    return np.array(sorted(positions), np.int64)


def _explained_positions(flat: torch.Tensor, labels: NDArray[np.int64]) -> NDArray[np.int64] | None:
    """Return the positions whose value the label explains, where it explains little of the others.

    Rare classes are left out: the label of a single sample explains every value that only this sample has.
    """
    present, counted = np.unique(labels, return_counts=True)
    frequent = np.isin(labels, present[counted >= _FEWEST_OF_CLASS])
    flat, labels = flat[torch.from_numpy(frequent)], labels[frequent]
    if not len(labels):
        return None
    _, numbers = np.unique(labels, return_inverse=True)
    classes = int(numbers.max()) + 1
    if classes < 2 or len(labels) < _FEWEST_OF_CLASS * classes:
        return None
    values = flat.float()
    total = values.var(0, correction=0)
    index = torch.from_numpy(numbers)
    counts = torch.bincount(index, minlength=classes).float()
    means = torch.zeros(classes, values.shape[1]).index_add_(0, index, values) / counts[:, None]
    between = (counts[:, None] * (means - values.mean(0)).square()).sum(0) / len(values)
    share = torch.where(total > 0, between / total.clamp_min(1e-12), torch.zeros(()))
    if float((share > _ORDINARY).float().mean()) > _FEW_POSITIONS:
        return None
    positions = torch.nonzero(share > _REVEALING).flatten()
    return positions.numpy() if len(positions) else None
