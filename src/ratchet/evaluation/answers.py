"""Answers of a model to the test rows: what follows from each row's outputs and targets, for every kind of target.

Each kind has a score per row, for which larger is better: metrics on slices, the gate and the comparison with a
baseline need nothing else. `RowMetric` is the same quantity as people read it, such as the absolute error.
"""

import functools
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from ratchet.errors import DataError
from ratchet.evaluation.calibration import log_softmax
from ratchet.problems import Classes, Labels, Numbers, Target

__all__ = [
    "Answers",
    "ClassAnswers",
    "LabelAnswers",
    "NumberAnswers",
    "PieceAnswers",
    "RowMetric",
    "ScoreUnit",
    "answers_to",
    "in_terms_of",
]

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


@dataclass(frozen=True)
class ScoreUnit:
    """Units in which people read a score: its value times `factor`."""

    name: str  # of the metric, such as "accuracy" or "MAE"
    factor: float = 1.0  # below 0 where smaller values of the metric are better
    share: bool = False  # shown in per cent

    @property
    def larger_is_better(self) -> bool:
        return self.factor > 0


@dataclass(frozen=True)
class RowMetric:
    """A quantity of each row whose mean is a metric.

    Attributes:
        name: of the metric, such as "accuracy" or "MAE".
        values: (rows,).
        larger_is_better: whether a better model has larger values.
        share: values are shares, shown in per cent.
    """

    name: str
    values: Floats
    larger_is_better: bool
    share: bool


@dataclass(frozen=True)
class Answers(ABC):
    """Outputs of a model, float32 (rows, width), and the targets of the same rows."""

    outputs: NDArray[np.float32]
    targets: NDArray[Any]

    @property
    def rows(self) -> int:
        """Number of test rows."""
        return len(self.targets)

    @property
    def width(self) -> int:
        """Number of the model's outputs for a row."""
        return int(self.outputs.shape[1])

    @property
    @abstractmethod
    def score(self) -> Floats:
        """Score of each row, (rows,), larger is better."""

    @property
    @abstractmethod
    def unit(self) -> ScoreUnit:
        """The units in which people read the score."""

    @property
    def row_metric(self) -> RowMetric:
        """The score of each row in these units."""
        unit = self.unit
        return RowMetric(unit.name, unit.factor * self.score, unit.larger_is_better, unit.share)

    def at(self, rows: Integers) -> Self:
        """Return the answers to some of the rows."""
        return replace(self, outputs=self.outputs[rows], targets=self.targets[rows])


@dataclass(frozen=True)
class ClassAnswers(Answers):
    """Logits (rows, classes) and labels (rows,), with the quantities that follow from each row.

    `threshold` is the probability from which the second of two classes is predicted; with more classes it is not used.
    """

    threshold: float = 0.5

    @property
    def logits(self) -> NDArray[np.float32]:
        return self.outputs

    @property
    def labels(self) -> Integers:
        return self.targets

    @functools.cached_property
    def predicted(self) -> Integers:
        """Predicted class, (rows,); of equal logits the first."""
        if self.threshold != 0.5 and self.width == 2:
            return (self.probabilities[:, 1] >= self.threshold).astype(np.int64)
        predicted: Integers = self.logits.argmax(axis=1).astype(np.int64)
        return predicted

    @functools.cached_property
    def score(self) -> Floats:
        """Score of each row, (rows,), larger is better: 1 where the predicted class is the label, else 0."""
        score: Floats = (self.predicted == self.labels).astype(np.float64)
        return score

    @property
    def unit(self) -> ScoreUnit:
        return ScoreUnit("accuracy", share=True)

    @functools.cached_property
    def rank(self) -> Integers:
        """Rank of the right class among the logits, from 0, (rows,); equal logits rank in the order of classes."""
        own = np.take_along_axis(self.logits, self.labels[:, None], axis=1)
        earlier = np.arange(self.width)[None, :] < self.labels[:, None]
        ahead = (self.logits > own) | ((self.logits == own) & earlier)
        rank: Integers = ahead.sum(axis=1)
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

    @functools.cached_property
    def confidence(self) -> Floats:
        """Probability of the predicted class, (rows,)."""
        if self.threshold != 0.5 and self.width == 2:
            return np.take_along_axis(self.probabilities, self.predicted[:, None], axis=1)[:, 0]
        confidence: Floats = self.probabilities.max(axis=1)
        return confidence


