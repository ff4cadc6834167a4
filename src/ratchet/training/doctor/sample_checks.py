"""Check the data: labels, samples that are in two splits, repeated images, images that reveal the label."""

import hashlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ratchet.kinds import ImageInput, Input, ModelSpec, TableInput, TextInput, TokensInput
from ratchet.problems import Classes, Labels, NextToken, Numbers, Target
from ratchet.training.batches import Split
from ratchet.training.custom_dataset import DatasetSplit
from ratchet.training.doctor.dataset_checks import ReadSamples, check_dataset, read_samples
from ratchet.training.doctor.rules import Finding
from ratchet.training.doctor.split_checks import check_labels_of_neighbours, check_splits_agree, check_values
from ratchet.training.plan import Plan
from ratchet.training.streams import StreamSplit

__all__ = ["check_images", "check_samples"]

_COMPARED_BYTES = 256 << 20  # of pixels of each split, from all over it
_BLOCK_BYTES = 4 << 20  # read at a time
_COMMON, _COMMON_LINES = 0.02, 0.2  # shares of equal rows or texts, and of equal lines, that are usual
_LONG_LINE = 40  # bytes
_ROWS = 10_000  # of a table, whose columns are compared
_READ_TRAIN, _READ_HELD_OUT = 512, 256  # samples whose labels and values are tested
_FEWEST = 20  # samples, below which nothing is tested
_FEWEST_OF_CLASS = 5  # samples of a class, below which it is left out
_REPEATED, _PARTLY = 0.25, 0.75  # shares of different images: up to the first an error, up to the second a warning
_FEW_POSITIONS = 0.05  # share of all positions that the code could have written a mark to
_REVEALING, _ORDINARY = 0.9, 0.5  # shares of a position's variance that the label explains
_SHARED = 0.02  # share of other classes' samples that may have a class's value by chance
_CLASSES_TRIED = 20


def check_samples(train: Split, validation: Split, spec: ModelSpec, plan: Plan) -> Iterator[Finding]:
    """Yield the findings about the data. Those about pixels are for images, those that compare labels for classes."""
    for split in (train, validation):
        yield from _targets(split, spec.target, plan.ignore_index)
    if not isinstance(spec.input, TokensInput):  # a piece's id is its place in the split
        yield from _same_keys(train, validation)
    if isinstance(train, DatasetSplit):
        yield from check_dataset(train, validation, plan)
    elif not isinstance(validation, DatasetSplit):
        yield from _same_content(train, validation, spec.input)
    if isinstance(spec.input, TableInput):
        yield from _constant_columns(train, spec.input)
    if isinstance(spec.input, ImageInput):
        yield from _check_pixels(train, validation, plan, classes=isinstance(spec.target, Classes))


def _check_pixels(train: Split, validation: Split, plan: Plan, *, classes: bool) -> Iterator[Finding]:
    """Check images. Labels and orientation are compared only where no images are repeated."""
    samples, held_out = read_samples(train, _READ_TRAIN, plan), read_samples(validation, _READ_HELD_OUT, plan)
    in_train = list(check_images(samples, classes=classes))
    yield from in_train or check_images(held_out, classes=classes)
    misplaced: list[Finding] = []
    if classes and not in_train:
        misplaced = [*check_labels_of_neighbours(samples)] or [*check_labels_of_neighbours(held_out)]
    yield from misplaced
    yield from check_values(samples, held_out)
    if classes and not in_train and not misplaced:
        yield from check_splits_agree(samples, held_out)


