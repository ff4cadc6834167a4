"""The 1,797 handwritten digits that scikit-learn ships: real data without a download."""

import numpy as np
import polars as pl
from numpy.typing import NDArray
from PIL import Image

from ratchet.data import quarantine
from ratchet.data.sources import Label, listing
from ratchet.data.split import SplitName
from ratchet.data.system_files import Ignored

__all__ = ["Digits"]

FULL = 16  # largest value: the scans count the inked pixels of a 4 x 4 block


class Digits:
    """8 x 8 grey images of ten digits, without given splits."""

    name = "digits"
    is_local = False
    targets = None  # there is no table
    ignored = Ignored()
    classes = tuple(str(digit) for digit in range(10))
    given: frozenset[SplitName] = frozenset()
    refused = quarantine.rows([])

    def __init__(self) -> None:
        from sklearn.datasets import load_digits  # takes seconds to import

        digits = load_digits()
        self._images: NDArray[np.uint8] = np.rint(digits.images * (255 / FULL)).astype(np.uint8)
        self._labels: NDArray[np.int64] = digits.target.astype(np.int64)

    @property
    def listing(self) -> pl.DataFrame:
        """Ids are positions in scikit-learn's order."""
        return listing({"id": [f"{row:05d}" for row in range(len(self._labels))], "label": self._labels.tolist()})

    def read(self, name: str) -> tuple[Image.Image, Label]:
        """Return an image with its digit."""
        return Image.fromarray(self._images[int(name)]), int(self._labels[int(name)])
