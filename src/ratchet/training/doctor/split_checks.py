"""Compare the labels and the images of train and validation with a small classifier.

A poor classifier gives no finding. Only another reading of the data does, such as labels of the next sample or inverted
images, that makes it significantly better.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from ratchet.training.doctor.dataset_checks import ReadSamples
from ratchet.training.doctor.rules import Finding

__all__ = [
    "Features",
    "chance",
    "check_labels_of_neighbours",
    "check_splits_agree",
    "check_values",
    "cross_validated",
    "fit",
    "learns",
]

_FEWEST, _FEWEST_HELD_OUT = 60, 30  # samples of train and validation, below which nothing is tested
_DROPS = 4.0  # standard errors by which another reading must be better
_LOST, _RESTORED = 0.5, 0.6  # shares of the accuracy above chance: at most kept as it is, at least with the reading
_RATIO, _SHIFT, _SURE = 2.0, 0.75, 6.0  # of standard deviations; of means, in standard deviations and in their errors
_PIXELS, _SPECTRUM = 8, 16  # sides of the coarse images
_CHANNELS = 4  # the first channels; the others are not used
_RIDGE = 0.03
_FOLDS = 4
_LEARNS, _ABOVE = 6.0, 0.1  # standard errors, and share of samples, by which accuracy must exceed chance


def check_splits_agree(train: ReadSamples, held_out: ReadSamples) -> Iterator[Finding]:
    """Check that what a classifier learns from train holds for validation; else search the reading that restores it."""
    if len(train) < _FEWEST or len(held_out) < _FEWEST_HELD_OUT or train.images.shape[1:] != held_out.images.shape[1:]:
        return
    features_of = Features.scaled_to(train.images)
    features = features_of(train.images)
    own, by_chance, count = cross_validated(features, train.labels), chance(train.labels), len(held_out)
    if not learns(own, by_chance, len(train)):
        return
    classify = fit(features, train.labels)
    answers = classify(features_of(held_out.images))
    accuracy = float((answers == held_out.labels).mean())
    error = math.sqrt(max(own * (1 - own), 0.01) * (1 / count + 1 / len(train)))
    if accuracy > by_chance + _LOST * (own - by_chance) or own - accuracy < _DROPS * error:
        return
    better = accuracy + _DROPS * math.sqrt(max(accuracy * (1 - accuracy), 0.01) / count)
    enough = max(by_chance + _RESTORED * (own - by_chance), better)
    restored, changes = _renumbered(answers, held_out.labels)
    if restored >= enough:
        yield Finding.of("labels-renumbered", *changes, train=own, validation=accuracy, restored=restored)
        return
    for how, images in _readings(held_out.images, train.images):
        restored = float((classify(features_of(images)) == held_out.labels).mean())
        if restored >= enough:
            yield Finding.of("transformed-split", train=own, validation=accuracy, how=how, restored=restored)
            return


def check_labels_of_neighbours(samples: ReadSamples) -> Iterator[Finding]:
    """Check whether the label of the sample before or after fits a sample better than its own."""
    if len(samples) < _FEWEST:
        return
    features = Features.scaled_to(samples.images)(samples.images)
    for offset, which in ((1, "next"), (-1, "previous")):
        rows = np.flatnonzero(np.diff(samples.places) == 1) + (offset < 0)  # samples whose neighbour was read too
        if len(rows) < _FEWEST:
            return
        others, labels = samples.labels[rows + offset], samples.labels[rows]
        selected, by_chance = features[torch.from_numpy(rows)], chance(others)
        own, shifted = cross_validated(selected, labels), cross_validated(selected, others)
        if not learns(shifted, by_chance, len(rows)) or own > by_chance + (1 - _RESTORED) * (shifted - by_chance):
            continue
        if (shifted - own) < _DROPS * math.sqrt(max(own * (1 - own), 0.01) / len(rows)):
            continue
        yield Finding.of("labels-of-neighbours", split=samples.split, own=own, neighbour=shifted, which=which)
        return


def check_values(train: ReadSamples, held_out: ReadSamples) -> Iterator[Finding]:
    """Compare mean and standard deviation of each channel in train and validation."""
    if len(train) < _FEWEST // 2 or len(held_out) < _FEWEST_HELD_OUT // 2:
        return
    if train.images.shape[1] != held_out.images.shape[1]:
        return
    for channel in range(train.images.shape[1]):
        first, second = (samples.images[:, channel].flatten(1).double() for samples in (train, held_out))
        stds, means = (float(first.std()), float(second.std())), (float(first.mean()), float(second.mean()))
        if min(stds) <= 0:
            continue
        ratio, shift = max(stds) / min(stds), abs(means[0] - means[1])
        error = math.sqrt(sum(float(each.mean(1).var()) / len(each) for each in (first, second)))
        if ratio < _RATIO and not (shift > _SHIFT * max(stds) and shift > _SURE * error):
            continue
        values: dict[str, float] = {}
        for split, pixels, mean, std in zip(("train", "validation"), (first, second), means, stds, strict=True):
            ends = {f"{split}_min": float(pixels.min()), f"{split}_max": float(pixels.max())}
            values |= {f"{split}_mean": mean, f"{split}_std": std, **ends}
        yield Finding.of("rescaled-split", channel=channel, **values)
        return


def _readings(images: torch.Tensor, train: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield other readings of the validation images, by name."""
    flat = train.transpose(0, 1).flatten(1).float()
    ends = (flat.amin(1) + flat.amax(1)).view(1, -1, 1, 1)
    yield "inverted", ends - images.float()
    if images.shape[1] > 1:
        yield "with channels in reverse order", images.flip(1)
    yield "upside down", images.flip(2)
    yield "mirrored", images.flip(3)
    yield "turned by 180 degrees", images.flip(2, 3)
    if images.shape[2] == images.shape[3]:
        yield "transposed", images.transpose(2, 3)
        yield "turned by 90 degrees", images.rot90(1, (2, 3))
        yield "turned by 270 degrees", images.rot90(-1, (2, 3))


