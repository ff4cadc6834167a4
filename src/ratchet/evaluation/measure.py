"""Comparisons of a model's predictions with the best constant answer, and with a baseline."""

from dataclasses import replace

from ratchet.evaluation.intervals import paired_difference
from ratchet.evaluation.metrics import BaselineResult, Metrics
from ratchet.evaluation.predictions import Predictions
from ratchet.settings.model import EvaluationSettings

__all__ = ["against_constant", "compare_with_baseline"]


def against_constant(
    metrics: Metrics, predictions: Predictions, *, settings: EvaluationSettings, shares: Predictions | None = None
) -> Metrics:
    """Return the metrics with the comparison of the model and the best constant answer to the same rows.

    Args:
        shares: of pieces of text: predictions of a model that knows only how frequent each token of this text is.
    """
    answers = predictions.checked()
    result = answers.against_constant(settings, metrics.headline, shares.checked() if shares else None)
    if common := answers.common:
        result = replace(result, answer=common.text, answered=common.rows, one_answer=common.to_nearly_all)
    return replace(metrics, constant=result)


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
    useless. The paired difference is that of `Answers.values`, whose mean is the headline of classification and
    regression and the closest mean over rows for multi-label.

    Args:
        metrics: of the model, with its comparison with a constant answer.
        baseline: predictions of the baseline, called `name`, for the same rows in the same order.
    """
    ours, theirs = network.checked(), baseline.checked(f"the baseline {name}")
    useful = metrics.constant is None or metrics.constant.is_better
    sign, level = 1.0 if ours.unit.larger_is_better else -1.0, settings.confidence
    scores = sign * ours.values, sign * theirs.values
    difference = paired_difference(*scores, resamples=settings.resamples, confidence=level, seed=seed)
    result = BaselineResult(
        name=name,
        headline=theirs.headline("baseline", level),
        network=ours.headline("baseline", level),
        difference=difference,
        network_is_better=difference.low > 0.0 and useful,
        rows=ours.rows,
    )
    return replace(metrics, baseline=result)
