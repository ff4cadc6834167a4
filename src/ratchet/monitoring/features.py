"""Features of logged rows: the answers, and the inputs where the log keeps them."""

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ratchet.kinds import ModelSpec
from ratchet.kinds.registry import kind_of
from ratchet.problems.named_answers import named_answers
from ratchet.traffic.schema import INPUT

if TYPE_CHECKING:
    import polars

__all__ = ["features_of", "matrix_of"]


def features_of(rows: "polars.DataFrame", spec: ModelSpec | None) -> dict[str, NDArray[Any]]:
    """Return the features of rows that one version answered: numbers (NaN: missing), or objects (None: missing).

    `spec`: of the version; None: it is not known, and its answers have numbers for names.
    """
    import polars as pl

    features: dict[str, NDArray[Any]] = {}
    answers = matrix_of(rows["prediction"].drop_nulls())
    if spec is not None and answers.size and answers.shape[1] != spec.target.outputs:
        spec = None  # another registry had a version of this name
    if answers.size:
        named = named_answers(spec.target).features(answers) if spec else {}
        features |= named or {f"answer.{place}": answers[:, place] for place in range(answers.shape[1])}
    for name in ("text", *(name for name in rows.columns if name.startswith(INPUT))):
        if rows.schema[name] == pl.String and rows[name].null_count() < len(rows):
            features[f"length of {name}"] = rows[name].drop_nulls().str.len_chars().to_numpy()
    if spec is None:
        return features
    kind = kind_of(spec.input)
    names = [INPUT + name for name in kind.array_names(spec.input)]
    if set(names) <= set(rows.columns):
        kept = rows.select(names).drop_nulls()
        inputs = kind.features(tuple(matrix_of(kept[name]) for name in names), spec.input) if len(kept) else {}
        features |= {INPUT + name: values for name, values in inputs.items()}
    return features


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
