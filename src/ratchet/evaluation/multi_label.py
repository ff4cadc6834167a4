"""Answers and metrics of predicted labels on the test samples, and the thresholds from which a label is predicted."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from ratchet.evaluation.answers import Answers, Columns, CommonAnswer, ScoreUnit, Validation
from ratchet.evaluation.constant_answer import balanced, balanced_accuracy, common
from ratchet.evaluation.headline import FEW_ROWS, rare_class
from ratchet.evaluation.intervals import Interval, share_interval
from ratchet.evaluation.jackknife import RowMetric, RowTerms
from ratchet.evaluation.metrics import ConstantResult, Metric, Metrics, NamedMetric
from ratchet.evaluation.slices import slices
from ratchet.problems import Labels
from ratchet.settings.model import EvaluationSettings

__all__ = ["LabelAnswers", "LabelMetrics", "MultiLabelMetrics", "fit_thresholds"]

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class LabelMetrics:
    """Metrics of one label. None: not defined; recall needs samples, precision needs predictions, F1 one of both."""

    name: str
    threshold: float  # probability from which it is predicted
    precision: float | None
    recall: float | None
    f1: float | None
    support: int
    predicted: int
    roc_auc: float | None
    f1_interval: Interval | None = None  # None also where too few rows have the label


@dataclass(frozen=True, kw_only=True)
class MultiLabelMetrics(Metrics):
    """All metrics of predicted labels on the test samples."""

    problem: Literal["multi-label"] = "multi-label"
    headline_key: ClassVar[str] = "micro_f1"
    default_metric: ClassVar[str] = "micro_f1"
    row_metric: ClassVar[Metric] = Metric("right labels", share=True)

    # Over all pairs of a sample and a label
    micro_f1: Annotated[Interval, Metric("micro F1", share=True)]
    # Mean over the labels that occur among targets or predictions
    macro_f1: Annotated[Interval | None, Metric("macro F1", share=True)]
    # Share of samples all of whose labels are right
    exact_match: Annotated[Interval, Metric("exact match", share=True)]
    # Share of all pairs of a sample and a label that are right
    right_labels: Annotated[Interval, Metric("right labels", share=True)]
    roc_auc: float | None  # mean over the labels that have both kinds of samples
    per_label: tuple[LabelMetrics, ...]

    @property
    def values(self) -> dict[str, float | None]:
        return {"roc_auc": self.roc_auc, "macro_f1": self.macro}

    @property
    def macro(self) -> float | None:
        """Macro F1, which may have no interval; None: no label occurs."""
        values = [label.f1 for label in self.per_label if label.f1 is not None]
        return float(np.mean(values)) if values else None

    @property
    def by_output(self) -> tuple[LabelMetrics, ...]:
        return self.per_label


@dataclass(frozen=True)
class LabelAnswers(Answers):
    """Logits (rows, labels) and targets of 0 or 1, (rows, labels)."""

    target: Labels

    metrics: ClassVar[type[Metrics]] = MultiLabelMetrics
    own_thresholds: ClassVar[bool] = True
    change_terms: ClassVar[tuple[str, str, str]] = ("points in the share of right labels", "More labels right", "fewer")
    best_score: ClassVar[float] = 1.0

    @staticmethod
    def thresholds_for(target: Labels, settings: EvaluationSettings, validation: Validation) -> tuple[float, ...]:
        if settings.threshold != "auto":
            return (settings.threshold,) * len(target.names)
        outputs, targets = validation()
        return fit_thresholds(target.predictions(outputs), targets)

    @functools.cached_property
    def probabilities(self) -> Floats:
        """Probability of each label, (rows, labels)."""
        return self.target.predictions(self.outputs)

    @functools.cached_property
    def truth(self) -> NDArray[np.bool_]:
        """Whether each label applies, (rows, labels)."""
        return self.targets > 0.5

    @property
    def metric_inputs(self) -> tuple[Floats, NDArray[np.int64]]:
        return self.probabilities, self.truth.astype(np.int64)

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

    def truth_text(self, row: int) -> str:
        return ", ".join(self._names(self.truth[row])) or "none"

    def answer_text(self, row: int) -> str:
        return ", ".join(self._names(self.predicted[row])) or "none"

    def _names(self, chosen: NDArray[np.bool_]) -> list[str]:
        return [name for name, applies in zip(self.target.names, chosen, strict=True) if applies]

    @staticmethod
    def target_columns(target: Labels) -> tuple[str, ...]:
        return tuple(f"target {name}" for name in target.names)

    @property
    def columns(self) -> dict[str, NDArray[Any]]:
        pairs = zip(self.target.names, self.targets.T, self.probabilities.T, strict=True)
        return {
            column: values
            for name, target, probability in pairs
            for column, values in ((f"target {name}", target), (f"probability {name}", probability))
        }

    def measure(
        self, settings: EvaluationSettings, columns: Columns = MappingProxyType({}), *, seed: int = 0
    ) -> MultiLabelMetrics:
        truth, predicted = self.truth, self.predicted
        terms = np.stack([truth & predicted, truth.astype(np.int64) + predicted, truth == predicted], axis=2)
        rows = RowTerms(terms.reshape(self.rows, -1).astype(np.float64), settings.confidence)
        per_label = tuple(self._label(rows, number, name) for number, name in enumerate(self.target.names))
        areas = [label.roc_auc for label in per_label if label.roc_auc is not None]
        support, (hits, either, _) = truth.sum(axis=0), terms.sum(axis=(0, 1))
        micro = rows.interval(lambda means: _f1(means[..., 0::3].sum(-1), means[..., 1::3].sum(-1)), "share")
        macro = rows.interval(lambda means: _mean(_f1(means[..., 0::3], means[..., 1::3])), "share")
        few, is_edge = support.sum() < FEW_ROWS, hits in (0, either - hits)
        if micro and (few or is_edge):
            micro = _few_f1(int(hits), int(either), settings.confidence)
        exact = int((truth == predicted).all(axis=1).sum())
        return MultiLabelMetrics(
            rows=self.rows,
            confidence=settings.confidence,
            micro_f1=_defined(micro),
            macro_f1=None if few or rare_class(support) is not None else micro if is_edge else macro,
            right_labels=_defined(rows.interval(lambda means: means[..., 2::3].mean(-1), "share")),
            exact_match=share_interval(exact, self.rows, confidence=settings.confidence),
            roc_auc=float(np.mean(areas)) if areas else None,
            per_label=per_label,
            slices=slices(self, columns, settings),
        )

    def _label(self, rows: RowTerms, number: int, name: str) -> LabelMetrics:
        from sklearn.metrics import roc_auc_score

        truth, predicted = self.truth[:, number], self.predicted[:, number]
        hits, support, count = (int(np.count_nonzero(mask)) for mask in (truth & predicted, truth, predicted))
        f1: RowMetric = lambda means: _f1(means[..., 3 * number], means[..., 3 * number + 1])  # noqa: E731  # has a type
        both = 0 < support < self.rows
        interval = rows.interval(f1, "share")
        if interval and hits in (0, support + count - hits):
            interval = _few_f1(hits, support + count, rows.confidence)
        return LabelMetrics(
            name=name,
            threshold=self.thresholds[number] if self.thresholds else 0.5,
            precision=hits / count if count else None,
            recall=hits / support if support else None,
            f1=interval.value if interval else None,
            f1_interval=interval if support >= FEW_ROWS else None,
            support=support,
            predicted=count,
            roc_auc=float(roc_auc_score(truth, self.probabilities[:, number])) if both else None,
        )

    @property
    def common(self) -> CommonAnswer:
        sets, counts = np.unique(self.predicted, axis=0, return_counts=True)
        most = sets[counts.argmax()]
        masks = ((values == most).all(axis=1) for values in (self.predicted, self.truth))
        return common(_listed(self._names(most)), *masks)

    def against_constant(
        self, settings: EvaluationSettings, headline: NamedMetric, shares: Answers | None = None
    ) -> ConstantResult:
        """Return the comparison with the best constant answer. Each label is a problem of two classes.

        The means of the bounds hold however the labels depend on each other.
        """
        support, level = self.truth.sum(axis=0), settings.confidence
        order = np.argsort(-support, kind="stable")
        f1 = 2 * np.cumsum(support[order]) / (self.rows * np.arange(1, self.width + 1) + support.sum())
        best = sorted(order[: int(f1.argmax()) + 1])
        name = f"always answering {_listed([self.target.names[label] for label in best])}"
        right = self.predicted == self.truth
        sides = []
        for label in np.flatnonzero((support > 0) & (support < self.rows)):
            truth = self.truth[:, label].astype(np.int64)
            sides.append((np.bincount(truth, weights=right[:, label], minlength=2), np.bincount(truth, minlength=2)))
        parts = [balanced_accuracy(hits, counts, confidence=level) for hits, counts in sides]
        bounds = np.mean([(part.low, part.value, part.high) for part in parts], axis=0) if parts else (0.0, 0.5, 1.0)
        interval = Interval(*map(float, bounds))
        metric = NamedMetric("balanced_accuracy", "balanced accuracy", interval, share=True)
        counts = [rows for _, rows in sides] or [np.array([1, 1])]
        return balanced(name, headline, float(f1.max()), metric, interval, counts, level)


def fit_thresholds(probabilities: Floats, targets: NDArray[Any]) -> tuple[float, ...]:
    """Return for each label the threshold with the highest F1 on validation samples.

    It is in the middle between two probabilities, so that rounding does not change a prediction. Of equal F1 the one
    nearest to 0.5 is taken; a label without samples has 0.5 (Lipton et al. 2014, "Optimal Thresholding of Classifiers
    to Maximize F1 Measure").
    """
    return tuple(_threshold(probabilities[:, label], targets[:, label] > 0.5) for label in range(targets.shape[1]))


def _threshold(probability: Floats, truth: NDArray[np.bool_]) -> float:
    if not truth.any():
        return 0.5
    order = np.argsort(-probability, kind="stable")
    ordered, hits = probability[order], np.cumsum(truth[order])
    last = np.append(ordered[1:] != ordered[:-1], True)  # of equal probabilities all or none are predicted
    count = np.arange(1, len(ordered) + 1)
    f1 = np.where(last, 2 * hits / (count + truth.sum()), -1.0)
    middle = np.append((ordered[:-1] + ordered[1:]) / 2, ordered[-1] / 2)
    best = np.flatnonzero(f1 >= f1.max() - 1e-12)
    return float(middle[best[np.argmin(np.abs(middle[best] - 0.5))]])


def _f1(hits: Floats, either: Floats) -> Floats:
    """Return F1 from hits, and from labels plus predictions; NaN where there are neither."""
    f1: Floats = np.where(either > 0, 2 * hits / np.where(either > 0, either, 1.0), np.nan)
    return f1


def _few_f1(hits: int, either: int, confidence: float) -> Interval:
    """Return F1 with an interval that covers for a few labels, and for all or no hits, where the jackknife's does not.

    F1 is 2 s / (1 + s) for the share s of hits among all pairs that are labelled or predicted, which has Wilson's. Rows
    without the label say nothing about it.
    """
    share = share_interval(hits, either - hits, confidence=confidence)
    return Interval(*(2 * bound / (1 + bound) for bound in (share.low, share.value, share.high)))


def _mean(values: Floats) -> Floats:
    """Return the mean over the last axis without NaN; NaN where all are."""
    defined = np.isfinite(values)
    count = defined.sum(axis=-1)
    mean: Floats = np.where(count > 0, np.where(defined, values, 0.0).sum(axis=-1) / np.maximum(count, 1), np.nan)
    return mean


def _defined(interval: Interval | None) -> Interval:
    """Return the interval, or 0 to 1 where no label occurs among targets and predictions."""
    return Interval(0.0, 0.0, 1.0) if interval is None else interval


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names)) or "no label"