@dataclass(frozen=True)
class NumberAnswers(Answers):
    """Outputs in standard deviations of the training targets from their mean, targets in their own units."""

    target: Numbers

    @functools.cached_property
    def predicted(self) -> Floats:
        """Predicted numbers in their own units, (rows, numbers)."""
        return self.target.predictions(self.outputs)

    @functools.cached_property
    def truth(self) -> Floats:
        """True numbers in their own units, (rows, numbers)."""
        return self.targets.astype(np.float64)

    @functools.cached_property
    def error(self) -> Floats:
        """Predicted minus true number, (rows, numbers)."""
        error: Floats = self.predicted - self.truth
        return error

    @functools.cached_property
    def score(self) -> Floats:
        """Score of each row: minus the absolute error in training standard deviations, the mean over the numbers."""
        score: Floats = -(np.abs(self.error) / np.array(self.target.std)).mean(axis=1)
        return score

    @property
    def unit(self) -> ScoreUnit:
        if len(self.target.names) == 1:
            return ScoreUnit("MAE", -self.target.std[0])
        return ScoreUnit("MAE in SD", -1.0)


@dataclass(frozen=True)
class LabelAnswers(Answers):
    """Logits (rows, labels) and targets of 0 or 1. `thresholds` are probabilities, one for each label."""

    target: Labels
    thresholds: tuple[float, ...] = ()  # empty: 0.5 for all

    @functools.cached_property
    def probabilities(self) -> Floats:
        """Probability of each label, (rows, labels)."""
        return self.target.predictions(self.outputs)

    @functools.cached_property
    def truth(self) -> NDArray[np.bool_]:
        """Whether each label applies, (rows, labels)."""
        return self.targets > 0.5

    @functools.cached_property
    def predicted(self) -> NDArray[np.bool_]:
        """Whether each label is predicted, (rows, labels)."""
        predicted: NDArray[np.bool_] = self.probabilities >= np.array(self.thresholds or (0.5,) * self.width)
        return predicted

    @functools.cached_property
    def score(self) -> Floats:
        """Score of each row: share of its labels that are right."""
        score: Floats = (self.predicted == self.truth).mean(axis=1)
        return score

    @property
    def unit(self) -> ScoreUnit:
        return ScoreUnit("right labels", share=True)


@dataclass(frozen=True)
class PieceAnswers(Answers):
    """Losses of the pieces of a token stream.

    Outputs: float32 (pieces, 1), loss of all tokens of the piece, in nats. Targets: int64 (pieces, 3), how many tokens,
    characters and bytes of text the piece has. The pieces must be the same for every model that is compared.
    """

    @functools.cached_property
    def nats(self) -> Floats:
        """Loss of each piece, (pieces,)."""
        return self.outputs[:, 0].astype(np.float64)

    @functools.cached_property
    def score(self) -> Floats:
        """Score of each piece: minus its loss in nats per character, where the mean length of all pieces divides.

        So the mean score is the loss per character of the whole text, whichever tokenizer a model has.
        """
        return -self.nats * self.rows / max(1, int(self.targets[:, 1].sum()))

    @property
    def unit(self) -> ScoreUnit:
        return ScoreUnit("bits per character", -1 / math.log(2))


def answers_to(
    target: Target, outputs: NDArray[np.float32], targets: NDArray[Any], *, thresholds: tuple[float, ...] = ()
) -> Answers:
    """Return the answers for a kind of target.

    Args:
        target: of the model.
        outputs: of the model, (rows, width).
        targets: as in the packed set; for the next token see `PieceAnswers`.
        thresholds: probabilities from which the second of two classes, or each label, is predicted; empty: 0.5.
    """
    match target:
        case Classes():
            return ClassAnswers(outputs, targets, *thresholds)
        case Numbers():
            return NumberAnswers(outputs, targets, target)
        case Labels():
            return LabelAnswers(outputs, targets, target, thresholds)
        case _:
            return PieceAnswers(outputs, targets)


def in_terms_of(ours: Target, outputs: NDArray[np.float32], theirs: Target) -> NDArray[np.float32]:
    """Return another model's outputs as outputs for our target: its columns by name, its numbers in our scale.

    Args:
        ours: target of the data.
        outputs: of the other model, (rows, its width).
        theirs: target of the other model.

    Raises:
        DataError: it predicts something else.
    """
    names, known = (getattr(target, "names", ()) for target in (ours, theirs))
    if ours.problem != theirs.problem or set(names) != set(known):
        raise DataError(
            f"it predicts {theirs.problem} of {', '.join(known) or 'tokens'}, and these data have {ours.problem} of "
            f"{', '.join(names) or 'tokens'}. Fix: train both on the same targets"
        )
    if not names:
        return outputs
    order = [known.index(name) for name in names]
    if isinstance(ours, Numbers) and isinstance(theirs, Numbers):
        own = theirs.predictions(outputs)[:, order]
        scaled: NDArray[np.float32] = ((own - np.array(ours.mean)) / np.array(ours.std)).astype(np.float32)
        return scaled
    reordered: NDArray[np.float32] = outputs[:, order]
    return reordered
