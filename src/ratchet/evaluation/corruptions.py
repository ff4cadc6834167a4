"""Pictures as the world spoils them: noise, blur, other light, less contrast, compression, in five strengths each.

Kinds and strengths are those of CIFAR-10-C (Hendrycks and Dietterich, "Benchmarking Neural Network Robustness to Common
Corruptions and Perturbations", 2019), blur's in pixels of a picture 32 wide.
"""

import io
from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray
from PIL import Image

__all__ = ["KINDS", "STRENGTHS", "corrupt"]

Pictures = NDArray[np.uint8]

STRENGTHS = (1, 2, 3, 4, 5)
_NOISE = (0.04, 0.06, 0.08, 0.09, 0.10)  # standard deviation, of a scale 0..1
_BLUR = (0.4, 0.6, 0.7, 0.8, 1.0)  # standard deviation, pixels
_BRIGHTNESS = (0.05, 0.1, 0.15, 0.2, 0.3)  # added, of a scale 0..1
_CONTRAST = (0.75, 0.5, 0.4, 0.3, 0.15)  # what is left of the distance to the mean
_QUALITY = (80, 65, 58, 50, 40)  # of JPEG


def corrupt(pictures: Pictures, kind: str, strength: int, *, seed: int = 0) -> Pictures:
    """Pictures uint8 (n, height, width, channels), channels 1 or 3, spoilt: a copy of the same shape.

    Args:
        kind: one of KINDS.
        strength: one of STRENGTHS.
        seed: of the noise, which is the same for equal numbers of pictures.

    Raises:
        KeyError: there is no such kind.
    """
    return KINDS[kind](pictures, strength - 1, seed)


def _noise(pictures: Pictures, place: int, seed: int) -> Pictures:
    drawn = np.random.default_rng(seed).normal(0.0, 255 * _NOISE[place], pictures.shape)
    return _rounded(pictures + drawn)


def _blur(pictures: Pictures, place: int, _: int) -> Pictures:
    from scipy.ndimage import gaussian_filter

    sigma = _BLUR[place] * min(pictures.shape[1:3]) / 32
    return _rounded(gaussian_filter(pictures.astype(np.float32), (0, sigma, sigma, 0)))


def _brightness(pictures: Pictures, place: int, _: int) -> Pictures:
    return _rounded(pictures + 255 * _BRIGHTNESS[place])


def _contrast(pictures: Pictures, place: int, _: int) -> Pictures:
    middle = pictures.mean(axis=(1, 2), keepdims=True)
    return _rounded((pictures - middle) * _CONTRAST[place] + middle)


def _compression(pictures: Pictures, place: int, _: int) -> Pictures:
    saved = []
    for picture in pictures:
        content = io.BytesIO()
        Image.fromarray(picture[..., 0] if picture.shape[-1] == 1 else picture).save(
            content, "JPEG", quality=_QUALITY[place]
        )
        saved.append(np.asarray(Image.open(content)).reshape(picture.shape))
    return np.stack(saved) if saved else pictures.copy()


def _rounded(values: NDArray[np.floating]) -> Pictures:
    pictures: Pictures = np.clip(np.rint(values), 0, 255).astype(np.uint8)
    return pictures


KINDS: Mapping[str, Callable[[Pictures, int, int], Pictures]] = MappingProxyType(
    {
        "noise": _noise, "blur": _blur, "brightness": _brightness, "contrast": _contrast, "compression": _compression,
    }
)  # fmt: skip
