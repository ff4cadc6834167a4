"""Predictions of a model for the test rows, and the file that keeps them for later comparisons."""

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ratchet import files
from ratchet.errors import DataError, TrainingError, first_line
from ratchet.evaluation.answers import Answers, ClassAnswers, LabelAnswers, NumberAnswers, PieceAnswers, answers_to
from ratchet.kinds import to_json
from ratchet.problems import Classes, Labels, NextToken, Target, target_from_json

__all__ = ["Predictions", "check_classes", "read_predictions", "write_predictions"]

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

_COLUMNS = ("id", "label", "predicted", "probability")
_SIZES = ("tokens", "characters", "bytes")
_CLASSES_KEY = b"ratchet.classes"  # for classes, as before there were other targets
_TARGET_KEY = b"ratchet.target"
_THRESHOLDS_KEY = b"ratchet.thresholds"
_FIX = "Fix: `dvc repro evaluate`"


@dataclass(frozen=True)
class Predictions:
    """Outputs of one model for the test rows, with their targets and ids.

    Attributes:
        outputs: float32 (rows, width), as the model returns them; for the next token see `PieceAnswers`.
        targets: as in the packed set, one for each row.
        ids: of the samples.
        target: of the model.
        thresholds: probabilities from which the second of two classes, or each label, is predicted; empty: 0.5.
    """

    outputs: NDArray[np.float32]
    targets: NDArray[Any]
    ids: tuple[str, ...]
    target: Target
    thresholds: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        rows, targets = len(self.ids), _shape(self.target, len(self.ids))
        width = 1 if isinstance(self.target, NextToken) else self.target.outputs
        if self.targets.shape != targets or self.outputs.shape != (rows, width):
            raise DataError(
                f"predictions: {rows} ids, targets of shape {self.targets.shape}, outputs of shape "
                f"{self.outputs.shape} for {_described(self.target)}: the shapes disagree. Fix: run evaluate again"
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
        """Return the answers if they can be measured. `model` names it in errors.

        Raises:
            DataError: there are no test rows, or a target is not possible.
            TrainingError: an output is not a finite number.
        """
        if isinstance(self.target, Classes):
            check_classes(self.outputs, self.targets, classes=self.target.names, model=model)
        else:
            _check(self.outputs, self.targets, model)
        return self.answers

    @property
    def score(self) -> Floats:
        """Score of each row, (rows,), larger is better."""
        return self.answers.score

    @property
    def of_classes(self) -> ClassAnswers:
        """The answers of a classifier."""
        assert isinstance(self.answers, ClassAnswers), "asked only where the target is classes"
        return self.answers

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes."""
        assert isinstance(self.target, Classes), "asked only where the target is classes"
        return self.target.names

    @property
    def logits(self) -> NDArray[np.float32]:
        """Logits of a classifier, (rows, classes)."""
        return self.of_classes.logits

    @property
    def labels(self) -> Integers:
        """Labels of a classifier's rows, (rows,)."""
        return self.of_classes.labels

    @property
    def predicted(self) -> Integers:
        """Predicted classes, (rows,)."""
        return self.of_classes.predicted

    @functools.cached_property
    def probability(self) -> NDArray[np.float32]:
        """Probability of the predicted class, float32 (rows,)."""
        answers = self.of_classes
        if answers.threshold != 0.5:
            return answers.confidence.astype(np.float32)
        probability: NDArray[np.float32] = np.exp(answers.log_probabilities.max(axis=1)).astype(np.float32)
        return probability

    def worst_errors(self, count: int = 24) -> Integers:
        """Return the rows of the worst predictions, worst first; ties in the order of rows.

        Of classes: the most confident wrong ones. Otherwise: the rows with the lowest scores, without perfect ones.
        """
        if isinstance(self.target, Classes):
            wrong = np.flatnonzero(self.score < 1.0)
            return wrong[np.argsort(-self.probability[wrong], kind="stable")][:count]
        order = np.argsort(self.score, kind="stable")[:count]
        best = 1.0 if isinstance(self.target, Labels) else 0.0
        return order[self.score[order] < best]

    def sureness(self, row: int) -> float | None:
        """Return the probability of the predicted class of a row; None: it does not predict classes."""
        return float(self.probability[row]) if isinstance(self.target, Classes) else None

    def truth(self, row: int) -> str:
        """Return the target of a row as text."""
        match self.answers:
            case NumberAnswers() as numbers:
                return _written(numbers.truth[row])
            case LabelAnswers() as labels:
                return _chosen(labels.target, labels.truth[row])
            case PieceAnswers():
                return f"{self.targets[row, 1]:,} characters"
        return str(self.classes[self.labels[row]])

    def answer(self, row: int) -> str:
        """Return the prediction for a row as text."""
        match self.answers:
            case NumberAnswers() as numbers:
                return _written(numbers.predicted[row])
            case LabelAnswers() as labels:
                return _chosen(labels.target, labels.predicted[row])
            case PieceAnswers() as pieces:
                return f"{pieces.row_metric.values[row]:.2f} bits per character"
        return str(self.classes[self.predicted[row]])


def _shape(target: Target, rows: int) -> tuple[int, ...]:
    """Return the shape of the targets of so many rows."""
    match target:
        case Classes():
            return (rows,)
        case NextToken():
            return rows, 3
        case _:
            return rows, len(target.names)


def _described(target: Target) -> str:
    return f"{target.outputs} classes" if isinstance(target, Classes) else f"{target.outputs} outputs"


def _written(values: Floats) -> str:
    return ", ".join(f"{value:.6g}" for value in values)


def _chosen(target: Labels, mask: NDArray[np.bool_]) -> str:
    return ", ".join(name for name, applies in zip(target.names, mask, strict=True) if applies) or "none"


def check_classes(
    logits: NDArray[Any], labels: NDArray[Any], *, classes: Sequence[str], model: str = "the model"
) -> None:
    """Raise DataError or TrainingError where nothing can be measured (see `ratchet.evaluation.measure.measure`)."""
    if labels.ndim != 1 or logits.shape != (len(labels), len(classes)):
        raise DataError(
            f"logits of shape {logits.shape} and labels of shape {labels.shape} for {len(classes)} classes: "
            "the model was not trained on the packed data. Fix: run ingest and train again"
        )
    if len(labels) == 0:
        raise DataError("there are no test samples. Fix: set data.test_fraction above 0, or add test samples")
    invalid = np.flatnonzero((labels < 0) | (labels >= len(classes)))
    if invalid.size:
        raise DataError(
            f"test row {invalid[0]} has label {labels[invalid[0]]}. Allowed: 0 to {len(classes) - 1}. Fix: run ingest "
            "again"
        )
    _check_finite(logits, model)


def _check(outputs: NDArray[np.float32], targets: NDArray[Any], model: str) -> None:
    """Raise DataError or TrainingError where nothing can be measured."""
    if len(targets) == 0:
        raise DataError("there are no test rows. Fix: set data.test_fraction above 0, or add test samples")
    unknown = np.flatnonzero(~np.isfinite(targets).all(axis=1))
    if unknown.size:
        raise DataError(f"test row {unknown[0]} has a target that is not a finite number. Fix: run ingest again")
    _check_finite(outputs, model)


def _check_finite(outputs: NDArray[Any], model: str) -> None:
    infinite = np.flatnonzero(~np.isfinite(outputs).all(axis=1))
    if infinite.size:
        raise TrainingError(
            f"{model}'s outputs for {infinite.size} of {len(outputs)} test samples (first: row {infinite[0]}) are not "
            "finite numbers: training diverged. Fix: train again with a lower training.learning_rate"
        )


def write_predictions(path: Path, predictions: Predictions) -> None:
    """Write a Parquet file with a line for each test row.

    Its columns are id and then, for classes: label, predicted, probability, logits; for numbers: "target NAME" and
    "predicted NAME" of each number; for labels: "target NAME" and "probability NAME" of each label; for pieces of text:
    tokens, characters, bytes. All but classes end with outputs, from which everything else follows. The file is
    written atomically, and equal predictions give equal bytes.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows, width = predictions.outputs.shape
    outputs = pa.ListArray.from_arrays(
        pa.array(np.arange(rows + 1, dtype=np.int32) * width), pa.array(predictions.outputs.astype(np.float32).ravel())
    )
    columns = {"id": pa.array(predictions.ids, pa.string())} | _columns(predictions)
    metadata = {_TARGET_KEY: _json(to_json(predictions.target))}
    if is_classes := isinstance(predictions.target, Classes):
        metadata = {_CLASSES_KEY: _json(predictions.classes)}
    if predictions.thresholds:
        metadata[_THRESHOLDS_KEY] = _json(predictions.thresholds)
    table = pa.table({**columns, "logits" if is_classes else "outputs": outputs}, metadata=metadata)
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd")
    files.write_bytes(path, sink.getvalue().to_pybytes())


def _json(content: object) -> bytes:
    return json.dumps(content, ensure_ascii=False).encode()


def _columns(predictions: Predictions) -> dict[str, Any]:
    """Return the columns between the id and the outputs, in their order."""
    import pyarrow as pa

    match predictions.answers:
        case NumberAnswers() as numbers:
            names, values = numbers.target.names, {"target": numbers.targets, "predicted": numbers.predicted}
        case LabelAnswers() as labels:
            names, values = labels.target.names, {"target": labels.targets, "probability": labels.probabilities}
        case PieceAnswers():
            names, values = _SIZES, {"": predictions.targets}
        case _:
            return {
                "label": pa.array(predictions.labels, pa.int64()),
                "predicted": pa.array(predictions.predicted, pa.int64()),
                "probability": pa.array(predictions.probability, pa.float32()),
            }
    return {
        f"{kind} {name}".strip(): pa.array(column[:, number])
        for number, name in enumerate(names)
        for kind, column in values.items()
    }


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
        names = _target_columns(target)
        outputs = "logits" if isinstance(target, Classes) else "outputs"
        required = (*_COLUMNS, outputs) if isinstance(target, Classes) else ("id", *names, outputs)
        missing = [name for name in required if name not in table.column_names]
        if missing or not target.outputs:
            lacks = f"the columns {', '.join(missing)}" if missing else "the names of the classes"
            raise DataError(f"{path}: lacks {lacks}, so it is not a predictions file. {_FIX}")
        flat = table[outputs].combine_chunks().flatten().to_numpy(zero_copy_only=False)
        width = 1 if isinstance(target, NextToken) else target.outputs
        columns = [table[name].to_numpy() for name in names]
        predictions = Predictions(
            outputs=flat.astype(np.float32).reshape(table.num_rows, width),
            targets=columns[0].astype(np.int64) if isinstance(target, Classes) else np.stack(columns, axis=1),
            ids=tuple(table["id"].to_pylist()),
            target=target,
            thresholds=thresholds,
        )
    except (pa.ArrowException, AttributeError, KeyError, TypeError, ValueError) as error:  # columns of other types
        raise DataError(f"{path}: damaged ({first_line(error)}). {_FIX}") from error
    if not isinstance(target, Classes):
        return predictions
    wrong = [label for label in np.unique(predictions.labels) if not 0 <= label < len(target.names)]
    if wrong:
        raise DataError(f"{path}: has the label {wrong[-1]}. Allowed: 0 to {len(target.names) - 1}. {_FIX}")
    return predictions


def _target(metadata: Mapping[bytes, bytes]) -> tuple[Target, tuple[float, ...]]:
    """Return target and thresholds; no classes where the file is no predictions file."""
    thresholds = tuple(json.loads(metadata.get(_THRESHOLDS_KEY, b"[]")))
    if _TARGET_KEY in metadata:
        return target_from_json(json.loads(metadata[_TARGET_KEY])), thresholds
    return Classes(tuple(json.loads(metadata.get(_CLASSES_KEY, b"[]")))), thresholds


def _target_columns(target: Target) -> tuple[str, ...]:
    match target:
        case Classes():
            return ("label",)
        case NextToken():
            return _SIZES
        case _:
            return tuple(f"target {name}" for name in target.names)
