"""History of a project's own server, for `ratchet backtest-triggers`: stored sketches, and labels that arrived.

What a training would have changed is not recorded. It is assumed to take back the rise of the loss since the first
periods of the version, as far as its interval is above 0: noise gains nothing. What changes later is lost.
"""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ratchet.errors import NoRequests
from ratchet.evaluation.intervals import Interval, difference_of, mean_of, share_interval
from ratchet.monitoring.features import matrix_of
from ratchet.monitoring.sketch import Reference, WindowSketch
from ratchet.monitoring.sketch_log import first_hour, read_reference, read_sketches, sketch_folder
from ratchet.monitoring.to_label import chosen_by_entropy
from ratchet.monitoring.triggers import Answered, Floats, History, losses
from ratchet.monitoring.windows import pieces
from ratchet.problems.named_answers import NAMED_ANSWERS
from ratchet.traffic.label_store import LabelStore

__all__ = ["Recorded"]

_FIRST = 3  # periods with labels from which the loss of a version at first is taken
_FEWEST = 4  # periods
_LEVEL = 0.99  # confidence that the loss has risen


@dataclass
class Recorded(History):
    """The periods of a log with the version that answered most requests in each.

    Attributes:
        folder: of the sketches.
        versions: that answered, in each period from 1 on.
        record: its answers.
        losses: of its labelled rows.
        cost: processor seconds of a training, by the recorded ones.
    """

    folder: Path
    versions: list[str]
    record: list[Answered]
    losses: list[Floats]
    cost: float

    @classmethod
    def read(cls, requests: Path, *, window: int, period: int, now: float) -> "Recorded":
        """Read the sketches and labels beside a request log. `window` and `period`: seconds.

        Raises:
            NoRequests: there are too few, or none has a label.
        """
        folder = sketch_folder(requests)
        begin = first_hour(folder)
        end = int(now // period * period)
        windows: dict[int, dict[str, list[WindowSketch]]] = {}
        for sketch in read_sketches(folder, (begin or 0) // period * period, end, window=window) if begin else ():
            windows.setdefault(sketch.start // period * period, {}).setdefault(sketch.version, []).append(sketch)
        if len(windows) < _FEWEST:
            raise NoRequests(
                f"{folder}: has sketches of {len(windows)} periods that are over. Allowed: {_FEWEST} or more. Fix: "
                "`ratchet serve` with serving.log=true, and wait; or `ratchet simulate` with a table that has dates"
            )
        lost, versions, record = _lost(requests, min(windows), end, period), list[str](), list[Answered]()
        rows = list[Floats]()
        for start, by_version in sorted(windows.items()):
            version = max(by_version, key=lambda name: sum(each.rows for each in by_version[name]))
            rows.append(lost.get((version, start), np.zeros(0)))
            versions.append(version)
            record.append(Answered(len(rows[-1]), float(rows[-1].sum()), by_version[version]))
        if not any(each.rows for each in record):
            raise NoRequests(
                f"{requests}: no logged answer has a label, so no loss is known; labels of rows that were chosen for "
                "their entropy do not count. Fix: POST labels to /v1/labels; `ratchet data from-requests NAME "
                "--to-label` chooses requests"
            )
        return cls(folder, versions, record, rows, 0.0)

    def __post_init__(self) -> None:
        self.periods, self._first = len(self.record), list[int]()  # periods before those of the version of a period
        for place, version in enumerate(self.versions):
            self._first.append(self._first[-1] if place and self.versions[place - 1] == version else place)
        self._rises: dict[tuple[int, int], tuple[float, float] | None] = {}

    def answered(self, model: int, period: int) -> Answered:
        recorded, first = self.record[period - 1], self._first[period - 1]
        if model < first + 2 or not recorded.rows:
            return recorded
        if (first, model) not in self._rises:
            self._rises[first, model] = self._rise(first, model)
        rise = self._rises[first, model]
        if rise is None:
            return recorded
        (usual, last), level = rise, recorded.loss / recorded.rows
        learned = min(last - usual, max(0.0, level - usual))
        return replace(recorded, loss=(level - learned) * recorded.rows)

    def _rise(self, first: int, model: int) -> tuple[float, float] | None:
        """Return the loss per row at first, and in the last period before a training, if it has risen until then."""
        before = [rows for rows in self.losses[first:model] if len(rows)]
        if len(before) < 2:
            return None
        normal, last = np.concatenate(before[:-1][:_FIRST]), before[-1]
        if difference_of(_interval(last), _interval(normal)).low <= 0:
            return None
        return float(normal.mean()), float(last.mean())

    def reference(self, model: int) -> Reference | None:
        version, windows = self.versions[model], self.record[model].windows
        reference = read_reference(self.folder, version, next((each.bins for each in windows if each.bins), ""))
        is_recorded = not model or self.versions[model - 1] != version
        return reference if is_recorded or reference is None else replace(reference, counts={})

    def champion_after(self, trigger: str, champion: int, period: int) -> int:
        return period

    def cpu_seconds(self, model: int) -> float:
        return self.cost

    def ends(self, period: int) -> bool:
        return self.versions[period - 1 : period] != self.versions[period : period + 1]


def _interval(values: Floats) -> Interval:
    """Return the interval of the mean of losses; Wilson's, if each is 0 or 1."""
    if np.isin(values, (0.0, 1.0)).all():
        return share_interval(int(values.sum()), len(values), confidence=_LEVEL)
    if len(values) < 2:
        return Interval(-np.inf, float(values[0]), np.inf)
    return mean_of(values, confidence=_LEVEL)


def _lost(requests: Path, begin: int, end: int, period: int) -> dict[tuple[str, int], Floats]:
    """Return the loss of each labelled row, by version and start of the period. Rows chosen by entropy are left out."""
    labels = LabelStore(requests).newest().drop("problem")
    labels = labels.join(chosen_by_entropy(requests), on=("answer", "row"), how="anti")
    lost: dict[tuple[str, int], Floats] = {}
    for piece in pieces(requests, begin, end, window=period, columns=("prediction", "target")):
        problem = str(piece.rows["target"][0]).partition(" ")[0]
        rows = piece.rows.join(labels, on=("answer", "row"), how="inner").drop_nulls("prediction")
        if problem in NAMED_ANSWERS and NAMED_ANSWERS[problem].takes_labels and len(rows):
            values = np.array(rows["label"].to_list(), np.float64)
            loss = losses(NAMED_ANSWERS[problem], matrix_of(rows["prediction"]).astype(np.float64), values)
            before = lost.get((piece.version, piece.start), np.zeros(0))
            lost[piece.version, piece.start] = np.concatenate([before, loss])
    return lost
