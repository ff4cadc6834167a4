"""Do the labels and the images of train and validation agree? Found by a small classifier that takes milliseconds.

The classifier is a kernel ridge regression on coarse pixels, spectra and colour statistics. Nothing is reported because
it is poor: only where another reading of the data, such as labels of the next sample or inverted images, makes it
significantly better than the data as they are.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from ratchet.training.doctor.findings import Finding

__all__ = ["Looked", "examine_agreement", "examine_labels_of_neighbours", "examine_shortcuts", "examine_values"]

_FEWEST, _FEWEST_HELD_OUT = 60, 30  # samples of train and validation, below which nothing is tested
_PIXELS, _SPECTRUM = 8, 16  # sides of the coarse images
_CHANNELS = 4  # that are looked at, of more
_RIDGE = 0.03
_FOLDS = 4
_LEARNS, _ABOVE = 6.0, 0.1  # standard errors, and share of samples, by which accuracy must exceed chance
_DROPS = 4.0  # standard errors by which another reading must be better
_LOST, _RESTORED = 0.5, 0.6  # shares of what the classifier knows: most lost as it is, most restored by the reading
_TIMES_STD, _SHIFTED, _SURE = 2.0, 0.75, 6.0  # of values in validation and train: ratio, standard deviations, errors
_FEW_PLACES = 0.05  # share of positions that may be called a mark
_GIVEN_AWAY, _ORDINARY = 0.9, 0.5  # shares of a position's variance that the label explains
_ALSO = 0.02  # share of other classes' samples that may have a class's mark by chance
_CLASSES_TRIED = 20
_REPEATED, _PARTLY = 0.25, 0.75  # shares of different images


@dataclass(frozen=True)
class Looked:
    """Samples of one split that were read for the tests."""

    split: str
    images: torch.Tensor  # (n, channels, height, width), as they were read
    labels: NDArray[np.int64]  # (n,)
    places: NDArray[np.int64]  # (n,), position in the Dataset; neighbours have consecutive ones

    def __len__(self) -> int:
        return len(self.labels)


def examine_agreement(train: Looked, held_out: Looked) -> Iterator[Finding]:
    """Check that what a classifier learns from train holds for validation, or find out what would make it hold."""
    if len(train) < _FEWEST or len(held_out) < _FEWEST_HELD_OUT or train.images.shape[1:] != held_out.images.shape[1:]:
        return
    scaling = _Scaling.of(train.images)
    features = _features(train.images, scaling)
    own = _cross_validated(features, train.labels)
    chance = _chance(train.labels)
    if not _learns(own, chance, len(train)):
        return
    answers = _fitted(features, train.labels)

    def right(images: torch.Tensor) -> NDArray[np.bool_]:
        return np.asarray(answers(_features(images, scaling)) == held_out.labels)

    count = len(held_out)
    found = float(right(held_out.images).mean())
    error = math.sqrt(max(own * (1 - own), 0.01) * (1 / count + 1 / len(train)))
    if found > chance + _LOST * (own - chance) or own - found < _DROPS * error:
        return
    enough = max(
        chance + _RESTORED * (own - chance), found + _DROPS * math.sqrt(max(found * (1 - found), 0.01) / count)
    )
    told = (
        f"a small classifier gets {own:.0%} of held-out train samples right and {found:.0%} of validation; "
        "with {} it gets {:.0%}"
    )
    renumbered, names = _renumbered(answers(_features(held_out.images, scaling)), held_out.labels)
    if renumbered >= enough:
        yield Finding(
            "labels",
            told.format(f"other label numbers ({names})", renumbered)
            + ": classes are numbered differently in train and in validation",
            "make both splits take their label numbers from one list of class names",
        )
        return
    for name, turned in _readings(held_out.images, train.images):
        restored = float(right(turned).mean())
        if restored >= enough:
            yield Finding(
                "splits differ",
                told.format(f"validation images {name}", restored) + f": images of one split are {name}",
                "prepare both splits with the same code; only augmentation is for train alone",
            )
            return


def examine_labels_of_neighbours(looked: Looked) -> Iterator[Finding]:
    """Check whether the label of the sample before or after fits a sample better than its own."""
    if len(looked) < _FEWEST:
        return
    features = _features(looked.images, _Scaling.of(looked.images))
    for offset, which in ((1, "next"), (-1, "previous")):
        kept = np.flatnonzero(np.diff(looked.places) == 1) + (offset < 0)  # samples whose neighbour was read too
        if len(kept) < _FEWEST:
            return
        other, labels = looked.labels[kept + offset], looked.labels[kept]
        mine, theirs = features[torch.from_numpy(kept)], _chance(other)
        own, shifted = _cross_validated(mine, labels), _cross_validated(mine, other)
        if not _learns(shifted, theirs, len(kept)) or own > theirs + (1 - _RESTORED) * (shifted - theirs):
            continue
        if (shifted - own) < _DROPS * math.sqrt(max(own * (1 - own), 0.01) / len(kept)):
            continue
        yield Finding(
            "labels",
            f"samples of {looked.split} have the label of their neighbour in the list: a small classifier gets "
            f"{own:.0%} right with their own labels and {shifted:.0%} with those of the {which} sample",
            "look for an index that is off by one, or a list of labels that is sorted otherwise than the images",
        )
        return


def examine_values(train: Looked, held_out: Looked) -> Iterator[Finding]:
    """Compare the values of each channel in train and validation."""
    if len(train) < _FEWEST // 2 or len(held_out) < _FEWEST_HELD_OUT // 2:
        return
    if train.images.shape[1] != held_out.images.shape[1]:
        return
    for channel in range(train.images.shape[1]):
        one, other = (looked.images[:, channel].flatten(1).double() for looked in (train, held_out))
        spreads, means = (float(one.std()), float(other.std())), (float(one.mean()), float(other.mean()))
        if min(spreads) <= 0:
            continue
        ratio = max(spreads) / min(spreads)
        shift = abs(means[0] - means[1])
        error = math.sqrt(sum(float(each.mean(1).var()) / len(each) for each in (one, other)))
        if ratio < _TIMES_STD and not (shift > _SHIFTED * max(spreads) and shift > _SURE * error):
            continue
        yield Finding(
            "splits differ",
            f"images of validation have other values than those of train: channel {channel} has mean {means[0]:.3g}, "
            f"standard deviation {spreads[0]:.3g} ({float(one.min()):.3g} to {float(one.max()):.3g}) in train, mean "
            f"{means[1]:.3g}, standard deviation {spreads[1]:.3g} ({float(other.min()):.3g} to "
            f"{float(other.max()):.3g}) in validation",
            "scale both splits with the same code and the same constants",
        )
        return


def examine_shortcuts(looked: Looked) -> Iterator[Finding]:
    """Check for positions that give the label away, and for few images that are repeated."""
    count = len(looked)
    if count < 2 * _FEWEST_HELD_OUT // 3:
        return
    different = len({image.numpy().tobytes() for image in looked.images})
    if different <= _PARTLY * count:
        yield Finding(
            "repeated images",
            f"{count} samples of {looked.split} are only {different} different images",
            "look for an index that is taken modulo a number, or a list that was joined with itself",
            "error" if different <= _REPEATED * count else "warning",
        )
        return
    flat = looked.images.reshape(count, -1)
    marks = _constant_marks(flat, looked.labels)
    if marks is None:
        marks = _explained_marks(flat, looked.labels)
    if marks is not None:
        channel, row, column = (int(one[0]) for one in np.unravel_index(marks[:1], looked.images.shape[1:]))
        more = f" and {len(marks) - 1} more" if len(marks) > 1 else ""
        yield Finding(
            "label in the image",
            f"a position of the images of {looked.split} gives the label away: channel {channel}, row {row}, column "
            f"{column}{more}, of {flat.shape[1]:,}",
            "look for code that writes the label, an index or a file name into the image",
        )


def _constant_marks(flat: torch.Tensor, labels: NDArray[np.int64]) -> NDArray[np.int64] | None:
    """Positions that have one value in all samples of a class and in (almost) none of another."""
    classes, counts = np.unique(labels, return_counts=True)
    tried = classes[np.argsort(-counts, kind="stable")][:_CLASSES_TRIED]
    frequent = [label for label in tried if (labels == label).sum() >= 5]
    if len(frequent) < 2:
        return None
    marked, positions = 0, set[int]()
    for label in frequent:
        mine = torch.from_numpy(labels == label)
        inside = flat[mine]
        constant = torch.nonzero((inside == inside[0]).all(0)).flatten()
        others = flat[~mine][:, constant]
        alone = constant[(others == inside[0, constant]).float().mean(0) <= _ALSO]
        marked += len(alone) > 0
        positions.update(alone.tolist())
    if 2 * marked < len(frequent) or marked < 2 or len(positions) > max(1, _FEW_PLACES * flat.shape[1]):
        return None
    return np.array(sorted(positions), np.int64)


def _explained_marks(flat: torch.Tensor, labels: NDArray[np.int64]) -> NDArray[np.int64] | None:
    """Positions whose value the label explains, where it explains little of the others.

    Classes with fewer than 5 samples are left out: one sample alone explains whatever only it has.
    """
    found, counted = np.unique(labels, return_counts=True)
    frequent = np.isin(labels, found[counted >= 5])
    flat, labels = flat[torch.from_numpy(frequent)], labels[frequent]
    if not len(labels):
        return None
    _, numbers = np.unique(labels, return_inverse=True)
    classes = int(numbers.max()) + 1
    if classes < 2 or len(labels) < 5 * classes:
        return None
    values = flat.float()
    total = values.var(0, correction=0)
    index = torch.from_numpy(numbers)
    counts = torch.bincount(index, minlength=classes).float()
    means = torch.zeros(classes, values.shape[1]).index_add_(0, index, values) / counts[:, None]
    between = (counts[:, None] * (means - values.mean(0)).square()).sum(0) / len(values)
    share = torch.where(total > 0, between / total.clamp_min(1e-12), torch.zeros(()))
    if float((share > _ORDINARY).float().mean()) > _FEW_PLACES:
        return None
    marks = torch.nonzero(share > _GIVEN_AWAY).flatten()
    return marks.numpy() if len(marks) else None


def _readings(images: torch.Tensor, train: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """Other ways to read the validation images."""
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


def _renumbered(answers: NDArray[np.int64], labels: NDArray[np.int64]) -> tuple[float, str]:
    """Accuracy with each answer replaced by the label it mostly has, learned on the other half; and how."""
    half = np.arange(len(labels)) % 2
    right = 0
    for part in (0, 1):
        table = _most_common(answers[half != part], labels[half != part])
        right += sum(
            table.get(int(one)) == label for one, label in zip(answers[half == part], labels[half == part], strict=True)
        )
    whole = _most_common(answers, labels)
    changed = [f"{one} in train is {label} in validation" for one, label in sorted(whole.items()) if one != label]
    more = len(changed) - 2
    return right / len(labels), ", ".join(changed[:2]) + (f" and {more} more" if more > 0 else "")


def _most_common(answers: NDArray[np.int64], labels: NDArray[np.int64]) -> dict[int, int]:
    """For each answer the label that most of its samples have; answers that share a label are left out."""
    table = {}
    for answer in np.unique(answers):
        found, counts = np.unique(labels[answers == answer], return_counts=True)
        table[int(answer)] = int(found[counts.argmax()])
    taken = list(table.values())
    return {answer: label for answer, label in table.items() if taken.count(label) == 1}


@dataclass(frozen=True)
class _Scaling:
    """Mean and standard deviation of each channel of the images that a classifier is fitted to."""

    mean: torch.Tensor
    std: torch.Tensor

    @classmethod
    def of(cls, images: torch.Tensor) -> "_Scaling":
        flat = images.transpose(0, 1).flatten(1).float()
        return cls(flat.mean(1).view(1, -1, 1, 1), flat.std(1).clamp_min(1e-12).view(1, -1, 1, 1))


def _features(images: torch.Tensor, scaling: _Scaling) -> torch.Tensor:
    """Coarse pixels, spectra and colour statistics, float32 (n, features), each kind of about the same weight."""
    scaled = ((images.float() - scaling.mean) / scaling.std)[:, :_CHANNELS]
    coarse = functional.adaptive_avg_pool2d(scaled, _PIXELS).flatten(1)
    spectrum = torch.fft.rfft2(functional.adaptive_avg_pool2d(scaled.mean(1), _SPECTRUM)).abs().log1p().flatten(1)
    flat = scaled.flatten(2)
    colours = torch.cat([flat.mean(2), flat.std(2), flat.amin(2), flat.amax(2)], 1)
    return torch.cat([part / math.sqrt(part.shape[1]) for part in (coarse, spectrum, colours)], 1)


def _fitted(features: torch.Tensor, labels: NDArray[np.int64]) -> Callable[[torch.Tensor], NDArray[np.int64]]:
    """Fit kernel ridge regression; the function answers features with labels."""
    classes, numbers = np.unique(labels, return_inverse=True)
    centre, spread = features.mean(0), features.std(0).clamp_min(1e-3)
    known = ((features - centre) / spread).double()
    distances = torch.cdist(known, known).square()
    width = distances[distances > 0].median() if bool((distances > 0).any()) else torch.ones(())
    targets = functional.one_hot(torch.from_numpy(numbers), len(classes)).double()
    offset = targets.mean(0)
    kernel = (-distances / width).exp() + _RIDGE * torch.eye(len(known), dtype=torch.float64)
    weights = torch.linalg.solve(kernel, targets - offset)

    def answer(others: torch.Tensor) -> NDArray[np.int64]:
        seen = ((others - centre) / spread).double()
        scores = (-torch.cdist(seen, known).square() / width).exp() @ weights + offset
        return np.asarray(classes[scores.argmax(1).numpy()], np.int64)

    return answer


def _cross_validated(features: torch.Tensor, labels: NDArray[np.int64]) -> float:
    """Share of samples that a classifier fitted to the others gets right."""
    fold = np.random.Generator(np.random.Philox(0)).permutation(len(labels)) % _FOLDS
    right = 0
    for part in range(_FOLDS):
        held_out = torch.from_numpy(fold == part)
        answers = _fitted(features[~held_out], labels[fold != part])(features[held_out])
        right += int((answers == labels[fold == part]).sum())
    return right / len(labels)


def _chance(labels: NDArray[np.int64]) -> float:
    return float(np.unique(labels, return_counts=True)[1].max()) / len(labels)


def _learns(accuracy: float, chance: float, count: int) -> bool:
    error = math.sqrt(max(chance * (1 - chance), 0.01) / count)
    return accuracy - chance > max(_ABOVE, _LEARNS * error)
