"""Reference that is stored with a version: bins and counts of the test rows and of the answers to them."""

from pathlib import Path
from typing import Any

import numpy as np

from ratchet.data.manifest import Manifest
from ratchet.evaluation.predictions import read_predictions
from ratchet.kinds import ModelSpec
from ratchet.kinds.registry import kind_of
from ratchet.monitoring.features import features_of, joined
from ratchet.monitoring.sketch import Reference, layout_of

__all__ = ["reference_of_test_rows"]

_ROWS, _AT_ONCE = 5000, 256  # test rows that are counted, evenly spaced; that are in memory


def reference_of_test_rows(packed: Path, predictions: Path, spec: ModelSpec) -> Reference | None:
    """Return the reference of a model; None: of a language model, or a kind with a user's code.

    Args:
        packed: folder of the packed set.
        predictions: file of the model's predictions for its test rows.
        spec: of the model.
    """
    from ratchet.training import open_split

    kind = kind_of(spec.input)
    if kind.generates or kind.has_user_code:
        return None
    outputs = read_predictions(predictions).outputs
    split, source = open_split(packed, "test", spec.input), Manifest.read(packed).input
    chosen, values = np.linspace(0, len(outputs) - 1, min(len(outputs), _ROWS)).astype(np.int64), dict[str, list[Any]]()
    for begin in range(0, len(chosen), _AT_ONCE):
        rows = chosen[begin : begin + _AT_ONCE]
        arrays = kind.decode(kind.samples(split, rows, source), spec.input)
        inputs = {name: joined([array]) for name, array in zip(kind.array_names(spec.input), arrays, strict=True)}
        answers = spec.target.predictions(outputs[rows]).astype(np.float32)
        for name, column in features_of(answers, inputs, spec).items():
            values.setdefault(name, []).append(column)
    columns = {name: np.concatenate(parts) for name, parts in values.items()}
    layouts = [layout_of(name, column) for name, column in columns.items()]
    return Reference(layouts, {layout.name: layout.count(columns[layout.name]) for layout in layouts})