def _targets(split: Split, target: Target, ignored: int) -> Iterator[Finding]:
    """Look for classes that do not exist, labels that are not 0 to 1, and numbers that are not finite."""
    rows = np.arange(len(split))
    if isinstance(target, NextToken):  # in range by the tokenizer, so a few are enough
        rows = rows[:: len(rows) // _ROWS + 1]
    values = split.host_targets(rows)
    if isinstance(target, Numbers):
        if count := int((~np.isfinite(values)).sum()):
            yield Finding.of("targets-not-finite", *target.names, count=count, split=split.name)
        return
    highest = 1 if isinstance(target, Labels) else target.outputs - 1
    wrong = ~((values >= 0) & (values <= highest)) & (values != ignored)
    if wrong.any():
        counts = {"count": int(wrong.sum()), "highest": highest, "meaning": target.described}
        yield Finding.of("labels-out-of-range", *map(str, np.unique(values[wrong])), split=split.name, **counts)


def _same_keys(train: Split, validation: Split) -> Iterator[Finding]:
    count = int(np.isin(validation.keys, train.keys).sum())
    if count:
        yield Finding.of("leak-by-id", count=count, of=len(validation))


def _same_content(train: Split, validation: Split, described: Input) -> Iterator[Finding]:
    """Look for samples of validation that are also in train.

    Rows of a table count with their target. A few equal rows, texts or lines are usual.
    """
    digests = list(_digests(validation, described))
    both = set(digests).intersection(_digests(train, described))
    count = sum(digest in both for digest in digests)
    if isinstance(described, ImageInput):
        if count:
            yield Finding.of("leak-by-pixels", count=count)
        return
    is_stream = isinstance(described, TokensInput)
    if count > (_COMMON_LINES if is_stream else _COMMON) * len(digests):
        parts = "lines" if is_stream else f"{described.sample}s"
        finding = Finding.of("leak-by-content", count=count, of=len(digests), parts=parts)
        yield finding.warning_if(2 * count < len(digests))


def _digests(split: Split, described: Input) -> Iterator[bytes]:
    """Yield a digest of each sample; of a large split, of the samples in blocks from all over it.

    Of a token stream, of each long line.
    """
    if isinstance(split, StreamSplit):
        lines = split.text[:_COMPARED_BYTES].tobytes().split(b"\n")
        yield from (hashlib.blake2b(line, digest_size=8).digest() for line in lines if len(line) >= _LONG_LINE)
        return
    size = sum(array.nbytes for array in split.gather(np.arange(min(1, len(split))))) or 1
    block = max(1, _BLOCK_BYTES // size)
    starts = np.arange(0, len(split), block)
    most = max(1, _COMPARED_BYTES // (block * size))
    for start in starts if len(starts) <= most else starts[:: -(-len(starts) // most)]:
        rows = np.arange(start, min(start + block, len(split)))
        arrays = list(split.gather(rows))
        if isinstance(described, TableInput):
            arrays.append(split.host_targets(rows))
        for parts in zip(*arrays, strict=True):
            contents = (part.rstrip(b"\0") if isinstance(described, TextInput) else part for part in map(_bytes, parts))
            yield hashlib.blake2b(b"".join(contents), digest_size=8).digest()


def _bytes(values: NDArray[Any]) -> bytes:
    return bytes(values.tobytes())


def _constant_columns(train: Split, table: TableInput) -> Iterator[Finding]:
    """Look for columns with one value in all training rows; of a large split, in rows from all over it."""
    rows = np.unique(np.linspace(0, len(train) - 1, _ROWS).astype(np.int64))
    if len(rows) < _FEWEST:
        return
    constant = []
    for values, columns in zip(train.gather(rows), (table.numeric, table.categorical), strict=True):
        same = (values == values[:1]) | ((values != values) & (values[:1] != values[:1]))  # NaN is a missing value
        constant += [column.name for column, is_same in zip(columns, same.all(0), strict=True) if is_same]
    if constant:
        yield Finding.of("constant-columns", *constant)


def check_images(samples: ReadSamples, *, classes: bool = True) -> Iterator[Finding]:
    """Look for repeated images; where there are none and samples have classes, for positions that reveal the label."""
    count = len(samples)
    if count < _FEWEST:
        return
    different = len({image.numpy().tobytes() for image in samples.images})
    if different <= _PARTLY * count:
        finding = Finding.of("repeated-images", count=count, split=samples.split, different=different)
        yield finding.warning_if(different > _REPEATED * count)
        return
    if not classes:
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
