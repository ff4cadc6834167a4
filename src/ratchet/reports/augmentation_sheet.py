"""Training images before and after augmentation, in the data card: what the model sees in the first epoch."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ratchet import files
from ratchet.reports.inline_images import inline
from ratchet.reports.templating import render_html

__all__ = ["put_into", "sheet"]

NO_RESULT = "of the data card"

_BEGIN, _END = "<!-- augmentation -->", "<!-- end of augmentation -->"  # in the data card


def sheet(before: NDArray[np.uint8], after: NDArray[np.uint8], *, labels: Sequence[str], augmentations: str) -> str:
    """Return the section of the card.

    Args:
        before: training images, (n, height, width, 1 or 3).
        after: the same images as the model sees them, also in another size.
        labels: their classes; may be empty.
        augmentations: the list, for people.
    """
    rows = {"before": [inline(each) for each in before], "after": [inline(each) for each in after]}
    return render_html("augmentation.html.j2", rows=rows, labels=labels, augmentations=augmentations)


def put_into(card: Path, section: str) -> None:
    """Put a section into the data card, in place of an earlier one. Cards of earlier releases have no place for it."""
    head, begin, rest = card.read_text(encoding="utf-8").partition(_BEGIN)
    before, end, tail = rest.partition(_END)
    if end and before.strip() != section.strip():
        files.write_text(card, f"{head}{begin}\n{section}{end}{tail}")
