"""Answers and metrics of predicted tokens on the test pieces of a text."""

import functools
import math
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from ratchet.evaluation.answers import Answers, Columns, ScoreUnit
from ratchet.evaluation.constant_answer import by_score
from ratchet.evaluation.intervals import Interval
from ratchet.evaluation.jackknife import RowMetric, RowTerms
from ratchet.evaluation.metrics import ConstantResult, Metric, Metrics, NamedMetric
from ratchet.evaluation.slices import slices
from ratchet.problems import NextToken
from ratchet.settings.model import EvaluationSettings

__all__ = ["LanguageMetrics", "PieceAnswers"]

Floats = NDArray[np.float64]

_NATS, _TOKENS, _CHARACTERS, _BYTES = range(4)


@dataclass(frozen=True, kw_only=True)
class LanguageMetrics(Metrics):
    """All metrics of predicted tokens on the test pieces of a text."""

    problem: Literal["next-token"] = "next-token"
    headline_key: ClassVar[str] = "bits_per_character"
    row_metric: ClassVar[Metric] = Metric("bits per character", larger_is_better=False)

    tokens: int
    characters: int
    loss: Annotated[Interval, Metric("loss", larger_is_better=False)]  # nats per token
    perplexity: Annotated[Interval, Metric("perplexity", larger_is_better=False)]  # per token
    bits_per_character: Annotated[Interval, Metric("bits per character", larger_is_better=False)]
    bits_per_byte: Annotated[Interval, Metric("bits per byte", larger_is_better=False)]

    @property
    def values(self) -> dict[str, float | None]:
        return {"tokens": self.tokens, "characters": self.characters}


@dataclass(frozen=True)
class PieceAnswers(Answers):
    """Losses of the pieces of a token stream.

    Outputs: float32 (pieces, 1), loss of all tokens of the piece, in nats. Targets: int64 (pieces, 3), how many tokens,
    characters and bytes of text the piece has. The pieces must be the same for every model that is compared.
    """

    target: NextToken

    metrics: ClassVar[type[Metrics]] = LanguageMetrics
    change_terms: ClassVar[tuple[str, str, str]] = ("hundredths of a nat less per character", "Smaller loss", "larger")

    @staticmethod
    def shapes(target: NextToken, rows: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return (rows, 3), (rows, 1)

    @functools.cached_property
    def nats(self) -> Floats:
        """Loss of each piece, (pieces,)."""
        return self.outputs[:, 0].astype(np.float64)

    @property
    def metric_inputs(self) -> tuple[Floats, NDArray[np.int64]]:
        return self.nats, self.targets.astype(np.int64)

    @functools.cached_property
    def score(self) -> Floats:
        """Score of each piece: minus its loss in nats per character, where the mean length of all pieces divides.

        So the mean score is the loss per character of the whole text, whichever tokenizer a model has.
        """
        return -self.nats * self.rows / max(1, int(self.targets[:, 1].sum()))

    @property
    def unit(self) -> ScoreUnit:
        return ScoreUnit("bits per character", -1 / math.log(2))

    def truth_text(self, row: int) -> str:
        return f"{self.targets[row, 1]:,} characters"

    def answer_text(self, row: int) -> str:
        return f"{self.values[row]:.2f} bits per character"

    @staticmethod
    def target_columns(target: NextToken) -> tuple[str, ...]:
        return ("tokens", "characters", "bytes")

    def measure(
        self, settings: EvaluationSettings, columns: Columns = MappingProxyType({}), *, seed: int = 0
    ) -> LanguageMetrics:
        """Return loss, perplexity and bits per character and byte over all pieces.

        The intervals count pieces, not tokens, because the losses of neighbouring tokens depend on each other (a block
        jackknife: Kunsch 1989).
        """
        terms = np.column_stack([self.nats, self.targets.astype(np.float64)])
        rows = RowTerms(terms, settings.confidence)
        loss = _interval(rows, _ratio(_TOKENS, 1.0))
        return LanguageMetrics(
            rows=self.rows,
            tokens=int(self.targets[:, 0].sum()),
            characters=int(self.targets[:, 1].sum()),
            confidence=settings.confidence,
            loss=loss,
            perplexity=Interval(*(math.exp(min(bound, 700.0)) for bound in (loss.low, loss.value, loss.high))),
            bits_per_character=_interval(rows, _ratio(_CHARACTERS, math.log(2))),
            bits_per_byte=_interval(rows, _ratio(_BYTES, math.log(2))),
            slices=slices(self, columns, settings),
        )

    def against_constant(
        self, settings: EvaluationSettings, headline: NamedMetric, shares: Answers | None = None
    ) -> ConstantResult:
        assert shares is not None, "the caller measures the shares of the tokens"
        return by_score(self, headline, "knowing only how frequent each token is", shares.score, settings)


def _ratio(divisor: int, unit: float) -> RowMetric:
    def ratio(means: Floats) -> Floats:
        value: Floats = means[..., _NATS] / means[..., divisor] / unit
        return value

    return ratio


def _interval(rows: RowTerms, metric: RowMetric) -> Interval:
    interval = rows.interval(metric, "positive")
    assert interval is not None, "checked pieces have tokens and characters"
    return interval
