"""Rows of a table in the order of time, cut into periods and windows, for a simulation."""

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ratchet.errors import DataError
from ratchet.monitoring.features import features_of
from ratchet.monitoring.labelled_set import drawn_split
from ratchet.monitoring.sketch import Reference, WindowSketch, refusal
from ratchet.monitoring.sketch_log import counted
from ratchet.monitoring.triggers import Answered, losses
from ratchet.problems import Target
from ratchet.problems.named_answers import NAMED_ANSWERS, NamedAnswers, named_answers
from ratchet.serving.scoring import readable_rows
from ratchet.settings.model import DataSettings

if TYPE_CHECKING:
    import polars

    from ratchet.serving.versions.loaded import LoadedVersion

__all__ = ["Timeline"]

_REFUSED = refusal(422)
_LEAST = 20  # windows


@dataclass(frozen=True)
class Timeline:
    """A table in the order of time. Its period 0 trains the first model.

    Attributes:
        frame: the rows as they are in the file.
        values: of the labels, as ingest reads them: categories as texts, or numbers.
        starts: start of the window of each row, seconds since 1970.
        period: of each row.
        settings: of the data, with the places of the splits.
        time: name of the column.
    """

    frame: "polars.DataFrame"
    values: "polars.Series"
    starts: NDArray[np.int64]
    period: NDArray[np.int64]
    settings: DataSettings
    time: str

    @classmethod
    def read(cls, settings: DataSettings, time: str, *, root: Path, periods: int, window: int) -> "Timeline":
        """Read data.path. The rows get `periods` spans of equal time, and the one before them.

        Raises:
            DataError: there is no such column, its cells are no dates, or there are too few windows.
        """
        import polars as pl

        from ratchet.data.tables.columns import typed_column
        from ratchet.data.tables.reading import open_table

        table = open_table(settings, root=root)
        for name in (time, *settings.label_columns):
            if name not in table.frame.columns:
                names = ", ".join(table.frame.columns)
                raise DataError(f"{table.where}: has no column {name!r}. Allowed: {names}. Fix: --time COLUMN")
        rows, *_ = table.good_rows(table.frame)
        typed = typed_column(rows[time], wanted="datetime", missing=settings.missing, where=table.where)
        if typed.values.dtype != pl.Float64 or typed.values.null_count():
            raise DataError(
                f"{table.where}: column {time!r} has {typed.values.null_count():,} cells that are no dates. Allowed: "
                "dates such as 2026-01-31 12:00:00 in every row. Fix: correct them, or --time with another column"
            )
        order = np.argsort(typed.values.to_numpy(), kind="stable")
        frame = rows[order]
        starts = (typed.values[order].to_numpy() // window).astype(np.int64)
        number = int(starts[-1] - starts[0]) + 1
        least = _LEAST * (periods + 1)
        if number < least:
            raise DataError(
                f"{table.where}: has {number:,} windows of {window // 60:,} minutes. Allowed: {least:,} or more "
                f"for {periods} periods. Fix: fewer --periods, or a smaller monitoring.window"
            )
        pairs = starts // 2  # a period has whole pairs of windows: a rule may have windows of twice the length
        period = (pairs - pairs[0]) * (periods + 1) // int(pairs[-1] - pairs[0] + 1)
        return cls(frame, _read_labels(frame, settings, table.where), starts * window, period, settings, time)

    @property
    def digest(self) -> str:
        """Digest of the rows in their order."""
        return hashlib.sha256(self.frame.hash_rows().to_numpy().tobytes()).hexdigest()

    def write(self, path: Path, period: int, memory: int) -> dict[str, Any]:
        """Write the rows of so many periods up to this one, and return the settings with which ingest reads them.

        The split of a row is that of a labelled request in the first hour of its window.
        """
        import polars as pl

        is_chosen = (self.period <= period) & (self.period > period - memory)
        rows, hours = self.frame.filter(pl.Series(is_chosen)), self.starts[is_chosen] // 3600
        names = {hour: drawn_split(f"hour {hour}", self.settings) for hour in np.unique(hours).tolist()}
        drop, split = [*self.settings.drop, self.time], self.settings.split_column
        drop += [split] if split in rows.columns else []
        while split in rows.columns:
            split += "_"
        rows = rows.with_columns(pl.Series(split, [names[hour] for hour in hours.tolist()]))
        rows.write_csv(path)
        places = {"data.path": str(path), "data.split_column": split, "data.drop": drop}
        return places | {"data.order_by": "none", "data.gap": 0.0, "data.folds": 0}

    def labels(self, answers: NamedAnswers) -> NDArray[np.float64]:
        """Return the label of each row as `NamedAnswers.label` does; NaN: it has none that the model knows."""
        known: dict[Any, list[float]] = {}
        cells = self.values.to_list()
        rows = [known[cell] if cell in known else known.setdefault(cell, _label(answers, cell)) for cell in cells]
        return np.array(rows)

    def same_as_last(self, target: Target) -> float:
        """Return the loss per row, from the first period on, of answers that repeat the label of the row before."""
        answers = named_answers(target)
        labels = self.labels(answers)[int(np.argmax(self.period > 0)) - 1 :]
        labels = labels[~np.isnan(labels).any(1)]
        last = np.eye(target.outputs)[labels[:-1, 0].astype(np.int64)] if target.classes else labels[:-1]
        return float(losses(answers, last, labels[1:]).mean())

    def answered(self, loaded: "LoadedVersion", reference: Reference, period: int) -> Answered:
        """Let a version answer the rows of a period, as the server does, and count them in windows."""
        import polars as pl

        chosen = np.flatnonzero(self.period == period)
        frame = self.frame[chosen]
        frame = frame.select(loaded.kind.columns_read(loaded.spec.input, frame.columns, self.settings.text_column))
        frame = frame.with_columns(pl.when(pl.col(pl.String) != "").then(pl.col(pl.String)))
        values, faults = loaded.kind.table_values(frame), [""] * len(chosen)
        answers = named_answers(loaded.spec.target)
        labels = self.labels(answers)[chosen]
        rows, loss, windows = 0, 0.0, dict[int, WindowSketch]()
        name = loaded.identity.reference
        for places, arrays in readable_rows(loaded, values, list(range(len(chosen))), faults):
            predictions, starts = loaded.predict(arrays), self.starts[chosen[places]]
            features = features_of(predictions, dict(zip(loaded.names, arrays, strict=True)), loaded.spec)
            for start in np.unique(starts).tolist():
                own = {key: column[starts == start] for key, column in features.items()}
                sketch = counted(name, start, own, name, reference)
                sketch = replace(sketch, requests={"answered": sketch.rows})
                windows[start] = windows[start] + sketch if start in windows else sketch
            has_label = ~np.isnan(labels[places]).any(1)
            rows += int(has_label.sum())
            loss += float(losses(answers, predictions[has_label].astype(np.float64), labels[places][has_label]).sum())
        for place in (place for place, fault in enumerate(faults) if fault):
            start = int(self.starts[chosen[place]])
            refused = WindowSketch(name, start, requests={_REFUSED: 1})
            windows[start] = windows[start] + refused if start in windows else refused
        return Answered(rows, loss, [windows[start] for start in sorted(windows)])


def _read_labels(frame: "polars.DataFrame", settings: DataSettings, where: str) -> "polars.Series":
    """Return the labels of the rows as ingest reads them; null: a row has none, or not a valid one."""
    import polars as pl

    from ratchet.data.tables.targets import read_labels

    targets = read_labels(frame, settings, where)
    if not NAMED_ANSWERS[targets.problem.problem].takes_labels:
        raise DataError(
            f"{where}: the problem is {targets.problem.problem}. Allowed: classification and regression. Fix: set "
            "data.problem, or data.label_column to another column"
        )
    values = targets.shown if targets.classes else pl.Series(targets.values[:, 0].astype(np.float64))
    is_good = np.ones(len(frame), bool)
    for faults in targets.faults.values():
        is_good[faults.to_numpy()] = False
    return pl.select(pl.when(pl.Series(is_good)).then(values)).to_series()


def _label(answers: NamedAnswers, cell: Any) -> list[float]:
    """Return a label as numbers; NaN: the model does not know it."""
    try:
        return answers.label(cell)
    except ValueError:
        return [np.nan]
