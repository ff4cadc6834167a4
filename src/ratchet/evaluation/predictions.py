"""Predictions of a classifier: what follows from each, and the file that keeps them for later comparisons."""

import functools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ratchet import files
from ratchet.errors import DataError, TrainingError, first_line
from ratchet.evaluation.calibration import log_softmax

__all__ = ["Answers", "Predictions", "check", "read_predictions", "write_predictions"]

Floats = NDArray[np.float64]
Labels = NDArray[np.int64]

_COLUMNS = ("id", "label", "predicted", "probability", "logits")
_CLASSES_KEY = b"ratchet.classes"
_FIX = "Fix: `dvc repro evaluate`"


@dataclass(frozen=True)
class Answers:
    """Logits (rows, classes) and labels (rows,), with the quantities that follow from each row."""

    logits: NDArray[np.float32]
    labels: Labels

    @property
    def rows(self) -> int:
        """Number of test images."""
        return len(self.labels)

    @property
    def width(self) -> int:
        """Number of the model's classes."""
        return int(self.logits.shape[1])

    @functools.cached_property
    def predicted(self) -> Labels:
        """Predicted class, (rows,); of equal logits the first."""
        predicted: Labels = self.logits.argmax(axis=1).astype(np.int64)
        return predicted

    @functools.cached_property
    def score(self) -> Floats:
        """Score of each row, (rows,), larger is better: 1 where the predicted class is the label, else 0."""
        score: Floats = (self.predicted == self.labels).astype(np.float64)
        return score

    @functools.cached_property
    def rank(self) -> Labels:
        """Rank of the right class among the logits, from 0, (rows,); equal logits rank in the order of classes."""
        own = np.take_along_axis(self.logits, self.labels[:, None], axis=1)
        earlier = np.arange(self.width)[None, :] < self.labels[:, None]
        ahead = (self.logits > own) | ((self.logits == own) & earlier)
        rank: Labels = ahead.sum(axis=1)
        return rank

    @functools.cached_property
    def log_probabilities(self) -> Floats:
        """Natural logarithm of the probabilities, (rows, classes)."""
        return log_softmax(self.logits)

    @functools.cached_property
    def probabilities(self) -> Floats:
        """Class probabilities, (rows, classes)."""
        return np.exp(self.log_probabilities)

    @property
    def losses(self) -> Floats:
        """Negative log-probability of the label, in nats, (rows,)."""
        return -np.take_along_axis(self.log_probabilities, self.labels[:, None], axis=1)[:, 0]

    @property
    def confidence(self) -> Floats:
        """Probability of the predicted class, (rows,)."""
        confidence: Floats = self.probabilities.max(axis=1)
        return confidence


@dataclass(frozen=True)
class Predictions(Answers):
    """Answers of one model with the ids of their samples and the names of its classes."""

    ids: tuple[str, ...]
    classes: tuple[str, ...]

    def __post_init__(self) -> None:
        rows = len(self.ids)
        if self.labels.shape != (rows,) or self.logits.shape != (rows, len(self.classes)):
            raise DataError(
                f"predictions: {rows} ids, labels of shape {self.labels.shape}, logits of shape {self.logits.shape} "
                f"for {len(self.classes)} classes: the shapes disagree. Fix: run evaluate again"
            )
        if len(set(self.ids)) != rows:
            raise DataError(
                f"predictions: {rows - len(set(self.ids))} ids occur twice. Allowed: one row for each id. Fix: run "
                "ingest again"
            )

    @functools.cached_property
    def probability(self) -> NDArray[np.float32]:
        """Probability of the predicted class, float32 (rows,)."""
        probability: NDArray[np.float32] = np.exp(self.log_probabilities.max(axis=1)).astype(np.float32)
        return probability

    def worst_errors(self, count: int = 24) -> NDArray[np.int64]:
        """Return the rows of the most confident wrong predictions, worst first; ties in the order of rows."""
        wrong = np.flatnonzero(self.score < 1.0)
        return wrong[np.argsort(-self.probability[wrong], kind="stable")][:count]


