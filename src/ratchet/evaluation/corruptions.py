"""Corrupted images: noise, blur, brightness, contrast and JPEG compression, in five strengths each.

Kinds and strengths are those of CIFAR-10-C (Hendrycks and Dietterich, "Benchmarking Neural Network Robustness to Common
Corruptions and Perturbations", 2019). Blur is given in pixels of an image that is 32 pixels wide.
"""

import io
from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray
from PIL import Image

__all__ = ["KINDS", "STRENGTHS", "corrupt"]

Images = NDArray[np.uint8]

STRENGTHS = (1, 2, 3, 4, 5)
_NOISE = (0.04, 0.06, 0.08, 0.09, 0.10)  # standard deviation, of a scale 0..1
_BLUR = (0.4, 0.6, 0.7, 0.8, 1.0)  # standard deviation, pixels
_BRIGHTNESS = (0.05, 0.1, 0.15, 0.2, 0.3)  # added, of a scale 0..1
_CONTRAST = (0.75, 0.5, 0.4, 0.3, 0.15)  # remaining share of the distance to the mean
_QUALITY = (80, 65, 58, 50, 40)  # of JPEG


def corrupt(images: Images, kind: str, strength: int, *, seed: int = 0) -> Images:
    """Return a corrupted copy of the images.

    Args:
        images: uint8 (n, height, width, channels), with 1 or 3 channels.
        kind: one of KINDS.
        strength: one of STRENGTHS.
        seed: of the noise. Arrays of the same shape get the same noise.

    Raises:
        KeyError: there is no such kind.
    """
    return KINDS[kind](images, strength - 1, seed)


def _noise(images: Images, level: int, seed: int) -> Images:
    drawn = np.random.default_rng(seed).normal(0.0, 255 * _NOISE[level], images.shape)
    return _rounded(images + drawn)


def _blur(images: Images, level: int, _: int) -> Images:
    from scipy.ndimage import gaussian_filter

    sigma = _BLUR[level] * min(images.shape[1:3]) / 32
    return _rounded(gaussian_filter(images.astype(np.float32), (0, sigma, sigma, 0)))


def _brightness(images: Images, level: int, _: int) -> Images:
    return _rounded(images + 255 * _BRIGHTNESS[level])


def _contrast(images: Images, level: int, _: int) -> Images:
    middle = images.mean(axis=(1, 2), keepdims=True)
    return _rounded((images - middle) * _CONTRAST[level] + middle)


def _compression(images: Images, level: int, _: int) -> Images:
    compressed = []
    for image in images:
        content = io.BytesIO()
        Image.fromarray(image[..., 0] if image.shape[-1] == 1 else image).save(content, "JPEG", quality=_QUALITY[level])
        compressed.append(np.asarray(Image.open(content)).reshape(image.shape))
    return np.stack(compressed) if compressed else images.copy()


def _rounded(values: NDArray[np.floating]) -> Images:
    images: Images = np.clip(np.rint(values), 0, 255).astype(np.uint8)
    return images


KINDS: Mapping[str, Callable[[Images, int, int], Images]] = MappingProxyType(
    {
        "noise": _noise, "blur": _blur, "brightness": _brightness, "contrast": _contrast, "compression": _compression,
    }
)  # fmt: skip
