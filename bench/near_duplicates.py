"""Share of mirrored, turned and cropped copies that are found, and number of different images that are reported.

    RATCHET_DATASETS=FOLDER python -m bench.near_duplicates [--quick]

100 photos of FOLDER/hymenoptera and 200 images of FOLDER/cifar-10-batches-py are used. Each change is applied to all
images, and the copies are saved as JPEG (quality 90). Copies and originals are searched among 2,000 other CIFAR-10
images. Claims: at least 90 % of the mirrored and turned copies and 60 % of the crops to 90 % are found, and no pair of
different images is reported.
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
from ratchet.data.checks.near_duplicates import signatures
from ratchet.data.checks.transformed_duplicates import transformed_pairs
from ratchet.data.reading.pixels import to_pixels

__all__ = ["search"]

Pixels = NDArray[np.uint8]
Change = Callable[[Image.Image], Image.Image]
_FIRST_OTHER = 4_000  # CIFAR-10 images from here on are the others


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
        for change, (act, least) in _changes().items():
            after = np.stack([_packed(_saved(act(image)), side) for image in images])
            pairs = _pairs(np.concatenate([before, after, others]))
            copies = {(number, len(images) + number) for number in range(len(images))}
            share = len(pairs & copies) / len(copies)
            claim = f">= {least}" if least else ""
            rows.append(Row(f"found: {change}", f"{len(images)} {name}", f"{share:.2f}", claim, share >= least))
    if not quick:
        start = time.perf_counter()
        _pairs(cifar)
        rows.append(Row("s: search", f"{len(cifar):,} images of 32 pixels", f"{time.perf_counter() - start:.1f}"))
    return rows


def _changes() -> dict[str, tuple[Change, float]]:
    drawn = np.random.default_rng(0)

    def crop(share: float, *, anywhere: bool) -> Change:
        def act(image: Image.Image) -> Image.Image:
            width, height = (round(share * side) for side in image.size)
            across, down = drawn.random(2) if anywhere else (0.5, 0.5)
            left, top = round(across * (image.width - width)), round(down * (image.height - height))
            return image.crop((left, top, left + width, top + height))

        return act

    turn = Image.Transpose
    return {
        "mirrored": (ImageOps.mirror, 0.9),
        "upside down": (ImageOps.flip, 0.9),
        "turned by 90": (lambda image: image.transpose(turn.ROTATE_90), 0.9),
        "turned by 180": (lambda image: image.transpose(turn.ROTATE_180), 0.9),
        "turned by 270": (lambda image: image.transpose(turn.ROTATE_270), 0.9),
        "cropped to 90 %": (crop(0.9, anywhere=False), 0.6),
        "cropped to 90 %, anywhere": (crop(0.9, anywhere=True), 0.6),
        "cropped to 80 %": (crop(0.8, anywhere=False), 0.0),
        "cropped to 80 %, anywhere": (crop(0.8, anywhere=True), 0.0),
    }


def _pairs(pixels: Pixels) -> set[tuple[int, int]]:
    features = signatures(pixels)
    rows = np.arange(len(pixels))
    pairs = transformed_pairs(features.statistics, features.thumbnails, lambda some: pixels[some], rows=rows)
    return set(pairs.select("one", "other").rows())


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