def check(logits: NDArray[Any], labels: NDArray[Any], *, classes: Sequence[str]) -> None:
    """Raise DataError or TrainingError where nothing can be measured (see `ratchet.evaluation.measure.measure`)."""
    if labels.ndim != 1 or logits.shape != (len(labels), len(classes)):
        raise DataError(
            f"logits of shape {logits.shape} and labels of shape {labels.shape} for {len(classes)} classes: "
            "the model was not trained on the packed data. Fix: run ingest and train again"
        )
    if len(labels) == 0:
        raise DataError("there are no test images. Fix: set data.test_fraction above 0, or add test samples")
    invalid = np.flatnonzero((labels < 0) | (labels >= len(classes)))
    if invalid.size:
        raise DataError(
            f"test row {invalid[0]} has label {labels[invalid[0]]}. Allowed: 0 to {len(classes) - 1}. Fix: run ingest "
            "again"
        )
    infinite = np.flatnonzero(~np.isfinite(logits).all(axis=1))
    if infinite.size:
        raise TrainingError(
            f"the model's outputs for {infinite.size} of {len(labels)} test images (first: row {infinite[0]}) are not "
            "finite numbers: training diverged. Fix: train again with a lower training.learning_rate"
        )


def write_predictions(path: Path, predictions: Predictions) -> None:
    """Write a Parquet file with a row for each test image: id, label, predicted, probability, logits.

    The file is written atomically, and equal predictions give equal bytes.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows, classes = predictions.logits.shape
    logits = pa.ListArray.from_arrays(
        pa.array(np.arange(rows + 1, dtype=np.int32) * classes), pa.array(predictions.logits.astype(np.float32).ravel())
    )
    table = pa.table(
        {
            "id": pa.array(predictions.ids, pa.string()),
            "label": pa.array(predictions.labels, pa.int64()),
            "predicted": pa.array(predictions.predicted, pa.int64()),
            "probability": pa.array(predictions.probability, pa.float32()),
            "logits": logits,
        },
        metadata={_CLASSES_KEY: json.dumps(predictions.classes, ensure_ascii=False).encode()},
    )
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd")
    files.write_bytes(path, sink.getvalue().to_pybytes())


def read_predictions(path: Path) -> Predictions:
    """Read the file that `write_predictions` wrote.

    Raises:
        DataError: the file is missing or damaged, or another program wrote it.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(path)
    except FileNotFoundError:
        raise DataError(f"{path}: file not found. Fix: `dvc repro evaluate` writes it") from None
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path}: cannot be read as Parquet ({first_line(error)}). {_FIX}") from error
    named = (table.schema.metadata or {}).get(_CLASSES_KEY)
    missing = [name for name in _COLUMNS if name not in table.column_names]
    if named is None or missing:
        lacks = f"the columns {', '.join(missing)}" if missing else "the names of the classes"
        raise DataError(f"{path}: lacks {lacks}, so it is not a predictions file. {_FIX}")
    try:
        classes: Sequence[str] = json.loads(named)
        flat = table["logits"].combine_chunks().flatten().to_numpy(zero_copy_only=False)
        predictions = Predictions(
            logits=flat.astype(np.float32).reshape(table.num_rows, len(classes)),
            labels=table["label"].to_numpy().astype(np.int64),
            ids=tuple(table["id"].to_pylist()),
            classes=tuple(classes),
        )
    except (pa.ArrowException, AttributeError, TypeError, ValueError) as error:  # columns of other types
        raise DataError(f"{path}: damaged ({first_line(error)}). {_FIX}") from error
    wrong = [label for label in np.unique(predictions.labels) if not 0 <= label < len(classes)]
    if wrong:
        raise DataError(f"{path}: has the label {wrong[-1]}. Allowed: 0 to {len(classes) - 1}. {_FIX}")
    return predictions
