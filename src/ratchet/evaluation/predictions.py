"""Predictions for every test image, stored so that later comparisons can be made image by image."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ratchet import files
from ratchet.errors import DataError, first_line
from ratchet.evaluation.calibration import log_softmax

__all__ = ["Predictions", "read_predictions", "write_predictions"]

_COLUMNS = ("id", "label", "predicted", "probability", "logits")
_CLASSES_KEY = b"ratchet.classes"


@dataclass(frozen=True)
class Predictions:
    """Predictions of one model: sample ids, labels int64 (rows,), logits float32 (rows, classes), class names."""

    ids: tuple[str, ...]
    labels: NDArray[np.int64]
    logits: NDArray[np.float32]
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

    @property
    def predicted(self) -> NDArray[np.int64]:
        """Predicted class, (rows,); of equal logits the first."""
        predicted: NDArray[np.int64] = self.logits.argmax(axis=1).astype(np.int64)
        return predicted

    @property
    def correct(self) -> NDArray[np.bool_]:
        """Whether the predicted class is the label, (rows,)."""
        correct: NDArray[np.bool_] = self.predicted == self.labels
        return correct

    @property
    def probability(self) -> NDArray[np.float32]:
        """Probability of the predicted class, float32 (rows,)."""
        probability: NDArray[np.float32] = np.exp(log_softmax(self.logits).max(axis=1)).astype(np.float32)
        return probability

    def worst_errors(self, count: int = 24) -> NDArray[np.int64]:
        """Return the rows of the most confident wrong predictions, worst first; ties in the order of rows."""
        wrong = np.flatnonzero(~self.correct)
        return wrong[np.argsort(-self.probability[wrong], kind="stable")][:count]


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
        raise DataError(
            f"{path}: cannot be read as Parquet ({first_line(error)}). Fix: `dvc repro evaluate`"
        ) from error
    named = (table.schema.metadata or {}).get(_CLASSES_KEY)
    missing = [name for name in _COLUMNS if name not in table.column_names]
    if named is None or missing:
        lacks = f"the columns {', '.join(missing)}" if missing else "the names of the classes"
        raise DataError(f"{path}: lacks {lacks}, so it is not a predictions file. Fix: `dvc repro evaluate`")
    try:
        classes: Sequence[str] = json.loads(named)
        flat = table["logits"].combine_chunks().flatten().to_numpy(zero_copy_only=False)
        predictions = Predictions(
            ids=tuple(table["id"].to_pylist()),
            labels=table["label"].to_numpy().astype(np.int64),
            logits=flat.astype(np.float32).reshape(table.num_rows, len(classes)),
            classes=tuple(classes),
        )
    except (pa.ArrowException, AttributeError, TypeError, ValueError) as error:  # columns of other types
        raise DataError(f"{path}: damaged ({first_line(error)}). Fix: `dvc repro evaluate`") from error
    labels = predictions.labels
    if labels.size and not 0 <= labels.min() <= labels.max() < len(classes):
        raise DataError(
            f"{path}: has the label {labels.max() if labels.max() >= len(classes) else labels.min()}. Allowed: 0 to "
            f"{len(classes) - 1}. Fix: `dvc repro evaluate`"
        )
    return predictions
