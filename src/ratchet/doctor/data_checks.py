"""Check the data: targets, samples in two splits, and values of images."""

import hashlib
import math
import time
from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray

from ratchet.doctor.findings import RULES, Finding
from ratchet.kinds import ModelSpec
from ratchet.kinds.registry import kind_of
from ratchet.training.batches import Split
from ratchet.training.custom_split import UnpackedSplit
from ratchet.training.plan import Plan
from ratchet.training.streams import StreamSplit

__all__ = ["balanced_rows", "check_samples"]

_COMPARED_BYTES = 256 << 20  # of each split, from all over it
_BLOCK_BYTES = 4 << 20  # read at a time
_LONG_LINE = 40  # bytes
_FEW = 10_000  # targets of a token stream, which are in range by the tokenizer
_READ_TRAIN, _READ_HELD_OUT = 512, 256  # images whose values are tested
_LARGEST_BYTES, _LONGEST_SECONDS = 96 << 20, 4.0
_FEWEST = 20  # images, below which nothing is tested
_PARTLY = 0.75  # share of different images up to which there is a warning
_SHIFT, _SURE = 0.75, 6.0  # of means, in standard deviations and in their errors
_CPU = torch.device("cpu")


def check_samples(train: Split, validation: Split, spec: ModelSpec, plan: Plan) -> Iterator[Finding]:
    """Yield the findings about the data. Those about pixels are for images."""
    for split in (train, validation):
        yield from _targets(split, spec, plan.ignore_index)
    if spec.target.classes and len(labels := np.unique(train.targets[train.targets != plan.ignore_index])) == 1:
        name = spec.target.names[labels[0]] if 0 <= labels[0] <= spec.target.highest else str(labels[0])
        yield Finding.of("one-class", name, count=len(train))
    if not isinstance(train, StreamSplit):  # a piece's id is its place in the split
        count = int(np.isin(validation.keys, train.keys).sum())
        if count:
            yield Finding.of("leak-by-id", count=count, of=len(validation))
    if not isinstance(train, UnpackedSplit):  # ingest has compared the samples
        yield from _same_content(train, validation, spec)
    if kind_of(spec.input).has_pixels:
        images, held_out = _read_images(train, _READ_TRAIN), _read_images(validation, _READ_HELD_OUT)
        yield from list(_repeated(images, train.name)) or _repeated(held_out, validation.name)
        yield from _rescaled(images, held_out)


def balanced_rows(split: Split, count: int, plan: Plan) -> NDArray[np.int64]:
    """Draw up to `count` rows, about equally many of each class: int64, sorted, dependent on the plan's seed.

    Of other problems, rows are drawn at random.
    """
    generator = np.random.Generator(np.random.Philox(plan.seed))
    drawn = generator.choice(len(split), min(len(split), 1000 * count), replace=False)
    targets = split.targets
    if targets.ndim != 1 or len(targets) != len(split) or not np.issubdtype(targets.dtype, np.integer):
        return np.sort(drawn[:count])
    drawn = drawn[targets[drawn] != plan.ignore_index]
    labels = np.asarray(targets[drawn])
    turn = np.zeros(len(labels), np.int64)  # number of rows of the same class that were drawn before
    for label in np.unique(labels):
        of_class = labels == label
        turn[of_class] = np.arange(of_class.sum())
    return np.sort(drawn[np.argsort(turn, kind="stable")[:count]])


