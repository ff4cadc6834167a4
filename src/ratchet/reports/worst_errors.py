"""The most confident wrong predictions of a run: each image, and which of its pixels support the wrong class."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ratchet.reports.images import InlineImage, inline

__all__ = ["COLOURS", "ErrorCard", "Example", "error_cards"]

Pixels = NDArray[np.uint8]

COLOURS = ((255, 138, 38), (64, 156, 255))
"""RGB of pixels that support the predicted class and the true class: orange and blue.

They can be distinguished with red-green colour blindness, and on light and dark pages.
"""

_MOST = 24
_DIMMED = (0.08, 0.5)  # brightness of black and white below the colours
_FULL = 0.98  # share of an image's pixels below full colour


@dataclass(frozen=True)
class Example:
    """A test sample with a wrong prediction; `image` is uint8 (height, width, channels) with 1 or 3 channels."""

    image: Pixels
    id: str
    truth: str
    answer: str
    confidence: float
    # float32 (height, width), above 0 where a pixel supports the predicted class, below 0 where it supports the true
    # class; None: not explained
    contributions: NDArray[np.float32] | None = None


@dataclass(frozen=True)
class ErrorCard:
    """A wrong prediction with its images for the page."""

    example: Example
    image: InlineImage
    explanation: InlineImage | None


def error_cards(examples: Sequence[Example]) -> list[ErrorCard]:
    """Prepare the first examples."""
    return [
        ErrorCard(
            example,
            inline(example.image),
            None if example.contributions is None else inline(_overlay(example.image, example.contributions)),
        )
        for example in examples[:_MOST]
    ]


def _overlay(image: Pixels, contributions: NDArray[np.float32]) -> Pixels:
    """Return the dimmed image with colours as strong as the contributions: uint8 (height, width, 3)."""
    from scipy.ndimage import gaussian_filter

    # Contributions of single pixels of a photograph are too fine to see, so they are blurred with their neighbours
    smooth = gaussian_filter(contributions.astype(np.float64), min(contributions.shape) / 24)
    full = float(np.quantile(np.abs(smooth), _FULL))
    strength = np.clip(np.abs(smooth) / full, 0, 1)[..., None] ** 1.5 if full > 0 else np.zeros((*smooth.shape, 1))
    black, white = (255 * end for end in _DIMMED)
    grey = black + (white - black) * image.mean(axis=2, keepdims=True) / 255
    colour = np.where(smooth[..., None] > 0, *COLOURS)
    overlay: Pixels = np.rint(grey * (1 - strength) + colour * strength).astype(np.uint8)
    return overlay
