"""Rows of the request log whose true value has arrived, as samples of a data set."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ratchet.kinds import Input, ModelSpec
from ratchet.kinds.protocol import Arrays
from ratchet.kinds.registry import kind_of
from ratchet.monitoring.features import matrix_of
from ratchet.monitoring.windows import first_hour, pieces
from ratchet.problems import Target
from ratchet.problems.named_answers import named_answers
from ratchet.traffic.label_store import LabelStore
from ratchet.traffic.schema import INPUT, target_id

if TYPE_CHECKING:
    import polars

__all__ = [
    "LabelledRows",
    "SpecOf",
    "arrays_of",
    "has_input",
    "input_obstacle",
    "labelled_rows",
    "logged_columns",
    "no_rows",
]

_END = 1 << 40  # seconds since 1970, after every row
_HOUR = 3600
_NO_INPUT = "its input is not in the log (serving.log_inputs was not keep)"
SpecOf = Callable[[str], ModelSpec | None]


@dataclass(frozen=True)
class LabelledRows:
    """Samples of logged requests, in the order of time.

    Attributes:
        arrays: packed, of the data set's input.
        labels: float64 (rows, numbers), as `NamedAnswers.label` of the data set's target returns them.
        rows: answer, row, version, time and split of each; null: it has no split yet.
        left_out: answer, row and reason of the labels that give no sample.
    """

    arrays: Arrays
    labels: NDArray[np.float64]
    rows: "polars.DataFrame"
    left_out: "polars.DataFrame"


def no_rows(input_spec: Input, width: int) -> LabelledRows:
    """Return no samples of this input, with labels of `width` numbers."""
    import polars as pl

    time, text = pl.Datetime("us", "UTC"), pl.String()
    schema = pl.Schema({"answer": text, "row": pl.Int32(), "time": time, "version": text, "split": text})
    arrays = kind_of(input_spec).no_samples(input_spec)
    return LabelledRows(arrays, np.empty((0, width)), pl.DataFrame(schema=schema), _left_out([]))


def input_obstacle(have: Input, want: Input) -> str:
    """Return why samples of `have` are none of `want`; empty: they are."""
    if type(have) is not type(want):
        return f"it takes {want.description}, and these are {have.description}"
    return kind_of(want).obstacle(have, want)


def arrays_of(rows: "polars.DataFrame", names: Sequence[str], zeros: Arrays) -> Arrays:
    """Return the arrays of rows that have them as flat lists, or texts, in these columns.

    `zeros`: arrays of their shape and type.

    Raises:
        ValueError: the lists have another length.
    """
    return tuple(
        np.array(rows[name].to_list(), object)
        if zero.dtype == object
        else matrix_of(rows[name]).reshape(len(rows), *zero.shape[1:]).astype(zero.dtype)
        for name, zero in zip(names, zeros, strict=True)
    )


def logged_columns(input_spec: Input) -> list[str]:
    """Return the columns of the log of which a sample is made."""
    return [INPUT + name for name in kind_of(input_spec).logged_names(input_spec)]


def has_input(input_spec: Input) -> "polars.Expr":
    """Return whether a row of the log has its whole input."""
    import polars as pl

    kind, columns = kind_of(input_spec), pl.col(logged_columns(input_spec))
    if kind.tokenizes:
        return columns.is_not_null()
    width = sum(value.size for value in kind.zeros(input_spec, 1))
    return (pl.sum_horizontal(columns.list.len(), ignore_nulls=False) == width).fill_null(False)


def labelled_rows(requests: Path, spec_of: SpecOf, input_spec: Input, target: Target) -> LabelledRows:
    """Return the labelled rows of the log as samples of a data set with this input and target.

    Each label counts for itself: one that gives no sample is named with the reason, and the others are taken.
    """
    import polars as pl

    labels = LabelStore(requests).newest()
    reader = _Reader(spec_of, input_spec, target)
    taken = [reader.take(name, rows) for name, rows in _pieces(requests, labels)]
    parts = [no_rows(input_spec, reader.width), *taken]
    rows = pl.concat([part.rows for part in parts])
    arrays = [np.concatenate(each) for each in zip(*(part.arrays for part in parts), strict=True)]
    numbers = np.concatenate([part.labels for part in parts])
    order = rows.with_row_index("place").unique(("answer", "row"), keep="first").sort("time", "answer", "row")["place"]
    places = order.to_numpy().astype(np.int64)
    left_out = pl.concat([part.left_out for part in parts])
    known = pl.concat([rows.select("answer", "row"), left_out.select("answer", "row")])
    lost = labels.join(known, on=("answer", "row"), how="anti")
    reason = "its answer is not in the log"
    left_out = pl.concat([left_out, _left_out([(*key, reason) for key in lost.select("answer", "row").iter_rows()])])
    left_out = left_out.unique(("answer", "row"), keep="first").sort("answer", "row")
    return LabelledRows(tuple(each[places] for each in arrays), numbers[places], rows[places], left_out)


def _pieces(requests: Path, labels: "polars.DataFrame") -> "Iterator[tuple[str, polars.DataFrame]]":
    """Yield the labelled rows of each version, file by file: the log is never in memory as a whole."""
    if (begin := first_hour(requests)) is None:
        return
    for piece in pieces(requests, begin, _END, window=_HOUR):
        rows = piece.rows.join(labels, on=("answer", "row"), how="inner", maintain_order="left")
        if len(rows):
            yield piece.version, rows


def _left_out(rows: Sequence[tuple[str, int, str]]) -> "polars.DataFrame":
    import polars as pl

    return pl.DataFrame(rows, {"answer": pl.String, "row": pl.Int32, "reason": pl.String}, orient="row")


class _Reader:
    """Reads the rows of served versions as samples of one data set."""

    def __init__(self, spec_of: SpecOf, input_spec: Input, target: Target) -> None:
        self._spec_of, self._input, self._names = spec_of, input_spec, named_answers(target)
        self.width = 1 if target.classes else len(getattr(target, "names", ()))

    def take(self, version: str, rows: "polars.DataFrame") -> LabelledRows:
        """Return the samples of rows that one version answered."""
        import polars as pl

        spec = self._spec_of(version)
        reasons = self._reasons(spec, rows)
        labels = np.zeros((len(rows), self.width))
        for place, label in enumerate(rows["label"].to_list()):
            if not reasons[place]:
                assert spec is not None
                reasons[place], labels[place] = self._label(spec.target, label)
        good = np.flatnonzero([not reason for reason in reasons])
        arrays = self._arrays(spec.input, rows[good]) if spec is not None and len(good) else None
        unknown = self._unknown(arrays) if arrays else {}
        for place, reason in unknown.items():
            reasons[good[place]] = reason
        kept = np.array([place for place in range(len(good)) if place not in unknown], np.int64)
        arrays = arrays or no_rows(self._input, self.width).arrays
        keys = rows[good[kept]].select("answer", "row", "time", version=pl.lit(version), split=pl.lit(None, pl.String))
        named = zip(rows["answer"].to_list(), rows["row"].to_list(), reasons, strict=True)
        left_out = _left_out([each for each in named if each[2]])
        return LabelledRows(tuple(each[kept] for each in arrays), labels[good[kept]], keys, left_out)

    def _reasons(self, spec: ModelSpec | None, rows: "polars.DataFrame") -> list[str]:
        """Return why each row cannot be read; empty: it can."""
        import polars as pl

        if spec is None:
            return ["its version is not in the registry"] * len(rows)
        if obstacle := input_obstacle(self._input, spec.input) or input_obstacle(spec.input, self._input):
            return [f"its version has another input: {obstacle}"] * len(rows)
        if not set(logged_columns(spec.input)) <= set(rows.columns):
            return [_NO_INPUT] * len(rows)
        is_same = (pl.col("target") == target_id(spec.target)) & (pl.col("problem") == spec.target.problem)
        other = pl.when(~is_same).then(pl.lit("its label is of another problem than the version in the registry"))
        lost = pl.when(has_input(spec.input).not_()).then(pl.lit(_NO_INPUT))
        reasons: list[str] = rows.select(pl.coalesce(lost, other, pl.lit(""))).to_series().to_list()
        return reasons

    def _label(self, target: Target, label: list[float]) -> tuple[str, list[float]]:
        try:
            return "", self._names.label(named_answers(target).true_value(label))
        except ValueError as error:
            return f"its label {label} is not possible; allowed: {error}", [0.0] * self.width

    def _arrays(self, have: Input, rows: "polars.DataFrame") -> Arrays:
        kind = kind_of(have)
        zeros = kind.no_samples(have) if kind.tokenizes else kind.zeros(have, 0)
        packed = kind.packed(arrays_of(rows, logged_columns(have), zeros), have)
        return packed if kind.is_equal(have, self._input) else kind.adapt(packed, have, self._input)

    def _unknown(self, arrays: Arrays) -> dict[int, str]:
        """Return the reason of each row with a category that the log has only as unknown."""
        if kind_of(self._input).tokenizes:
            return {}
        unusual = kind_of(self._input).unusual(arrays, self._input, lambda row, name: "")
        return {
            each.row: f"column {each.field} has a category that the model did not know, and the log does not have it"
            for each in unusual
            if each.reason == "category"
        }
