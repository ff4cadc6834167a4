"""Labels that are likely wrong, by confident learning (Northcutt, Jiang and Chuang 2021, JAIR 70).

A model that never saw a sample says how likely each class is. A class is meant in earnest where its probability reaches
the mean that it has among the samples labelled so; a sample that another class than its own is meant of is suspected.
"""

import numpy as np
import polars as pl
from numpy.typing import NDArray

__all__ = ["fold_of", "suspects"]


def suspects(probabilities: NDArray[np.float32], labels: NDArray[np.int64]) -> pl.DataFrame:
    """The samples whose labels are likely wrong, the likeliest first.

    Args:
        probabilities: float32 (rows, classes), each row by a model that was not trained on it.
        labels: int64 (rows,), as given.

    Returns:
        row, label, likely (the class that is meant), given (the label's probability) and doubt (by how much the other
        class's probability is larger, in 0..1).
    """
    rows, classes = probabilities.shape
    usual = np.array(
        [probabilities[labels == one, one].mean() if (labels == one).any() else np.inf for one in range(classes)]
    )
    earnest = np.where(probabilities >= usual, probabilities, -1.0)
    likely = earnest.argmax(axis=1)
    given = probabilities[np.arange(rows), labels]
    doubt = probabilities[np.arange(rows), likely] - given
    wrong = np.flatnonzero((earnest.max(axis=1) > 0) & (likely != labels) & (doubt > 0))
    found = {
        "row": wrong,
        "label": labels[wrong],
        "likely": likely[wrong],
        "given": given[wrong],
        "doubt": doubt[wrong],
    }
    return pl.DataFrame(found).sort("doubt", "row", descending=[True, False])


def fold_of(contents: list[str], folds: int) -> NDArray[np.int64]:
    """In which of so many parts each sample is held out: by its content, so that copies are never on both sides."""
    return np.array([int(content[:15], 16) % folds for content in contents], dtype=np.int64)
