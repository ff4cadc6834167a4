"""Quality of the answers of each version, from labels that arrive late and from the confidence of the others.

accuracy_sequence: predictable plug-in empirical-Bernstein confidence sequence. Waudby-Smith and Ramdas, Estimating
means of bounded random variables by betting, arXiv 2010.09686, theorem 2.
error_sequence: asymptotic confidence sequence, since errors have no bound. Waudby-Smith et al., Time-uniform central
limit theory and asymptotic confidence sequences, arXiv 2103.06476, theorem 2.2.
prediction_powered: Angelopoulos, Duchi and Zrnic, PPI++, arXiv 2311.01453.
"""

import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ratchet.counts import count_of
from ratchet.evaluation.intervals import Interval, difference_of, mean_of, share_interval
from ratchet.evaluation.metrics import NamedMetric
from ratchet.evaluation.slices import Slice, rows_by_slice, thirds
from ratchet.evaluation.wording import ci_text
from ratchet.monitoring.features import matrix_of
from ratchet.monitoring.to_label import chosen_by_entropy
from ratchet.monitoring.windows import first_hour, pieces
from ratchet.problems.named_answers import NAMED_ANSWERS
from ratchet.traffic.label_store import LabelStore
from ratchet.traffic.schema import SLICE

if TYPE_CHECKING:
    import polars

__all__ = [
    "ConfidenceSums",
    "Quality",
    "accuracy_sequence",
    "error_sequence",
    "prediction_powered",
    "qualities",
    "quality_lines",
]

_ALPHA = 0.05
_FEWEST = 30  # labels for an interval that is right only for many, and for a difference of two means
_OPTIMAL = 100  # labels at which the asymptotic sequence is narrowest
_END, _HOUR = 1 << 40, 3600
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Quality:
    """Quality of one version.

    Attributes:
        metric: accuracy or mean absolute error; empty without labels.
        labels, rows: numbers of them.
        labelled: of the labelled rows in the log, with an interval that holds at all times while the log keeps them;
            None: too few labels.
        powered: accuracy of all rows, from confidence and the labels of rows that were not chosen by entropy; None: of
            numbers, or too few labels.
        expected: accuracy of the rows without a label by their confidence alone; None: of numbers, or there are none.
        corrected: labelled rows whose earlier label was another.
        slices: labelled rows that have one value in a column of serving.log_columns, without those chosen by entropy.
    """

    metric: str
    labels: int
    rows: int
    labelled: Interval | None
    powered: Interval | None
    expected: Interval | None
    corrected: int = 0
    slices: tuple[Slice, ...] = ()


def accuracy_sequence(right: Floats) -> Interval:
    """Return the mean of values in [0, 1] in their order, with the interval of a confidence sequence of 95 %."""
    count = np.arange(1, len(right) + 1)
    means = (0.5 + np.cumsum(right)) / (count + 1)
    variances = (0.25 + np.cumsum((right - means) ** 2)) / (count + 1)
    earlier_mean, earlier_variance = np.append(0.5, means[:-1]), np.append(0.25, variances[:-1])
    bets = np.minimum(np.sqrt(2 * math.log(2 / _ALPHA) / (earlier_variance * count * np.log1p(count))), 0.5)
    surprise = 4 * (right - earlier_mean) ** 2 * (-np.log1p(-bets) - bets) / 4
    centre, reach = float(bets @ right), math.log(2 / _ALPHA) + float(surprise.sum())
    low, high = ((centre + sign * reach) / float(bets.sum()) for sign in (-1, 1))
    value = float(right.mean())
    return Interval(max(0.0, min(low, value)), value, min(1.0, max(high, value)))


def error_sequence(errors: Floats) -> Interval:
    """Return the mean of numbers with the interval of an asymptotic confidence sequence of 95 %."""
    count, variance = len(errors), float(errors.var())
    scale = (-2 * math.log(_ALPHA) + math.log(1 - 2 * math.log(_ALPHA))) / _OPTIMAL  # rho squared
    inner = 2 * (count * scale + 1) / (count**2 * scale) * math.log(math.sqrt(count * scale + 1) / _ALPHA)
    reach, value = math.sqrt(variance * inner), float(errors.mean())
    return Interval(value - reach, value, value + reach)