def _renumbered(answers: NDArray[np.int64], labels: NDArray[np.int64]) -> tuple[float, tuple[str, ...]]:
    """Return the accuracy with answers replaced by the label they mostly have, and the replacements.

    The replacements of each half of the samples are learned on the other half.
    """
    half = np.arange(len(labels)) % 2
    correct = 0
    for number in (0, 1):
        table = _most_common(answers[half != number], labels[half != number])
        pairs = zip(answers[half == number].tolist(), labels[half == number], strict=True)
        correct += sum(table.get(answer) == label for answer, label in pairs)
    table = _most_common(answers, labels)
    changes = (f"{old} in train is {new} in validation" for old, new in sorted(table.items()) if old != new)
    return correct / len(labels), tuple(changes)


def _most_common(answers: NDArray[np.int64], labels: NDArray[np.int64]) -> dict[int, int]:
    """Return for each answer the label that most of its samples have, without answers that share a label."""
    table = {}
    for answer in np.unique(answers):
        present, counts = np.unique(labels[answers == answer], return_counts=True)
        table[int(answer)] = int(present[counts.argmax()])
    taken = list(table.values())
    return {answer: label for answer, label in table.items() if taken.count(label) == 1}


@dataclass(frozen=True)
class Features:
    """Features of images, scaled by mean and standard deviation of each channel of a reference."""

    mean: torch.Tensor
    std: torch.Tensor

    @classmethod
    def scaled_to(cls, images: torch.Tensor) -> "Features":
        """Take the scale from images (n, channels, height, width)."""
        flat = images.transpose(0, 1).flatten(1).float()
        return cls(flat.mean(1).view(1, -1, 1, 1), flat.std(1).clamp_min(1e-12).view(1, -1, 1, 1))

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        """Return float32 (n, features); each kind of feature has about the same weight."""
        scaled = ((images.float() - self.mean) / self.std)[:, :_CHANNELS]
        coarse = functional.adaptive_avg_pool2d(scaled, _PIXELS).flatten(1)
        spectrum = torch.fft.rfft2(functional.adaptive_avg_pool2d(scaled.mean(1), _SPECTRUM)).abs().log1p().flatten(1)
        flat = scaled.flatten(2)
        colours = torch.cat([flat.mean(2), flat.std(2), flat.amin(2), flat.amax(2)], 1)
        return torch.cat([kind / math.sqrt(kind.shape[1]) for kind in (coarse, spectrum, colours)], 1)


def fit(features: torch.Tensor, labels: NDArray[np.int64]) -> Callable[[torch.Tensor], NDArray[np.int64]]:
    """Fit the classifier and return its function from features to labels."""
    classes, numbers = np.unique(labels, return_inverse=True)
    centre, spread = features.mean(0), features.std(0).clamp_min(1e-3)
    known = ((features - centre) / spread).double()
    distances = torch.cdist(known, known).square()
    width = distances[distances > 0].median() if bool((distances > 0).any()) else torch.ones(())
    targets = functional.one_hot(torch.from_numpy(numbers), len(classes)).double()
    offset = targets.mean(0)
    kernel = (-distances / width).exp() + _RIDGE * torch.eye(len(known), dtype=torch.float64)
    weights = torch.linalg.solve(kernel, targets - offset)

    def classify(others: torch.Tensor) -> NDArray[np.int64]:
        scaled = ((others - centre) / spread).double()
        scores = (-torch.cdist(scaled, known).square() / width).exp() @ weights + offset
        return np.asarray(classes[scores.argmax(1).numpy()], np.int64)

    return classify


def cross_validated(features: torch.Tensor, labels: NDArray[np.int64]) -> float:
    """Return the accuracy on samples that the classifier was not fitted to."""
    fold = np.random.Generator(np.random.Philox(0)).permutation(len(labels)) % _FOLDS
    correct = 0
    for number in range(_FOLDS):
        held_out = torch.from_numpy(fold == number)
        answers = fit(features[~held_out], labels[fold != number])(features[held_out])
        correct += int((answers == labels[fold == number]).sum())
    return correct / len(labels)


def chance(labels: NDArray[np.int64]) -> float:
    """Return the accuracy of always answering the most frequent label."""
    return float(np.unique(labels, return_counts=True)[1].max()) / len(labels)


def learns(accuracy: float, chance: float, count: int) -> bool:
    """Return whether an accuracy on `count` samples is clearly and significantly above chance."""
    error = math.sqrt(max(chance * (1 - chance), 0.01) / count)
    return accuracy - chance > max(_ABOVE, _LEARNS * error)
