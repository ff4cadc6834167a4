"""Answers and metrics of a classifier on the test samples."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from ratchet.errors import DataError
from ratchet.evaluation.answers import Answers, Columns, CommonAnswer, ScoreUnit, Validation
from ratchet.evaluation.calibration import CALIBRATION_BINS, Bin, calibration_error, log_softmax, reliability
from ratchet.evaluation.constant_answer import balanced, balanced_accuracy, common
from ratchet.evaluation.headline import intervals, rare_class
from ratchet.evaluation.intervals import Interval, share_difference, share_interval
from ratchet.evaluation.metrics import ConstantResult, Metric, Metrics, NamedMetric
from ratchet.evaluation.robustness import NotMeasured, Robustness
from ratchet.evaluation.slices import slices
from ratchet.problems import Classes
from ratchet.settings.model import EvaluationSettings

__all__ = ["Averages", "ClassAnswers", "ClassMetrics", "ClassificationMetrics"]

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


@dataclass(frozen=True)
class ClassMetrics:
    """Metrics of one class. None: not defined; recall needs samples, precision needs predictions, F1 one of both."""

    name: str
    precision: float | None
    recall: float | None
    f1: float | None
    support: int
    predicted: int
    roc_auc: float | None
    pr_auc: float | None


@dataclass(frozen=True)
class Averages:
    """Means over the classes that occur among labels or predictions; an undefined value counts as 0."""

    precision: float
    recall: float
    f1: float


@dataclass(frozen=True, kw_only=True)
class ClassificationMetrics(Metrics):
    """All metrics of a classifier on the test samples. None: not defined on these samples."""

    problem: Literal["classification"] = "classification"
    headline_key: ClassVar[str] = "accuracy"
    default_metric: ClassVar[str] = "accuracy"
    row_metric: ClassVar[Metric] = Metric("accuracy", share=True)

    # The test samples
    classes: tuple[str, ...]
    k: int  # of top-k accuracy
    threshold: float = 0.5  # probability from which the second of two classes is predicted
    rare: tuple[str, int] | None = None  # class with too few rows for some intervals, and its rows
    # With an interval, which is None also where a class has too few rows
    accuracy: Annotated[Interval, Metric("accuracy", share=True)]
    # None: written before there was this metric
    balanced_accuracy: Annotated[Interval | None, Metric("balanced accuracy", share=True)] = None
    # None where k reaches the number of classes: it would be 1
    top_k: Annotated[Interval | None, Metric("top-{k} accuracy", share=True)]
    macro_f1: Annotated[Interval | None, Metric("macro F1", share=True)]
    roc_auc_interval: Annotated[Interval | None, Metric("ROC-AUC", key="roc_auc")]
    log_loss: Annotated[Interval, Metric("log loss", larger_is_better=False)]
    ece: Annotated[Interval | None, Metric("calibration error (ECE)", larger_is_better=False, share=True)]
    # The rest
    roc_auc: float | None  # one class against the rest, mean over the classes that occur
    pr_auc: float | None  # average precision, mean over the classes that occur
    macro: Averages
    weighted: Averages  # by support
    per_class: tuple[ClassMetrics, ...]
    confusion: tuple[tuple[int, ...], ...]  # [actual][predicted]
    reliability: tuple[Bin, ...]
    robustness: Robustness | NotMeasured

    @property
    def values(self) -> dict[str, float | None]:
        """Further values by name; macro F1 and ROC-AUC also where they have no interval."""
        corrupted = self.robustness.numbers() if isinstance(self.robustness, Robustness) else {}
        return corrupted | {
            "macro_f1": self.macro.f1,
            "roc_auc": self.roc_auc,
            "pr_auc": self.pr_auc,
            "macro_precision": self.macro.precision,
            "macro_recall": self.macro.recall,
            "weighted_f1": self.weighted.f1,
        }

    @property
    def by_output(self) -> tuple[ClassMetrics, ...]:
        return self.per_class


@dataclass(frozen=True)
class ClassAnswers(Answers):
    """Logits (rows, classes) and labels (rows,), with the quantities that follow from each row.

    With more than two classes no threshold is used.
    """

    target: Classes

    metrics: ClassVar[type[Metrics]] = ClassificationMetrics
    best_score: ClassVar[float] = 1.0
    outputs_column: ClassVar[str] = "logits"
    change_terms: ClassVar[tuple[str, str, str]] = ("points in accuracy", "Wrong to right", "right to wrong")

    @staticmethod
    def shapes(target: Classes, rows: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return (rows,), (rows, target.outputs)

    def check_targets(self) -> None:
        invalid = np.flatnonzero((self.targets < 0) | (self.targets >= self.width))
        if invalid.size:
            raise DataError(
                f"test row {invalid[0]} has label {self.targets[invalid[0]]}. Allowed: 0 to {self.width - 1}. Fix: run "
                "ingest again"
            )

    @staticmethod
    def thresholds_for(target: Classes, settings: EvaluationSettings, validation: Validation) -> tuple[float, ...]:
        chosen = settings.threshold
        return () if chosen == "auto" or chosen == 0.5 or len(target.names) != 2 else (chosen,)

    @property
    def threshold(self) -> float:
        """Probability from which the second of two classes is predicted."""
        return self.thresholds[0] if self.thresholds else 0.5

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

    @classmethod
    def mean(cls, values: Floats, confidence: float) -> Interval:
        return share_interval(int(values.sum()), len(values), confidence=confidence)

    @classmethod
    def gap(cls, here: Floats, elsewhere: Floats, confidence: float) -> Interval:
        counts = ((int(values.sum()), len(values)) for values in (here, elsewhere))
        return share_difference(*counts, confidence=confidence)

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
    def metric_inputs(self) -> tuple[Floats, Integers]:
        return self.probabilities, self.labels.astype(np.int64)

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

    @functools.cached_property
    def sureness(self) -> NDArray[np.float32]:
        """Probability of the predicted class, float32 (rows,)."""
        if self.threshold != 0.5:
            return self.confidence.astype(np.float32)
        probability: NDArray[np.float32] = np.exp(self.log_probabilities.max(axis=1)).astype(np.float32)
        return probability

    def worst(self, count: int) -> Integers:
        """Return the rows of the most confident wrong predictions."""
        wrong = np.flatnonzero(self.score < 1.0)
        return wrong[np.argsort(-self.sureness[wrong], kind="stable")][:count]

    def truth_text(self, row: int) -> str:
        return str(self.target.names[self.labels[row]])

    def answer_text(self, row: int) -> str:
        return str(self.target.names[self.predicted[row]])

    @staticmethod
    def target_columns(target: Classes) -> tuple[str, ...]:
        return ("label",)

    @property
    def columns(self) -> dict[str, NDArray[Any]]:
        return {
            "label": self.labels.astype(np.int64),
            "predicted": self.predicted,
            "probability": self.sureness,
        }

    @property
    def counts(self) -> tuple[Integers, NDArray[Any]]:
        """Rows of each class, and how many of them are right."""
        right = np.bincount(self.labels, weights=self.score, minlength=self.width)
        return np.bincount(self.labels, minlength=self.width), right

    def measure(
        self, settings: EvaluationSettings, columns: Columns = MappingProxyType({}), *, seed: int = 0
    ) -> ClassificationMetrics:
        """Return all metrics but robustness.

        Log-loss is computed from the logits in double precision and is not clipped. A class without test images has no
        recall and does not count in the means of ROC-AUC and PR-AUC.
        """
        names, (counts, hits) = self.target.names, self.counts
        per_class, confusion = self._by_class()
        macro, rare = self._averages("macro"), rare_class(counts)
        roc_auc = _mean([row.roc_auc for row in per_class])
        bounds = intervals(self, macro_f1=macro.f1, roc_auc=roc_auc, settings=settings, seed=seed)
        return ClassificationMetrics(
            rows=self.rows,
            classes=tuple(names),
            confidence=settings.confidence,
            k=settings.top_k,
            accuracy=bounds["accuracy"],
            balanced_accuracy=balanced_accuracy(hits, counts, confidence=settings.confidence),
            top_k=bounds.get("top_k"),
            macro_f1=bounds.get("macro_f1"),
            log_loss=bounds["log_loss"],
            ece=bounds.get("ece"),
            roc_auc=roc_auc,
            roc_auc_interval=bounds.get("roc_auc"),
            pr_auc=_mean([row.pr_auc for row in per_class]),
            macro=macro,
            weighted=self._averages("weighted"),
            per_class=per_class,
            confusion=confusion,
            reliability=reliability(self.confidence, self.score, bins=CALIBRATION_BINS),
            slices=slices(self, columns, settings),
            robustness=NotMeasured("only `evaluate` measures it"),
            threshold=self.threshold,
            rare=None if rare is None else (names[rare], int(counts[rare])),
        )

    def slice_metrics(self, settings: EvaluationSettings) -> dict[str, float]:
        labels, predicted = (np.bincount(values, minlength=self.width) for values in (self.labels, self.predicted))
        occurs, (_, hits) = labels + predicted > 0, self.counts
        bins = reliability(self.confidence, self.score, bins=CALIBRATION_BINS)
        return {
            "macro_f1": float((2 * hits[occurs] / (labels + predicted)[occurs]).mean()),
            "log_loss": float(self.losses.mean()),
            "ece": calibration_error(bins),
        }

    def _averages(self, kind: Literal["macro", "weighted"]) -> Averages:
        from sklearn.metrics import precision_recall_fscore_support

        means = precision_recall_fscore_support(self.labels, self.predicted, average=kind, zero_division=0.0)
        return Averages(*map(float, means[:3]))

    def _by_class(self) -> tuple[tuple[ClassMetrics, ...], tuple[tuple[int, ...], ...]]:
        """Return the metrics of each class, and the confusion matrix."""
        from sklearn.metrics import confusion_matrix, precision_recall_fscore_support

        labels, predicted = self.labels, self.predicted
        every_class = np.arange(self.width)
        confusion = confusion_matrix(labels, predicted, labels=every_class)
        predictions = confusion.sum(axis=0)
        precision, recall, f1, support = precision_recall_fscore_support(
            labels, predicted, labels=every_class, zero_division=0.0
        )
        per_class = []
        for number, name in enumerate(self.target.names):
            roc_auc, pr_auc = self._ranking(number)
            row = ClassMetrics(
                name=name,
                precision=float(precision[number]) if predictions[number] else None,
                recall=float(recall[number]) if support[number] else None,
                f1=float(f1[number]) if support[number] + predictions[number] else None,
                support=int(support[number]),
                predicted=int(predictions[number]),
                roc_auc=roc_auc,
                pr_auc=pr_auc,
            )
            per_class.append(row)
        return tuple(per_class), tuple(tuple(row) for row in confusion.tolist())

    def _ranking(self, number: int) -> tuple[float | None, float | None]:
        """Return ROC-AUC and average precision of a class against the rest; None where one side has no images."""
        from sklearn.metrics import average_precision_score, roc_auc_score

        truth, score = self.labels == number, self.probabilities[:, number]
        if not truth.any():
            return None, None
        roc_auc = None if truth.all() else float(roc_auc_score(truth, score))
        return roc_auc, float(average_precision_score(truth, score))

    @property
    def common(self) -> CommonAnswer:
        most = int(np.bincount(self.predicted).argmax())
        return common(repr(self.target.names[most]), self.predicted == most, self.labels == most)

    def against_constant(
        self, settings: EvaluationSettings, headline: NamedMetric, shares: Answers | None = None
    ) -> ConstantResult:
        counts, hits = self.counts
        interval, best = balanced_accuracy(hits, counts, confidence=settings.confidence), int(counts.argmax())
        occurring = counts[counts > 0]
        metric = headline
        if len(set(occurring.tolist())) > 1:
            metric = NamedMetric("balanced_accuracy", "balanced accuracy", interval, share=True)
        name = f"always answering {self.target.names[best]!r}"
        trivial = float(counts[best] / self.rows)
        return balanced(name, headline, trivial, metric, interval, [occurring], settings.confidence)


def _mean(values: Sequence[float | None]) -> float | None:
    defined = [value for value in values if value is not None]
    return float(np.mean(defined)) if defined else None
