"""Share of mirrored and turned copies that are found, and number of different images that are reported.

    RATCHET_DATASETS=FOLDER python -m bench.near_duplicates [--quick]

100 photos of FOLDER/hymenoptera and 200 images of FOLDER/cifar-10-batches-py are used. Each change is applied to all
images, and the copies are saved as JPEG (quality 90). Copies and originals are searched among 2,000 other CIFAR-10
images. Claims: at least 90 % of the copies are found, no pair of different images is reported as turned, and 50,000
images take at most 10 CPU-seconds.
"""

import io
import os
import pickle
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from bench.report import Row, alone, options
from ratchet.data.checks.near_duplicates import signatures, similar_pairs
from ratchet.data.reading.pixels import to_pixels

__all__ = ["search"]

Pixels = NDArray[np.uint8]
Change = Callable[[Image.Image], Image.Image]
_FIRST_OTHER = 4_000  # CIFAR-10 images from here on are the others
_LEAST, _MOST_SECONDS = 0.9, 10.0
_TURN = Image.Transpose
_CHANGES: dict[str, Change] = {
    "mirrored": ImageOps.mirror,
    "upside down": ImageOps.flip,
    "turned by 90": lambda image: image.transpose(_TURN.ROTATE_90),
    "turned by 180": lambda image: image.transpose(_TURN.ROTATE_180),
    "turned by 270": lambda image: image.transpose(_TURN.ROTATE_270),
}


def search(*, quick: bool) -> list[Row]:
    """Return the rows of the table."""
    datasets = Path(os.environ["RATCHET_DATASETS"])
    content = pickle.loads((datasets / "cifar-10-batches-py" / "data_batch_1").read_bytes(), encoding="bytes")
    cifar = np.ascontiguousarray(content[b"data"].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))
    paths = sorted((datasets / "hymenoptera" / "train").rglob("*.jpg"))
    photos = [Image.open(path).convert("RGB") for path in paths[: 20 if quick else 100]]
    small = [Image.fromarray(pixels) for pixels in cifar[: 40 if quick else 200]]
    count = 300 if quick else 2_000
    rows = []
    for name, images, side in (("photos at 64 pixels", photos, 64), ("CIFAR-10 at 32 pixels", small, 32)):
        others = np.stack([_packed(Image.fromarray(pixels), side) for pixels in cifar[_FIRST_OTHER:][:count]])
        rows.append(Row("different images reported", f"{count:,} at {side} pixels", *_none(_pairs(others))))
        before = np.stack([_packed(image, side) for image in images])
        for change, act in _CHANGES.items():
            after = np.stack([_packed(_saved(act(image)), side) for image in images])
            pairs = _pairs(np.concatenate([before, after, others]))
            copies = {(number, len(images) + number) for number in range(len(images))}
            share = len(pairs & copies) / len(copies)
            what = f"{len(images)} {name}"
            rows.append(Row(f"found: {change}", what, f"{share:.2f}", f">= {_LEAST}", share >= _LEAST))
    if not quick:
        many = np.concatenate(
            [cifar[:, ::-1], cifar[:, :, ::-1], cifar, cifar[:, ::-1, ::-1], cifar.transpose(0, 2, 1, 3)]
        )
        start = time.process_time()
        _pairs(many)
        taken = time.process_time() - start
        what = f"{len(many):,} images of 32 pixels"
        rows.append(Row("CPU s: search", what, f"{taken:.1f}", f"<= {_MOST_SECONDS:g}", taken <= _MOST_SECONDS))
    return rows


def _pairs(pixels: Pixels) -> set[tuple[int, int]]:
    pairs = similar_pairs(signatures(pixels), lambda rows: pixels[rows])
    return set(pairs.filter(change="turned").select("one", "other").rows())


def _none(pairs: set[tuple[int, int]]) -> tuple[str, str, bool]:
    return f"{len(pairs)}", "0", not pairs


def _packed(image: Image.Image, side: int) -> Pixels:
    return to_pixels(image, size=side, channels=3)


def _saved(image: Image.Image) -> Image.Image:
    content = io.BytesIO()
    image.save(content, "JPEG", quality=90)
    return Image.open(content)


def main() -> None:
    """Measure and print."""
    alone(options(__doc__), lambda arguments: search(quick=arguments.quick))


if __name__ == "__main__":
    main()