def prediction_powered(right: Floats, confidence: Floats, others: "ConfidenceSums") -> Interval:
    """Return the accuracy of all rows with a 95 % interval, which holds for labels of a random sample of the rows.

    Args:
        right: 0 or 1 of the labelled rows, and their `confidence`.
        others: confidence of the other rows.
    """
    count = len(right)
    spread = float(confidence.var())
    together = float(((right - right.mean()) * (confidence - confidence.mean())).mean())
    weight = min(1.0, max(0.0, together / ((1 + count / others.count) * spread))) if spread and others.count else 0.0
    value = float(right.mean()) + weight * (others.mean - float(confidence.mean()) if others.count else 0.0)
    variance = float((right - weight * confidence).var()) / count
    variance += weight**2 * others.variance / others.count if others.count else 0.0
    reach = 1.959964 * math.sqrt(variance)
    return Interval(max(0.0, value - reach), value, min(1.0, value + reach))


@dataclass
class ConfidenceSums:
    """Number, sum and sum of squares of confidences."""

    count: int = 0
    total: float = 0.0
    squares: float = 0.0

    def add(self, values: Floats) -> None:
        self.count += len(values)
        self.total += float(values.sum())
        self.squares += float(values @ values)

    @property
    def mean(self) -> float:
        return self.total / self.count if self.count else 0.0

    @property
    def variance(self) -> float:
        return max(0.0, self.squares / self.count - self.mean**2) if self.count else 0.0


@dataclass
class _Version:
    """The rows of one version: labelled ones with time, score and confidence, and sums of the others."""

    problem: str
    labelled: "list[polars.DataFrame]" = field(default_factory=list)
    others: ConfidenceSums = field(default_factory=ConfidenceSums)
    rows: int = 0

    def add(self, rows: "polars.DataFrame") -> None:
        import polars as pl

        answers = NAMED_ANSWERS[self.problem]
        self.rows += len(rows)
        predictions = matrix_of(rows["prediction"]).astype(np.float64)
        confidence = answers.confidence_rows(predictions)
        has_label = rows["label"].is_not_null().to_numpy()
        if confidence is not None:
            self.others.add(confidence[~has_label])
        if not has_label.any():
            return
        labels = np.array(rows["label"].drop_nulls().to_list(), np.float64)
        right = answers.right_rows(predictions[has_label], labels)
        errors = np.abs(predictions[has_label] - labels).mean(axis=1) if right is None else right.astype(np.float64)
        sure = np.zeros(len(errors)) if confidence is None else confidence[has_label]
        keys = rows.filter(pl.Series(has_label))
        keys = keys.select("labelled", "answer", "row", "fair", "corrected", pl.selectors.starts_with(SLICE))
        self.labelled.append(keys.with_columns(score=pl.Series(errors), confidence=pl.Series(sure)))

    def quality(self) -> Quality:
        import polars as pl

        has_confidence, expected = NAMED_ANSWERS[self.problem].has_confidence, None
        if has_confidence and self.others.count:
            mean, reach = self.others.mean, 1.959964 * math.sqrt(self._variance / self.others.count)
            expected = Interval(max(0.0, mean - reach), mean, min(1.0, mean + reach))
        if not self.labelled:
            return Quality("", 0, self.rows, None, None, expected)
        rows = pl.concat(self.labelled, how="diagonal_relaxed").sort("labelled", "answer", "row")
        corrected, slices = int(rows["corrected"].sum()), _slices(rows.filter("fair"), is_accuracy=has_confidence)
        scores, confidence = rows["score"].to_numpy(), rows["confidence"].to_numpy()
        if not has_confidence:
            interval = error_sequence(scores) if len(scores) >= _FEWEST else None
            name = "mean absolute error"
            return Quality(name, len(scores), self.rows, interval, None, None, corrected, slices)
        fair, others = rows["fair"].to_numpy(), replace(self.others)
        others.add(confidence[~fair])  # their labels are no sample of all rows
        powered = prediction_powered(scores[fair], confidence[fair], others) if fair.sum() >= _FEWEST else None
        labelled = accuracy_sequence(scores)
        return Quality("accuracy", len(scores), self.rows, labelled, powered, expected, corrected, slices)

    @property
    def _variance(self) -> float:
        """Variance of whether an answer is right, if its confidence is the probability of that."""
        return self.others.mean * (1 - self.others.mean)


