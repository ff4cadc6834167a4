"""Predictions of a model for the test rows, and the file that keeps them for later comparisons."""

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ratchet import files
from ratchet.errors import DataError, first_line
from ratchet.evaluation.answers import Answers
from ratchet.evaluation.problems import ANSWERS, answers_to
from ratchet.kinds import to_json
from ratchet.problems import Classes, Target, target_from_json

__all__ = ["Predictions", "read_predictions", "write_predictions"]

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

_CLASSES_KEY = b"ratchet.classes"  # of files that were written when there were only classes
_TARGET_KEY = b"ratchet.target"
_THRESHOLDS_KEY = b"ratchet.thresholds"
_FIX = "Fix: `dvc repro evaluate`"


@dataclass(frozen=True)
class Predictions:
    """Outputs of one model for the test rows, with their targets and ids.

    Attributes:
        outputs: float32 (rows, width), as the model returns them; for the next token see `PieceAnswers`.
        thresholds: probabilities from which the second of two classes, or each label, is predicted; empty: 0.5.
    """

    outputs: NDArray[np.float32]
    targets: NDArray[Any]
    ids: tuple[str, ...]
    target: Target
    thresholds: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        rows = len(self.ids)
        if (self.targets.shape, self.outputs.shape) != ANSWERS[self.target.problem].shapes(self.target, rows):
            raise DataError(
                f"predictions: {rows} ids, targets of shape {self.targets.shape}, outputs of shape "
                f"{self.outputs.shape} for {self.target.description}: the shapes disagree. Fix: run evaluate again"
            )
        if len(set(self.ids)) != rows:
            raise DataError(
                f"predictions: {rows - len(set(self.ids))} ids occur twice. Allowed: one row for each id. Fix: run "
                "ingest again"
            )

    @functools.cached_property
    def answers(self) -> Answers:
        """The quantities that follow from each row."""
        return answers_to(self.target, self.outputs, self.targets, thresholds=self.thresholds)

    def checked(self, model: str = "the model") -> Answers:
        """Return the answers if they can be measured; see `Answers.check`."""
        self.answers.check(model)
        return self.answers

    @property
    def score(self) -> Floats:
        """Score of each row, (rows,), larger is better."""
        return self.answers.score

    def worst_errors(self, count: int = 24) -> Integers:
        """Return the rows of the worst predictions, worst first; see `Answers.worst`."""
        return self.answers.worst(count)

    def sureness(self, row: int) -> float | None:
        """Return the probability of the predicted class of a row; None: it does not predict classes."""
        sureness = self.answers.sureness
        return None if sureness is None else float(sureness[row])

    def truth(self, row: int) -> str:
        """Return the target of a row as text."""
        return self.answers.truth_text(row)

    def answer(self, row: int) -> str:
        """Return the prediction for a row as text."""
        return self.answers.answer_text(row)


def write_predictions(path: Path, predictions: Predictions) -> None:
    """Write a Parquet file with a line for each test row.

    Its columns are id and then, for classes: label, predicted, probability, logits; for numbers: "target NAME" and
    "predicted NAME" of each number; for labels: "target NAME" and "probability NAME" of each label; for pieces of text:
    tokens, characters, bytes. All but classes end with outputs, from which everything else follows. The file is
    written atomically, and equal predictions give equal bytes.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    answers, (rows, width) = predictions.answers, predictions.outputs.shape
    outputs = pa.ListArray.from_arrays(
        pa.array(np.arange(rows + 1, dtype=np.int32) * width), pa.array(predictions.outputs.astype(np.float32).ravel())
    )
    columns = {"id": pa.array(predictions.ids, pa.string())} | {
        name: pa.array(column) for name, column in answers.columns.items()
    }
    metadata = {_TARGET_KEY: _json(to_json(predictions.target))}
    if predictions.thresholds:
        metadata[_THRESHOLDS_KEY] = _json(predictions.thresholds)
    table = pa.table({**columns, answers.outputs_column: outputs}, metadata=metadata)
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd")
    files.write_bytes(path, sink.getvalue().to_pybytes())


def _json(content: object) -> bytes:
    return json.dumps(content, ensure_ascii=False).encode()


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
    try:
        target, thresholds = _target(table.schema.metadata or {})
        answers = ANSWERS[target.problem]
        required = ["id", *answers.target_columns(target), answers.outputs_column]
        missing = [name for name in required if name not in table.column_names]
        if missing or not target.outputs:
            lacks = f"the columns {', '.join(missing)}" if missing else "the names of the classes"
            raise DataError(f"lacks {lacks}, so it is not a predictions file. {_FIX}")
        flat = table[answers.outputs_column].combine_chunks().flatten().to_numpy(zero_copy_only=False)
        targets, outputs = answers.shapes(target, table.num_rows)
        predictions = Predictions(
            outputs=flat.astype(np.float32).reshape(outputs),
            targets=np.stack([table[name].to_numpy() for name in required[1:-1]], axis=1).reshape(targets),
            ids=tuple(table["id"].to_pylist()),
            target=target,
            thresholds=thresholds,
        )
        predictions.answers.check_targets()
    except DataError as error:
        raise DataError(f"{path}: {error}") from error
    except (pa.ArrowException, AttributeError, KeyError, TypeError, ValueError) as error:  # columns of other types
        raise DataError(f"{path}: damaged ({first_line(error)}). {_FIX}") from error
    return predictions


def _target(metadata: Mapping[bytes, bytes]) -> tuple[Target, tuple[float, ...]]:
    """Return target and thresholds; no classes where the file is no predictions file."""
    thresholds = tuple(json.loads(metadata.get(_THRESHOLDS_KEY, b"[]")))
    if _TARGET_KEY in metadata:
        return target_from_json(json.loads(metadata[_TARGET_KEY])), thresholds
    return Classes(tuple(json.loads(metadata.get(_CLASSES_KEY, b"[]")))), thresholds
