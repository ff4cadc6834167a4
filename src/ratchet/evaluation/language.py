"""Metrics of predicted tokens on the test pieces of a text."""

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from ratchet.evaluation.answers import PieceAnswers
from ratchet.evaluation.intervals import Interval
from ratchet.evaluation.jackknife import Metric, RowTerms
from ratchet.evaluation.metrics import LanguageMetrics
from ratchet.evaluation.slices import score_slices
from ratchet.settings.model import EvaluationSettings

__all__ = ["measure_pieces"]

_NATS, _TOKENS, _CHARACTERS, _BYTES = range(4)


def measure_pieces(
    answers: PieceAnswers,
    *,
    settings: EvaluationSettings,
    columns: Mapping[str, Sequence[str | None]] = MappingProxyType({}),
) -> LanguageMetrics:
    """Return loss, perplexity and bits per character and byte over all pieces.

    The intervals count pieces, not tokens, because the losses of neighbouring tokens depend on each other (a block
    jackknife: Kunsch 1989).

    Args:
        answers: losses and sizes of the test pieces.
        settings: of the evaluation.
        columns: by name, the value of each piece to slice by.
    """
    terms = np.column_stack([answers.nats, answers.targets.astype(np.float64)])
    rows = RowTerms(terms, settings.confidence)
    loss = _interval(rows, _ratio(_TOKENS, 1.0))
    return LanguageMetrics(
        rows=answers.rows,
        tokens=int(answers.targets[:, 0].sum()),
        characters=int(answers.targets[:, 1].sum()),
        confidence=settings.confidence,
        loss=loss,
        perplexity=Interval(*(math.exp(min(bound, 700.0)) for bound in (loss.low, loss.value, loss.high))),
        bits_per_character=_interval(rows, _ratio(_CHARACTERS, math.log(2))),
        bits_per_byte=_interval(rows, _ratio(_BYTES, math.log(2))),
        slices=score_slices(answers, columns, settings),
    )


def _ratio(divisor: int, unit: float) -> Metric:
    def ratio(means: NDArray[np.float64]) -> NDArray[np.float64]:
        value: NDArray[np.float64] = means[..., _NATS] / means[..., divisor] / unit
        return value

    return ratio


def _interval(rows: RowTerms, metric: Metric) -> Interval:
    interval = rows.interval(metric, "positive")
    assert interval is not None, "checked pieces have tokens and characters"
    return interval
