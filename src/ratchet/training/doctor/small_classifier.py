"""Classifier fitted in milliseconds: kernel ridge regression on coarse pixels, spectra and colour statistics."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

__all__ = ["Features", "chance", "cross_validated", "fit", "learns"]

_PIXELS, _SPECTRUM = 8, 16  # sides of the coarse images
_CHANNELS = 4  # the first channels; the others are not used
_RIDGE = 0.03
_FOLDS = 4
_LEARNS, _ABOVE = 6.0, 0.1  # standard errors, and share of samples, by which accuracy must exceed chance


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
