"""Features of answered rows: answers and inputs. They are counted where both are at hand, so neither is kept."""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ratchet.kinds import ModelSpec
from ratchet.kinds.registry import kind_of
from ratchet.problems.named_answers import named_answers
from ratchet.traffic.schema import INPUT

if TYPE_CHECKING:
    import polars

__all__ = ["Features", "features_of", "joined", "matrix_of"]

Features = dict[str, NDArray[Any]]
"""Values by the name of the feature: numbers (NaN: missing), or objects (None: missing)."""


def features_of(answers: Any, inputs: Mapping[str, Any], spec: ModelSpec | None) -> Features:
    """Return the features of rows that one version answered.

    Args:
        answers: predictions (rows, outputs), or texts.
        inputs: arrays (rows, values) as the program takes them, or prompts.
        spec: of the version; None: it is not known, and its answers have numbers for names.
    """
    if not isinstance(answers, np.ndarray):
        texts = {"length of text": answers} | {f"length of {INPUT}{name}": values for name, values in inputs.items()}
        return {name: np.array([len(text) for text in values]) for name, values in texts.items()}
    features = named_answers(spec.target).features(answers) if spec else {}
    features = features or {f"answer.{place}": answers[:, place] for place in range(answers.shape[1])}
    if spec is not None:
        kind = kind_of(spec.input)
        arrays = tuple(inputs[name] for name in kind.array_names(spec.input) if name in inputs)
        watched = kind.features(arrays, spec.input) if arrays else {}
        features |= {INPUT + name: values for name, values in watched.items()}
    return features


def joined(parts: Sequence[Any]) -> Any:
    """Return the rows of several requests: texts, or an array (rows, values) that is filled up with zeros."""
    if not isinstance(parts[0], np.ndarray):
        return [text for part in parts for text in part]
    flat = [part.reshape(len(part), math.prod(part.shape[1:])) for part in parts]
    width = max(part.shape[1] for part in flat)
    return np.concatenate(
        [part if part.shape[1] == width else np.pad(part, ((0, 0), (0, width - part.shape[1]))) for part in flat]
    )


def matrix_of(lists: "polars.Series") -> NDArray[Any]:
    """Return lists of numbers as rows, filled up with zeros."""
    lengths = lists.list.len().to_numpy()
    width = int(lengths.max()) if len(lengths) else 0
    values = lists.list.explode(empty_as_null=False).to_numpy() if width else np.empty(0)
    if (lengths == width).all():
        return values.reshape(len(lengths), width)
    matrix = np.zeros((len(lengths), width), values.dtype)
    matrix[np.arange(width) < lengths[:, None]] = values
    return matrix
