"""Images written into a page as data URLs."""

import base64
import io
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["InlineImage", "inline", "inline_png"]

_SMALL = 96  # pixels: images with a shorter side than this are enlarged without smoothing


@dataclass(frozen=True)
class InlineImage:
    """An image for an <img> element."""

    url: str  # a data URL
    small: bool


def inline(pixels: NDArray[np.uint8]) -> InlineImage:
    """Encode an image, uint8 (height, width, channels) with 1 or 3 channels, as PNG."""
    from PIL import Image

    content = io.BytesIO()
    Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels).save(content, "PNG", optimize=True)
    return inline_png(content.getvalue(), small=max(pixels.shape[:2]) < _SMALL)


def inline_png(content: bytes, *, small: bool = True) -> InlineImage:
    """Wrap an image that is PNG already."""
    return InlineImage(f"data:image/png;base64,{base64.b64encode(content).decode()}", small)