def _slices(rows: "polars.DataFrame", *, is_accuracy: bool) -> tuple[Slice, ...]:
    """Return the slices of labelled rows by their logged columns; numbers are in thirds."""
    columns: dict[str, list[str | None]] = {}
    for name in (name for name in rows.columns if name.startswith(SLICE)):
        values: list[str | None] | None = rows[name].cast(str).to_list()
        if rows[name].dtype.is_numeric():
            numbers = rows[name].cast(float).fill_null(math.nan).to_numpy()
            values = thirds(numbers, reference=numbers)
        columns |= {name.removeprefix(SLICE): values} if values else {}
    scores, chosen = rows["score"].to_numpy(), rows_by_slice(columns, least=_FEWEST)
    chosen = [each for each in chosen if len(scores) - len(each[2]) >= _FEWEST]  # few others have no sure mean
    corrected, slices = 1 - _ALPHA / max(1, len(chosen)), []  # Bonferroni

    def interval(values: Floats, level: float) -> Interval:
        if not is_accuracy:
            return mean_of(values, confidence=level)
        return share_interval(int(values.sum()), len(values), confidence=level)

    for name, value, places in chosen:
        here, others = scores[places], np.delete(scores, places)
        gap = difference_of(interval(here, corrected), interval(others, corrected))
        is_worse = gap.high < 0 if is_accuracy else gap.low > 0
        slices.append(Slice(name, value, len(here), interval(here, 1 - _ALPHA), gap, is_worse))
    return tuple(slices)


def qualities(requests: Path) -> dict[str, Quality]:
    """Return the quality of each version in the log whose problem has labels, by NAME/VERSION."""
    return {name: version.quality() for name, version in sorted(_versions(requests)[0].items())}


def _versions(requests: Path) -> tuple[dict[str, _Version], int]:
    """Return the versions in the log whose problem has labels, and the number of labels without a row in the log."""
    import polars as pl

    versions: dict[str, _Version] = {}
    labels = LabelStore(requests).newest().drop("problem")
    unfair = chosen_by_entropy(requests).with_columns(fair=False)
    labels = labels.join(unfair, on=("answer", "row"), how="left").with_columns(pl.col("fair").fill_null(True))
    begin, lost = first_hour(requests), len(labels)
    columns = ("prediction", "target", SLICE)
    windows = pieces(requests, begin, _END, window=_HOUR, columns=columns) if begin is not None else ()
    for piece in windows:
        problem = str(piece.rows["target"][0]).partition(" ")[0]
        lost -= len(piece.rows.join(labels, on=("answer", "row"), how="semi"))
        if problem in NAMED_ANSWERS and NAMED_ANSWERS[problem].takes_labels:
            rows = piece.rows.join(labels, on=("answer", "row"), how="left", maintain_order="left")
            versions.setdefault(piece.version, _Version(problem)).add(rows.drop_nulls("prediction"))
    return versions, lost


def quality_lines(requests: Path, names: "set[str]") -> list[str]:
    """Return a sentence about the quality of each of these versions, and one about labels without a row in the log."""
    versions, lost = _versions(requests)
    texts = {name: _text(version.quality()) for name, version in sorted(versions.items()) if name in names}
    lines = [f"{name}: {text}" for name, text in texts.items() if text]
    return [*lines, f"not used: {count_of(lost, 'label')} of rows that the log does not have"] if lost else lines


def _text(quality: Quality) -> str:
    texts = []
    if quality.labelled:
        texts.append(f"{_mean(quality.metric, quality.labelled)} of {count_of(quality.labels, 'labelled row')}")
    elif quality.labels:
        texts.append(f"{count_of(quality.labels, 'label')}, too few")
    if quality.powered:
        texts.append(f"{_share(quality.powered)} of all {quality.rows:,} rows, from labels and confidence")
    if quality.expected:
        texts.append(f"{_share(quality.expected)} of the rows without a label if their confidence is right")
    if quality.corrected:
        texts.append(f"{quality.corrected:,} labels contradict an earlier one of their row: the newest counts")
    worse = [
        f"{each.column}={each.value} ({_mean(quality.metric, each.mean)} of {count_of(each.rows, 'label')})"
        for each in quality.slices
        if each.is_worse
    ]
    if quality.slices:
        number = f"{len(worse)} of {len(quality.slices)} slices significantly worse"
        texts.append(f"{number}: {', '.join(worse)}" if worse else number)
    return "; ".join(texts)


def _mean(metric: str, mean: Interval) -> str:
    if metric == "accuracy":
        return f"{metric} {_share(mean)}"
    return f"{metric} {mean.value:.4g} (95 % CI {mean.low:.4g} to {mean.high:.4g})"


def _share(interval: Interval) -> str:
    return ci_text(NamedMetric("share", "share", interval, share=True), 0.95)
