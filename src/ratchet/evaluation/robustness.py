"""Robustness: accuracy on the same test images under every kind and strength of corruption.

The corruptions are noise, blur, brightness, contrast and JPEG compression. Kinds and strengths are those of CIFAR-10-C
(Hendrycks and Dietterich, "Benchmarking Neural Network Robustness to Common Corruptions and Perturbations", 2019). Blur
is given in pixels of an image that is 32 pixels wide.
"""

import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from ratchet.evaluation.intervals import Interval, share_interval

__all__ = [
    "KINDS",
    "STRENGTHS",
    "NotMeasured",
    "Robustness",
    "automatic_rows",
    "corrupt",
    "evenly_spaced",
    "measure_robustness",
]

Images = NDArray[np.uint8]
Labels = NDArray[np.int64]

STRENGTHS = (1, 2, 3, 4, 5)
_NOISE = (0.04, 0.06, 0.08, 0.09, 0.10)  # standard deviation, of a scale 0..1
_BLUR = (0.4, 0.6, 0.7, 0.8, 1.0)  # standard deviation, pixels
_BRIGHTNESS = (0.05, 0.1, 0.15, 0.2, 0.3)  # added, of a scale 0..1
_CONTRAST = (0.75, 0.5, 0.4, 0.3, 0.15)  # remaining share of the distance to the mean
_QUALITY = (80, 65, 58, 50, 40)  # of JPEG


@dataclass(frozen=True)
class NotMeasured:
    """Reason why something was not measured, as a clause without a full stop."""

    reason: str


@dataclass(frozen=True)
class Robustness:
    """Accuracy on some test images, unchanged and corrupted."""

    rows: int
    clean: Interval  # on the same images, unchanged
    corrupted: Mapping[str, tuple[Interval, ...]]  # by kind; one for each strength, the mildest first

    def mean(self, kind: str) -> float:
        """Mean accuracy under one kind of corruption, over its strengths."""
        return float(np.mean([share.value for share in self.corrupted[kind]]))

    @property
    def overall(self) -> float:
        """Mean accuracy under corruption, over kinds and strengths."""
        return float(np.mean([self.mean(kind) for kind in self.corrupted]))

    def numbers(self) -> dict[str, float]:
        """Return the metrics `robustness`, the mean over all, and `robustness_KIND`."""
        return {"robustness": self.overall, **{f"robustness_{kind}": self.mean(kind) for kind in self.corrupted}}


def automatic_rows(height: int, width: int) -> int:
    """Return the number of images for `evaluation.robustness_rows: auto`: 500 up to 64x64 pixels, at least 50.

    Each image costs 25 predictions. Without a limit, large photographs would take longer to corrupt than to evaluate.
    """
    return max(50, min(500, 500 * 64 * 64 // (height * width)))


def evenly_spaced(rows: int, wanted: int) -> NDArray[np.int64]:
    """Return `wanted` of `rows` row numbers, or all if there are fewer, evenly spaced and in order."""
    count = min(rows, wanted)
    return np.arange(count, dtype=np.int64) * rows // max(1, count)


def measure_robustness(
    predict: Callable[[Images], Labels],
    images: Images,
    labels: Labels,
    *,
    clean: Labels,
    confidence: float,
    report: Callable[[int], None] = lambda done: None,
) -> Robustness:
    """Measure the accuracy on the same images under every kind and strength of corruption.

    Args:
        predict: images like `images` -> predicted classes, int64 (rows,).
        images: uint8 (rows, height, width, channels), with 1 or 3 channels and at least one row.
        clean: predicted classes of the unchanged images, int64 (rows,).
        report: called with the number of corrupted images that were predicted so far.
    """

    def share(predicted: Labels) -> Interval:
        return share_interval(int((predicted == labels).sum()), len(labels), confidence=confidence)

    corrupted: dict[str, tuple[Interval, ...]] = {}
    for done, kind in enumerate(KINDS, 1):
        corrupted[kind] = tuple(share(predict(corrupt(images, kind, strength))) for strength in STRENGTHS)
        report(done * len(STRENGTHS) * len(labels))
    return Robustness(len(labels), share(clean), corrupted)


def corrupt(images: Images, kind: str, strength: int, *, seed: int = 0) -> Images:
    """Return a corrupted copy of the images.

    Args:
        images: uint8 (n, height, width, channels), with 1 or 3 channels.
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
    from PIL import Image

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
        "noise": _noise,
        "blur": _blur,
        "brightness": _brightness,
        "contrast": _contrast,
        "compression": _compression,
    }
)
