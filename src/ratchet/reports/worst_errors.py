"""The most confident wrong predictions of a run: each image, and which of its pixels support the wrong class."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ratchet.evaluation.figures import Figures
from ratchet.reports.images import Picture, picture

__all__ = ["Example", "WorstErrors", "worst_errors"]

Pixels = NDArray[np.uint8]

_MOST = 24
# Orange and blue can be distinguished with red-green colour blindness, and on light and dark pages
_SUPPORTS_WRONG, _SUPPORTS_TRUE = (255, 138, 38), (64, 156, 255)
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
    """A wrong prediction as it is shown."""

    id: str
    true_class: str
    predicted_class: str
    confidence: float
    image: Picture
    explanation: Picture | None


@dataclass(frozen=True)
class WorstErrors:
    """Wrong predictions, the most confident first, and how to read them."""

    samples: int  # tested
    wrong: int
    cards: Sequence[ErrorCard]
    unexplained: str  # why there are no explanations; "": there are, or nothing is known
    supports_wrong: str  # CSS colours of the explanations
    supports_true: str

    @property
    def has_explanations(self) -> bool:
        """Whether any image has its explanation."""
        return any(card.explanation for card in self.cards)


def worst_errors(figures: Figures, examples: Sequence[Example], *, unexplained: str = "") -> WorstErrors:
    """Prepare the examples, worst first. `unexplained`: why none of them has contributions."""
    correct = sum(row[number] for number, row in enumerate(figures.confusion))
    return WorstErrors(
        samples=figures.rows,
        wrong=figures.rows - correct,
        cards=tuple(map(_card, examples[:_MOST])),
        unexplained=unexplained,
        supports_wrong=f"rgb{_SUPPORTS_WRONG}",
        supports_true=f"rgb{_SUPPORTS_TRUE}",
    )


def _card(example: Example) -> ErrorCard:
    contributions = example.contributions
    return ErrorCard(
        id=example.id,
        true_class=example.truth,
        predicted_class=example.answer,
        confidence=example.confidence,
        image=picture(example.image),
        explanation=None if contributions is None else picture(_overlay(example.image, contributions)),
    )


def _overlay(image: Pixels, contributions: NDArray[np.float32]) -> Pixels:
    """Return the dimmed image with colours as strong as the contributions: uint8 (height, width, 3)."""
    from scipy.ndimage import gaussian_filter

    # Contributions of single pixels of a photograph are too fine to see, so they are blurred with their neighbours
    smooth = gaussian_filter(contributions.astype(np.float64), min(contributions.shape) / 24)
    full = float(np.quantile(np.abs(smooth), _FULL))
    strength = np.clip(np.abs(smooth) / full, 0, 1)[..., None] ** 1.5 if full > 0 else np.zeros((*smooth.shape, 1))
    black, white = (255 * end for end in _DIMMED)
    grey = black + (white - black) * image.mean(axis=2, keepdims=True) / 255
    colour = np.where(smooth[..., None] > 0, _SUPPORTS_WRONG, _SUPPORTS_TRUE)
    overlay: Pixels = np.rint(grey * (1 - strength) + colour * strength).astype(np.uint8)
    return overlay
