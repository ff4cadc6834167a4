"""The evaluation of each problem: the answers to its test rows, and its metrics."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ratchet.errors import DataError
from ratchet.evaluation.answers import Answers, Validation
from ratchet.evaluation.classification import ClassAnswers
from ratchet.evaluation.language import PieceAnswers
from ratchet.evaluation.metrics import Metrics
from ratchet.evaluation.multi_label import LabelAnswers
from ratchet.evaluation.regression import NumberAnswers
from ratchet.problems import Target
from ratchet.settings.model import EvaluationSettings
from ratchet.typed_json import parse

__all__ = ["ANSWERS", "answers_to", "in_terms_of", "metric_fault", "read_metrics", "thresholds_for"]

ANSWERS: Mapping[str, type[Answers]] = MappingProxyType(
    {answers.metrics.problem: answers for answers in (ClassAnswers, LabelAnswers, NumberAnswers, PieceAnswers)}
)


def answers_to(
    target: Target, outputs: NDArray[np.float32], targets: NDArray[Any], *, thresholds: tuple[float, ...] = ()
) -> Answers:
    """Return the answers of the target's problem.

    Args:
        targets: as in the packed set; for the next token see `PieceAnswers`.
        thresholds: probabilities from which the second of two classes, or each label, is predicted; empty: 0.5.
    """
    return ANSWERS[target.problem](outputs, targets, target, thresholds)


def thresholds_for(target: Target, settings: EvaluationSettings, validation: Validation) -> tuple[float, ...]:
    """Return the thresholds of a model; see `Answers.thresholds_for`."""
    return ANSWERS[target.problem].thresholds_for(target, settings, validation)


def metric_fault(name: str, problem: str, own: Sequence[str]) -> Iterator[str]:
    """Yield a message if gate.minimum_metric is neither a metric of the problem nor of `own`, evaluation.metrics."""
    known = (*ANSWERS[problem].metrics.keys(), *own)
    if name not in ("auto", "none", *known):
        reason = "which is not in evaluation.metrics" if ":" in name else f"and the problem of the data is {problem}"
        yield (
            f"gate.minimum_metric: found {name}, {reason}. Allowed: auto, none, {', '.join(known)}. Fix: `ratchet set "
            "gate.minimum_metric=auto`"
        )


def in_terms_of(ours: Target, outputs: NDArray[np.float32], theirs: Target) -> NDArray[np.float32]:
    """Return another model's outputs as outputs for our target: its columns by name, its numbers in our scale.

    Raises:
        DataError: it predicts something else.
    """
    names, others = ours.names, theirs.names
    if ours.problem != theirs.problem or set(names) != set(others):
        raise DataError(
            f"it predicts {theirs.problem} of {', '.join(others) or 'tokens'}, and these data have {ours.problem} of "
            f"{', '.join(names) or 'tokens'}. Fix: train both on the same targets"
        )
    return ours.from_other(outputs, theirs, [others.index(name) for name in names]) if names else outputs


def read_metrics(reports: Path) -> Metrics:
    """Read the metrics of the last evaluation from the folder data/reports.

    Raises:
        ValueError: the file was not written by `evaluate`.
    """
    content = (reports / "evaluation.json").read_bytes()
    # A file without a problem was written when there was only classification
    return parse(ANSWERS[json.loads(content).get("problem", "classification")].metrics, content)
