"""Metrics of any model's predictions on the test rows, by the kind of its target."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ratchet.evaluation.answers import Answers, ClassAnswers, LabelAnswers, NumberAnswers, PieceAnswers
from ratchet.evaluation.classification import measure_classes
from ratchet.evaluation.constant_answer import compare_with_constant
from ratchet.evaluation.intervals import Interval, mean_of, paired_difference, share_interval
from ratchet.evaluation.language import measure_pieces
from ratchet.evaluation.metrics import BaselineResult, Metrics, NamedMetric
from ratchet.evaluation.multi_label import fit_thresholds, measure_labels
from ratchet.evaluation.predictions import Predictions
from ratchet.evaluation.regression import measure_numbers
from ratchet.problems import Classes, Labels, Target
from ratchet.settings.model import EvaluationSettings

__all__ = ["against_constant", "compare_with_baseline", "measure", "thresholds_for"]


def measure(
    predictions: Predictions,
    *,
    settings: EvaluationSettings,
    columns: Mapping[str, Sequence[str | None]] = MappingProxyType({}),
    seed: int = 0,
) -> Metrics:
    """Return all metrics but robustness and the comparisons with the baseline and the best constant answer.

    Args:
        predictions: for the test rows.
        settings: of the evaluation.
        columns: by name, the value of each row to slice by; None: the row is in no slice of that column.
        seed: of the bootstrap's resamples, for classes.

    Raises:
        DataError: there are no test rows, the shapes disagree, or a target is not possible.
        TrainingError: an output is not a finite number.
    """
    answers = predictions.checked()
    match answers:
        case NumberAnswers():
            return measure_numbers(answers, settings=settings, columns=columns)
        case LabelAnswers():
            return measure_labels(answers, settings=settings, columns=columns)
        case PieceAnswers():
            return measure_pieces(answers, settings=settings, columns=columns)
    assert isinstance(predictions.target, Classes), "the only kind that remains"
    return measure_classes(
        predictions.outputs, predictions.targets, *predictions.thresholds, classes=predictions.target.names,
        settings=settings, columns=columns, seed=seed,
    )  # fmt: skip


def thresholds_for(
    target: Target,
    settings: EvaluationSettings,
    validation: Callable[[], tuple[NDArray[np.float32], NDArray[Any]]],
) -> tuple[float, ...]:
    """Return the probabilities from which the second of two classes, or each label, is predicted; empty: 0.5.

    Args:
        target: of the model.
        settings: of the evaluation; evaluation.threshold decides.
        validation: returns outputs and targets of the validation samples; called only where they decide.
    """
    chosen = settings.threshold
    if isinstance(target, Labels):
        if chosen != "auto":
            return (chosen,) * len(target.names)
        outputs, targets = validation()
        return fit_thresholds(target.predictions(outputs), targets)
    if not isinstance(target, Classes) or len(target.names) != 2:
        return ()
    if chosen == "auto":
        # The lowest mean cost of calibrated predictions (Elkan 2001, "The Foundations of Cost-Sensitive Learning")
        chosen = settings.false_positive_cost / (settings.false_positive_cost + settings.false_negative_cost)
    return () if chosen == 0.5 else (chosen,)


def against_constant(
    metrics: Metrics, predictions: Predictions, *, settings: EvaluationSettings, shares: Predictions | None = None
) -> Metrics:
    """Return the metrics with the comparison of the model and the best constant answer to the same rows.

    Args:
        metrics: of the model.
        predictions: of the model.
        settings: of the evaluation.
        shares: of pieces of text: predictions of a model that knows only how frequent each token of this text is.
    """
    constant = compare_with_constant(
        predictions.checked(),
        settings,
        headline=metrics.headline,
        names=predictions.target.classes,
        shares=shares.checked() if shares else None,
    )
    return replace(metrics, constant=constant)


def compare_with_baseline(
    metrics: Metrics,
    network: Predictions,
    baseline: Predictions,
    *,
    name: str,
    settings: EvaluationSettings,
    seed: int = 0,
) -> Metrics:
    """Return the metrics with the comparison of the model and a baseline.

    A model that no test shows to be better than a constant answer is not better than a baseline either: both may be
    useless. The paired difference is that of `Answers.row_metric`, whose mean is the headline of classification and
    regression and the closest mean over rows for multi-label.

    Args:
        metrics: of the model, with its comparison with a constant answer.
        network: predictions of the model.
        baseline: predictions of the baseline for the same rows in the same order.
        name: of the baseline, for people.
        settings: of the evaluation.
        seed: of the bootstrap's resamples.
    """
    ours, theirs = network.checked(), baseline.checked(f"the baseline {name}")
    useful = metrics.constant is None or metrics.constant.is_better
    difference = _difference(ours, theirs, settings, seed)
    result = BaselineResult(
        name=name,
        headline=_headline(theirs, settings),
        network=_headline(ours, settings),
        difference=difference,
        network_is_better=difference.low > 0.0 and useful,
        rows=ours.rows,
    )
    return replace(metrics, baseline=result)


def _difference(ours: Answers, theirs: Answers, settings: EvaluationSettings, seed: int) -> Interval:
    """Return how much better our row metric is."""
    sign = 1.0 if ours.row_metric.larger_is_better else -1.0
    return paired_difference(
        sign * ours.row_metric.values,
        sign * theirs.row_metric.values,
        resamples=settings.resamples,
        confidence=settings.confidence,
        seed=seed,
    )


def _headline(answers: Answers, settings: EvaluationSettings) -> NamedMetric:
    """Return the mean of the row metric with its interval."""
    metric = answers.row_metric
    if isinstance(answers, ClassAnswers):
        interval = share_interval(int(metric.values.sum()), answers.rows, confidence=settings.confidence)
    else:
        interval = mean_of(metric.values, confidence=settings.confidence)
    return NamedMetric("baseline", metric.name, interval, metric.larger_is_better, metric.share)
