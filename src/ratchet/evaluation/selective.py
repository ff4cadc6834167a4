"""Selective prediction: the share of test rows that are answered at an error rate, and the errors among them."""

import operator
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from ratchet.evaluation.intervals import Interval, exact_share
from ratchet.problems import Target
from ratchet.problems.abstention import Abstention
from ratchet.problems.named_answers import named_answers

__all__ = ["AbstentionMetrics", "SelectiveError", "abstention_of", "measure_abstention"]

Outputs = tuple[NDArray[np.float32], NDArray[Any]]

_RATES = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2)


@dataclass(frozen=True)
class SelectiveError:
    """Test rows at one error rate, with exact intervals.

    Attributes:
        rate: that is promised.
        answered: share of the rows.
        error: share of wrong rows among them; None: none is answered.
    """

    rate: float
    answered: Interval
    error: Interval | None

    @property
    def is_high(self) -> bool:
        """Whether the error rate is significantly above the promised one."""
        return self.error is not None and self.error.low > self.rate


@dataclass(frozen=True)
class AbstentionMetrics:
    """Thresholds by validation rows, and what they do to the test rows.

    Attributes:
        rates: those of a fixed list that the thresholds support, up to the first that answers every validation row.
        groups: of validation rows, whose rows err together; 0: each row is alone.
    """

    thresholds: Abstention
    ordered_by: str  # data.order_by; "none": the splits are drawn
    rates: tuple[SelectiveError, ...]
    groups: Annotated[int, Field(exclude_if=operator.not_)] = 0


def abstention_of(target: Target, predictions: NDArray[Any], targets: NDArray[Any], confidence: float) -> Abstention:
    """Return the thresholds by probabilities float32 (n, classes) of validation rows and their classes."""
    named, precise = named_answers(target), predictions.astype(np.float64)
    confidences = named.confidence_rows(precise)
    assert confidences is not None, "callers check `has_confidence`"
    return Abstention.of(confidences, named.right_rows(precise, targets[:, None]), confidence=confidence)


def measure_abstention(
    target: Target, validation: Outputs, test: Outputs, *, confidence: float, ordered_by: str
) -> AbstentionMetrics:
    """Choose thresholds by validation rows and measure them on test rows.

    Args:
        target: one with confidence.
        validation: predictions as the model serves them, and targets.
        test: the same of test rows.
        confidence: of the bounds, and of the intervals.
        ordered_by: data.order_by.
    """
    thresholds, (predictions, targets) = abstention_of(target, *validation, confidence), test
    right = named_answers(target).right_rows(predictions.astype(np.float64), targets[:, None])
    rates = list[SelectiveError]()
    for rate in (rate for rate in _RATES if rate >= thresholds.lowest):
        answered = ~thresholds.abstains(predictions, rate)
        count, wrong = int(answered.sum()), int((answered & ~right).sum())
        error = exact_share(wrong, count, confidence=confidence) if count else None
        rates.append(SelectiveError(rate, exact_share(count, len(targets), confidence=confidence), error))
        if thresholds.threshold(rate) == 0.0:
            break
    return AbstentionMetrics(thresholds, ordered_by, tuple(rates))
