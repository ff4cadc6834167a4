"""Answers of a model to the test rows: what follows from each row's outputs and targets. Each problem has a class.

It has a score for each row, for which larger is better: slices, the gate and the comparison with a baseline need
nothing else. `values` are the same quantity as people read it, such as the absolute error.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from ratchet.errors import DataError, TrainingError
from ratchet.evaluation.intervals import Interval, difference_of, mean_of
from ratchet.evaluation.metrics import ConstantResult, Metrics, NamedMetric
from ratchet.settings.model import EvaluationSettings

__all__ = ["Answers", "Columns", "CommonAnswer", "ScoreUnit", "Validation"]

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Columns = Mapping[str, Sequence[str | None]]
Validation = Callable[[], tuple[NDArray[np.float32], NDArray[Any]]]


@dataclass(frozen=True)
class ScoreUnit:
    """Units in which people read a score: its value times `factor`."""

    name: str  # of the metric, such as "accuracy" or "MAE"
    factor: float = 1.0  # below 0 where smaller values of the metric are better
    share: bool = False  # shown in per cent

    @property
    def larger_is_better(self) -> bool:
        return self.factor > 0

    def metric(self, key: str, interval: Interval) -> NamedMetric:
        """Return a mean in these units."""
        return NamedMetric(key, self.name, interval, self.larger_is_better, self.share)


@dataclass(frozen=True)
class CommonAnswer:
    """The answer that a model gives most often.

    Attributes:
        to_nearly_all: the model gives it to nearly all rows, though the truth is another on clearly more of them.
    """

    text: str
    rows: int
    to_nearly_all: bool


@dataclass(frozen=True)
class Answers(ABC):
    """Outputs of a model, float32 (rows, width), and the targets of the same rows.

    `thresholds` are probabilities from which the second of two classes, or each label, is predicted; empty: 0.5.
    """

    outputs: NDArray[np.float32]
    targets: NDArray[Any]
    target: Any  # of the problem
    thresholds: tuple[float, ...] = ()

    metrics: ClassVar[type[Metrics]]
    own_thresholds: ClassVar[bool] = False  # each model has its own, by its validation samples
    best_score: ClassVar[float] = 0.0  # of a row that is right
    outputs_column: ClassVar[str] = "outputs"  # of the file of predictions
    # Hundredths of the score as people read them, and what it is for a sample to become better or worse
    change_terms: ClassVar[tuple[str, str, str]]

    @property
    def rows(self) -> int:
        """Number of test rows."""
        return len(self.targets)

    @property
    def width(self) -> int:
        """Number of the model's outputs for a row."""
        return int(self.outputs.shape[1])

    @staticmethod
    def shapes(target: Any, rows: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the shapes of the targets and of the outputs of so many rows."""
        return (rows, target.outputs), (rows, target.outputs)

    def check(self, model: str) -> None:
        """Check that the answers can be measured. `model` names it in errors.

        Raises:
            DataError: there are no test rows, or a target is not possible.
            TrainingError: an output is not a finite number.
        """
        if not self.rows:
            raise DataError("there are no test rows. Fix: set data.test_fraction above 0, or add test samples")
        self.check_targets()
        infinite = np.flatnonzero(~np.isfinite(self.outputs).all(axis=1))
        if infinite.size:
            raise TrainingError(
                f"{model}'s outputs for {infinite.size} of {self.rows} test samples (first: row {infinite[0]}) are not "
                "finite numbers: training diverged. Fix: train again with a lower training.learning_rate"
            )

    def check_targets(self) -> None:
        """Check that every target is possible."""
        unknown = np.flatnonzero(~np.isfinite(self.targets).all(axis=1))
        if unknown.size:
            raise DataError(f"test row {unknown[0]} has a target that is not a finite number. Fix: run ingest again")

    @staticmethod
    def thresholds_for(target: Any, settings: EvaluationSettings, validation: Validation) -> tuple[float, ...]:
        """Return the probabilities from which the second of two classes, or each label, is predicted; empty: 0.5.

        Args:
            validation: returns outputs and targets of the validation samples; called only where they decide.
        """
        return ()

    # Scores

    @property
    @abstractmethod
    def score(self) -> Floats:
        """Score of each row, (rows,), larger is better."""

    @property
    @abstractmethod
    def unit(self) -> ScoreUnit:
        """The units in which people read the score."""

    @property
    def values(self) -> Floats:
        """The score of each row in these units, (rows,), such as the absolute error."""
        return self.unit.factor * self.score

    @classmethod
    def mean(cls, values: Floats, confidence: float) -> Interval:
        """Return the mean of some rows' values with its interval."""
        return mean_of(values, confidence=confidence)

    @classmethod
    def gap(cls, here: Floats, elsewhere: Floats, confidence: float) -> Interval:
        """Return the mean of values minus the mean of others, with its interval."""
        return difference_of(mean_of(here, confidence=confidence), mean_of(elsewhere, confidence=confidence))

    def headline(self, key: str, confidence: float) -> NamedMetric:
        """Return the mean value of all rows."""
        return self.unit.metric(key, self.mean(self.values, confidence))

    @property
    @abstractmethod
    def metric_inputs(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """Predictions and targets as a metric of the user gets them; docs/evaluation.md has shapes and types."""

    def at(self, rows: Integers) -> Self:
        """Return the answers to some of the rows."""
        return replace(self, outputs=self.outputs[rows], targets=self.targets[rows])

    # Metrics

    @abstractmethod
    def measure(
        self, settings: EvaluationSettings, columns: Columns = MappingProxyType({}), *, seed: int = 0
    ) -> Metrics:
        """Return all metrics but robustness and the comparisons with the baseline and the best constant answer.

        Args:
            columns: by name, the value of each row to slice by; None: the row is in no slice of that column.
        """

    def slice_metrics(self, settings: EvaluationSettings) -> dict[str, float]:
        """Return further metrics of a slice, whose answers these are."""
        return {}

    @property
    def common(self) -> CommonAnswer | None:
        """The most frequent answer; None for pieces of text, of which only losses are known."""
        return None

    @abstractmethod
    def against_constant(
        self, settings: EvaluationSettings, headline: NamedMetric, shares: "Answers | None" = None
    ) -> ConstantResult:
        """Return the comparison with the best constant answer to the same rows.

        Args:
            shares: of pieces of text: the answers of a model that knows only how frequent each token of this text is.
        """

    # For people and files

    @property
    def predicted(self) -> NDArray[Any]:
        """The answer to each row, such as the predicted class."""
        return self.outputs

    @abstractmethod
    def truth_text(self, row: int) -> str:
        """Return the target of a row as text."""

    @abstractmethod
    def answer_text(self, row: int) -> str:
        """Return the prediction for a row as text."""

    @property
    def sureness(self) -> NDArray[np.float32] | None:
        """Probability of the predicted class, (rows,); None: it does not predict classes."""
        return None

    def worst(self, count: int) -> Integers:
        """Return the rows of the worst predictions, worst first; ties in the order of rows, without perfect ones."""
        order = np.argsort(self.score, kind="stable")[:count]
        return order[self.score[order] < self.best_score]

    @staticmethod
    @abstractmethod
    def target_columns(target: Any) -> tuple[str, ...]:
        """Return the columns of the file of predictions that hold the targets."""

    @property
    def columns(self) -> dict[str, NDArray[Any]]:
        """Columns of the file of predictions between the id and the outputs, in their order."""
        return dict(zip(self.target_columns(self.target), self.targets.T, strict=True))
