"""Score rows of files by the same path as a request to the model server."""

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ratchet.kinds.input_warnings import by_row, input_warnings
from ratchet.kinds.protocol import Arrays, InputError
from ratchet.problems.named_answers import named_answers
from ratchet.serving.batch.row_reader import Batch
from ratchet.serving.versions.additions import PLAIN, AnswerOptions
from ratchet.serving.versions.loaded import LoadedVersion

if TYPE_CHECKING:
    import polars

__all__ = ["readable_rows", "score"]

_OWN = frozenset({"file", "row", "refused", "warnings", "model", "version", "provenance"})  # columns beside the answer
_FIELD = re.compile(r"^input(\[0\])?[.:] ?")  # the beginning of messages about a request


def score(loaded: LoadedVersion, batch: Batch, options: AnswerOptions = PLAIN) -> "polars.DataFrame":
    """Return one row for each of the batch: its place, the answer, warnings, and the reason if it is refused.

    Columns: file and row; class and probability, or one for each label or number; those of
    `VersionAdditions.columns`; refused; warnings; model, version, provenance.
    """
    import polars

    identity, faults = loaded.identity, list(batch.faults)
    predictions = np.zeros((len(batch), loaded.spec.target.outputs), np.float32)
    texts: list[str | None] = [None] * len(batch)
    readable = [row for row, fault in enumerate(faults) if not fault]
    for rows, arrays in readable_rows(loaded, batch.values, readable, faults):
        predictions[rows] = loaded.predict(arrays)
        if warnings := input_warnings(arrays, loaded.spec.input, _chosen(batch.values, rows), most=None):
            for row, row_warnings in zip(rows, by_row(warnings, len(rows)), strict=True):
                texts[row] = "; ".join(row_warnings) or None
    refused = polars.Series("refused", [fault or None for fault in faults], polars.String)
    answers = polars.DataFrame(_answers(loaded, predictions, options))
    return polars.DataFrame(
        [
            polars.Series("file", batch.files, polars.String),
            polars.Series("row", batch.rows, polars.Int64),
            *answers.select(polars.when(refused.is_null()).then(polars.all())),
            refused,
            polars.Series("warnings", texts, polars.String),
        ]
    ).with_columns(
        model=polars.lit(identity.model),
        version=polars.lit(identity.version),
        provenance=polars.lit(identity.provenance, polars.String),
    )


def readable_rows(
    loaded: LoadedVersion, values: Any, rows: list[int], faults: list[str]
) -> Iterator[tuple[list[int], Arrays]]:
    """Yield rows with their arrays. Of rows that cannot be read together each half is tried, down to single rows.

    The reason why a row cannot be read is written to `faults`.
    """
    if not rows:
        return
    try:
        arrays = loaded.kind.decode(_chosen(values, rows), loaded.spec.input)
    except InputError as error:
        if len(rows) == 1:
            faults[rows[0]] = _FIELD.sub("", str(error))
            return
        half = len(rows) // 2
        yield from readable_rows(loaded, values, rows[:half], faults)
        yield from readable_rows(loaded, values, rows[half:], faults)
    else:
        yield rows, arrays


def _chosen(values: Any, rows: list[int]) -> Any:
    if len(rows) == len(values):
        return values
    return [values[row] for row in rows] if isinstance(values, list) else values[rows]


def _answers(loaded: LoadedVersion, predictions: NDArray[np.float32], options: AnswerOptions) -> "list[polars.Series]":
    import polars

    added = loaded.additions.columns(options, predictions)
    columns, taken = named_answers(loaded.spec.target).columns(predictions), {*_OWN, *added}
    if "abstained" in added:
        columns["class"] = columns["class"].astype(object)
        columns["class"][added["abstained"]] = None
    answers = {f"predicted {name}" if name in taken else name: values for name, values in columns.items()}
    # The type of texts is named, and they are a list: that of no texts, or of none first, would be another one
    return [
        polars.Series(name, values.tolist(), polars.String) if values.dtype == object else polars.Series(name, values)
        for name, values in (answers | added).items()
    ]