def _targets(split: Split, spec: ModelSpec, ignored: int) -> Iterator[Finding]:
    """Look for classes that do not exist, labels that are not 0 to 1, and numbers that are not finite."""
    rows, target = np.arange(len(split)), spec.target
    values = split.host_targets(rows[:: len(rows) // _FEW + 1] if isinstance(split, StreamSplit) else rows)
    if not target.has_accuracy:
        if count := int((~np.isfinite(values)).sum()):
            yield Finding.of("targets-not-finite", *target.names, count=count, split=split.name)
        return
    wrong = ~((values >= 0) & (values <= target.highest)) & (values != ignored)
    if wrong.any():
        counts = {"count": int(wrong.sum()), "highest": target.highest, "meaning": target.description}
        yield Finding.of("labels-out-of-range", *map(str, np.unique(values[wrong])), split=split.name, **counts)


def _same_content(train: Split, validation: Split, spec: ModelSpec) -> Iterator[Finding]:
    """Look for samples of validation that are also in train. A few equal rows, texts or lines are usual."""
    digests = list(_digests(validation, spec))
    both = set(digests).intersection(_digests(train, spec))
    count = sum(digest in both for digest in digests)
    usual = kind_of(spec.input).usual_copies
    usual = RULES["leak-by-content"].limit if usual is None else usual
    if count > usual * len(digests):
        parts = "lines" if isinstance(train, StreamSplit) else f"{spec.input.sample}s"
        finding = Finding.of("leak-by-content", count=count, of=len(digests), parts=parts)
        yield finding.warning_if(usual > 0 and 2 * count < len(digests))


def _digests(split: Split, spec: ModelSpec) -> Iterator[bytes]:
    """Yield a digest of each sample; of a large split, of the samples in blocks from all over it.

    Of a token stream, of each long line. Rows of a table count with their target.
    """
    if isinstance(split, StreamSplit):
        lines = split.text[:_COMPARED_BYTES].tobytes().split(b"\n")
        yield from (hashlib.blake2b(line, digest_size=8).digest() for line in lines if len(line) >= _LONG_LINE)
        return
    size = sum(array.nbytes for array in split.gather(np.arange(min(1, len(split))))) or 1
    block = max(1, _BLOCK_BYTES // size)
    starts = np.arange(0, len(split), block)
    for start in starts[:: -(-len(starts) // max(1, _COMPARED_BYTES // (block * size)))]:
        rows = np.arange(start, min(start + block, len(split)))
        arrays = [*split.gather(rows), *([split.host_targets(rows)] if kind_of(spec.input).copies_have_target else [])]
        for parts in zip(*arrays, strict=True):  # texts are padded with 0 to the longest of their block
            content = b"".join(part.tobytes().rstrip(b"\0") for part in parts)
            yield hashlib.blake2b(content, digest_size=8).digest()


def _read_images(split: Split, count: int) -> torch.Tensor:
    """Read up to `count` images from all over a split, without those of another shape or with NaN.

    Fewer where time or memory run out.
    """
    begun, images = time.monotonic(), list[torch.Tensor]()
    for row in np.unique(np.linspace(0, len(split) - 1, min(count, len(split))).astype(np.int64)):
        image = split.batch(np.array([row]), _CPU)[0][0][0]
        size = image.numel() * image.element_size()
        if time.monotonic() - begun > _LONGEST_SECONDS or len(images) * size > _LARGEST_BYTES:
            break
        if bool(image.isfinite().all()) and (not images or image.shape == images[0].shape):
            images.append(image)
    return torch.stack(images) if images else torch.zeros(0, 1, 1, 1)


def _repeated(images: torch.Tensor, split: str) -> Iterator[Finding]:
    count, different = len(images), len({image.numpy().tobytes() for image in images})
    if count >= _FEWEST and different <= _PARTLY * count:
        finding = Finding.of("repeated-images", count=count, split=split, different=different)
        yield finding.warning_if(different > RULES["repeated-images"].limit * count)


def _rescaled(train: torch.Tensor, held_out: torch.Tensor) -> Iterator[Finding]:
    """Compare mean and standard deviation of each channel in train and validation."""
    if min(len(train), len(held_out)) < _FEWEST or train.shape[1] != held_out.shape[1]:
        return
    for channel in range(train.shape[1]):
        both = [images[:, channel].flatten(1).double() for images in (train, held_out)]
        (std, other_std), (mean, other_mean) = [float(x.std()) for x in both], [float(x.mean()) for x in both]
        error = math.sqrt(sum(float(values.mean(1).var()) / len(values) for values in both))
        ratio, shift = max(std, other_std) / max(min(std, other_std), 1e-12), abs(mean - other_mean)
        if ratio >= RULES["rescaled-split"].limit or shift > max(_SHIFT * max(std, other_std), _SURE * error):
            values = {"train_mean": mean, "train_std": std, "validation_mean": other_mean, "validation_std": other_std}
            yield Finding.of("rescaled-split", channel=channel, **values)
            return
