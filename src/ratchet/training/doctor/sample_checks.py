"""Check the data: labels, samples that are in two splits, custom Datasets, images, and differences between splits."""

import hashlib
from collections.abc import Iterator

import numpy as np

from ratchet.training.batches import Split
from ratchet.training.custom_dataset import DatasetSplit
from ratchet.training.doctor.dataset_checks import check_dataset
from ratchet.training.doctor.findings import Finding
from ratchet.training.doctor.image_checks import check_images
from ratchet.training.doctor.read_samples import read_samples
from ratchet.training.doctor.split_checks import check_labels_of_neighbours, check_splits_agree, check_values
from ratchet.training.plan import Plan

__all__ = ["check_samples"]

_COMPARED_BYTES = 256 << 20  # of pixels of each split, from all over it
_BLOCK_BYTES = 4 << 20  # read at a time
_READ_TRAIN, _READ_HELD_OUT = 512, 256  # samples whose labels and values are tested


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
    labels = np.asarray(split.labels)
    wrong = np.unique(labels[((labels < 0) | (labels >= classes)) & (labels != ignored)])
    if len(wrong):
        count = int(np.isin(labels, wrong).sum())
        values = {"count": count, "split": split.name, "highest": classes - 1, "classes": classes}
        yield Finding("labels-out-of-range", tuple(map(str, wrong)), values)


def _same_keys(train: Split, validation: Split) -> Iterator[Finding]:
    count = int(np.isin(validation.keys, train.keys).sum())
    if count:
        yield Finding("leak-by-id", values={"count": count, "of": len(validation)})


def _same_pixels(train: Split, validation: Split) -> Iterator[Finding]:
    digests = list(_digests(validation))
    both = set(digests).intersection(_digests(train))
    if both:
        yield Finding("leak-by-pixels", values={"count": sum(digest in both for digest in digests)})


def _digests(split: Split) -> Iterator[bytes]:
    """Yield a digest of each image; of a large split, of the images in blocks from all over it."""
    size = int(np.prod(split.shards[0].shape[1:])) if split.shards else 1
    block = max(1, _BLOCK_BYTES // size)
    starts = np.arange(0, len(split), block)
    most = max(1, _COMPARED_BYTES // (block * size))
    for start in starts if len(starts) <= most else starts[:: -(-len(starts) // most)]:
        for image in split.gather(np.arange(start, min(start + block, len(split)))):
            yield hashlib.blake2b(image.tobytes(), digest_size=8).digest()
