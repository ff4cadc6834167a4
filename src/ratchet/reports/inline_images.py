"""Images written into a page as data URLs, and the pixels that support a wrong prediction drawn over its image."""

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["COLOURS", "ErrorCard", "ErrorExample", "InlineImage", "error_cards", "inline", "inline_png", "overlay"]

Pixels = NDArray[np.uint8]

COLOURS = ((255, 138, 38), (64, 156, 255))
"""RGB of pixels that support the predicted class and the true class: orange and blue.

They can be distinguished with red-green colour blindness, and on light and dark pages.
"""

_SMALL = 96  # pixels: images with a shorter side than this are enlarged without smoothing
_DIMMED = (0.08, 0.5)  # brightness of black and white below the colours
_FULL = 0.98  # share of an image's pixels below full colour


@dataclass(frozen=True)
class InlineImage:
    """An image for an <img> element."""

    url: str  # a data URL
    small: bool


def inline(pixels: Pixels) -> InlineImage:
    """Encode an image, uint8 (height, width, channels) with 1 or 3 channels, as PNG."""
    from PIL import Image

    content = io.BytesIO()
    Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels).save(content, "PNG", optimize=True)
    return inline_png(content.getvalue(), small=max(pixels.shape[:2]) < _SMALL)


def inline_png(content: bytes, *, small: bool = True) -> InlineImage:
    """Wrap an image that is PNG already."""
    return InlineImage(f"data:image/png;base64,{base64.b64encode(content).decode()}", small)


@dataclass(frozen=True)
class ErrorExample:
    """A test sample with a wrong prediction; `image` is uint8 (height, width, channels) with 1 or 3 channels."""

    image: Pixels
    id: str
    truth: str
    answer: str
    confidence: float | None  # None: it does not predict classes
    # float32 (height, width), above 0 where a pixel supports the predicted class, below 0 where it supports the true
    # class; None: not explained
    contributions: NDArray[np.float32] | None = None


@dataclass(frozen=True)
class ErrorCard:
    """A wrong prediction with its images for the page."""

    example: ErrorExample
    image: InlineImage
    explanation: InlineImage | None


def error_cards(examples: Sequence[ErrorExample]) -> list[ErrorCard]:
    """Prepare examples for a page."""
    return [
        ErrorCard(
            example,
            inline(example.image),
            None if example.contributions is None else inline(overlay(example.image, example.contributions)),
        )
        for example in examples
    ]


def overlay(image: Pixels, contributions: NDArray[np.float32]) -> Pixels:
    """Return the dimmed image with colours as strong as the contributions: uint8 (height, width, 3)."""
    from scipy.ndimage import gaussian_filter

    # Contributions of single pixels of a photograph are too fine to see, so they are blurred with their neighbours
    smooth = gaussian_filter(contributions.astype(np.float64), min(contributions.shape) / 24)
    full = float(np.quantile(np.abs(smooth), _FULL))
    strength = np.clip(np.abs(smooth) / full, 0, 1)[..., None] ** 1.5 if full > 0 else np.zeros((*smooth.shape, 1))
    black, white = (255 * end for end in _DIMMED)
    grey = black + (white - black) * image.mean(axis=2, keepdims=True) / 255
    colour = np.where(smooth[..., None] > 0, *COLOURS)
    result: Pixels = np.rint(grey * (1 - strength) + colour * strength).astype(np.uint8)
    return result
