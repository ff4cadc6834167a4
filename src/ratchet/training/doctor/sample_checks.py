"""Check the data: labels, samples that are in two splits, repeated images, images that reveal the label."""

import hashlib
from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray

from ratchet.training.batches import Split
from ratchet.training.custom_dataset import DatasetSplit
from ratchet.training.doctor.dataset_checks import ReadSamples, check_dataset, read_samples
from ratchet.training.doctor.rules import Finding
from ratchet.training.doctor.split_checks import check_labels_of_neighbours, check_splits_agree, check_values
from ratchet.training.plan import Plan

__all__ = ["check_images", "check_samples"]

_COMPARED_BYTES = 256 << 20  # of pixels of each split, from all over it
_BLOCK_BYTES = 4 << 20  # read at a time
_READ_TRAIN, _READ_HELD_OUT = 512, 256  # samples whose labels and values are tested
_FEWEST = 20  # samples, below which nothing is tested
_FEWEST_OF_CLASS = 5  # samples of a class, below which it is left out
_REPEATED, _PARTLY = 0.25, 0.75  # shares of different images: up to the first an error, up to the second a warning
_FEW_POSITIONS = 0.05  # share of all positions that the code could have written a mark to
_REVEALING, _ORDINARY = 0.9, 0.5  # shares of a position's variance that the label explains
_SHARED = 0.02  # share of other classes' samples that may have a class's value by chance
_CLASSES_TRIED = 20


def check_samples(train: Split, validation: Split, classes: tuple[str, ...], plan: Plan) -> Iterator[Finding]:
    """Yield the findings about the data. Labels and orientation are compared only where no images are repeated."""
    for split in (train, validation):
        yield from _labels(split, len(classes), plan.ignore_index)
    yield from _same_keys(train, validation)
    if isinstance(train, DatasetSplit):
        yield from check_dataset(train, validation, plan)
    elif not isinstance(validation, DatasetSplit):
        yield from _same_pixels(train, validation)
    samples, held_out = read_samples(train, _READ_TRAIN, plan), read_samples(validation, _READ_HELD_OUT, plan)
    in_train = list(check_images(samples))
    yield from in_train or check_images(held_out)
    misplaced: list[Finding] = []
    if not in_train:
        misplaced = [*check_labels_of_neighbours(samples)] or [*check_labels_of_neighbours(held_out)]
    yield from misplaced
    yield from check_values(samples, held_out)
    if not in_train and not misplaced:
        yield from check_splits_agree(samples, held_out)


def _labels(split: Split, classes: int, ignored: int) -> Iterator[Finding]:
    labels = np.asarray(split.targets)
    wrong = np.unique(labels[((labels < 0) | (labels >= classes)) & (labels != ignored)])
    if len(wrong):
        count = int(np.isin(labels, wrong).sum())
        numbers = {"count": count, "highest": classes - 1, "classes": classes}
        yield Finding.of("labels-out-of-range", *map(str, wrong), split=split.name, **numbers)


def _same_keys(train: Split, validation: Split) -> Iterator[Finding]:
    count = int(np.isin(validation.keys, train.keys).sum())
    if count:
        yield Finding.of("leak-by-id", count=count, of=len(validation))


def _same_pixels(train: Split, validation: Split) -> Iterator[Finding]:
    digests = list(_digests(validation))
    both = set(digests).intersection(_digests(train))
    if both:
        yield Finding.of("leak-by-pixels", count=sum(digest in both for digest in digests))


def _digests(split: Split) -> Iterator[bytes]:
    """Yield a digest of each image; of a large split, of the images in blocks from all over it."""
    (images,) = split.arrays
    size = images.nbytes // max(1, len(images)) or 1
    block = max(1, _BLOCK_BYTES // size)
    starts = np.arange(0, len(split), block)
    most = max(1, _COMPARED_BYTES // (block * size))
    for start in starts if len(starts) <= most else starts[:: -(-len(starts) // most)]:
        for image in images.gather(np.arange(start, min(start + block, len(split)))):
            yield hashlib.blake2b(image.tobytes(), digest_size=8).digest()


def check_images(samples: ReadSamples) -> Iterator[Finding]:
    """Look for repeated images; where there are none, for positions that reveal the label."""
    count = len(samples)
    if count < _FEWEST:
        return
    different = len({image.numpy().tobytes() for image in samples.images})
    if different <= _PARTLY * count:
        finding = Finding.of("repeated-images", count=count, split=samples.split, different=different)
        yield finding.warning_if(different > _REPEATED * count)
        return
    flat = samples.images.reshape(count, -1)
    positions = _constant_positions(flat, samples.labels)
    if positions is None:
        positions = _explained_positions(flat, samples.labels)
    if positions is not None:
        channel, row, column = map(int, np.unravel_index(positions[0], samples.images.shape[1:]))
        where = {"split": samples.split, "channel": channel, "row": row, "column": column}
        yield Finding.of("label-in-image", count=len(positions), of=flat.shape[1], **where)


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
