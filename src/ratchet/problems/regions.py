"""Prediction regions: intervals of numbers, and sets of classes, that contain the true value with a chosen probability.

Split conformal prediction (Vovk, Gammerman & Shafer 2005; Lei et al., "Distribution-Free Predictive Inference for
Regression", 2018). A score says how badly a true value fits a prediction. The region at a level has all values with a
score of at most the k-th smallest one of n validation rows, k = ceil((n + 1) * level). If test rows are exchangeable
with these rows, it contains the true value with at least that probability. Each problem that has regions has a class.

The package does not import this module: its code decides no weight.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from ratchet.problems.classes import Classes
from ratchet.problems.named_answers import object_schema
from ratchet.problems.numbers import Numbers

__all__ = ["CALIBRATION", "LEVELS", "REGIONS", "Calibration", "Regions"]

Floats = NDArray[np.float64]
Predictions = NDArray[np.float32]
Schema = dict[str, Any]

CALIBRATION = "intervals.json"
"""File of a stored version with its calibration."""
LEVELS = range(50, 100)
"""Levels in per cent."""


@dataclass(frozen=True)
class Calibration:
    """Quantiles of the scores of validation rows.

    Attributes:
        rows: validation rows.
        quantiles: for each score of a row, those of the first levels of `LEVELS`. Higher levels need more rows.
    """

    rows: int
    quantiles: tuple[tuple[float, ...], ...]
    format: Literal[1] = 1

    @classmethod
    def of(cls, scores: Floats) -> "Calibration":
        """Return the quantiles of scores (rows, scores). One that is not finite counts as larger than all others."""
        rows = len(scores)
        ordered = np.sort(np.where(np.isfinite(scores), scores, np.inf), axis=0)
        ranks = [-(-(rows + 1) * percent // 100) for percent in LEVELS]  # in integers: without rounding
        chosen = ordered[[rank - 1 for rank in ranks if rank <= rows]]
        return cls(rows, tuple(tuple(column[np.isfinite(column)].tolist()) for column in chosen.T))

    @property
    def highest(self) -> int:
        """The highest level that has regions, in per cent; below `LEVELS`: none has."""
        return LEVELS.start - 1 + min(map(len, self.quantiles))

    def at(self, percent: int) -> Floats:
        """Return the quantile of each score at a level up to `highest`."""
        return np.array([column[percent - LEVELS.start] for column in self.quantiles])


@dataclass(frozen=True)
class Regions(ABC):
    """Regions at one level. Predictions are as the model answers them: float32 (n, outputs).

    Attributes:
        target: of the model.
        quantiles: of each score of a row at the level.
    """

    target: Any
    quantiles: Floats

    noun: ClassVar[str]  # for people
    size: ClassVar[str]  # name of the mean of `sizes`
    method: ClassVar[str]
    excess: ClassVar[str]  # why they may cover more than their level

    @staticmethod
    @abstractmethod
    def names(target: Any) -> tuple[str, ...]:
        """Return the names of a row's scores; "": the only one."""

    @staticmethod
    @abstractmethod
    def scores(predictions: Predictions, targets: NDArray[Any]) -> Floats:
        """Return the scores of the targets, (n, scores); smaller fits better."""

    def covers(self, predictions: Predictions, targets: NDArray[Any]) -> NDArray[np.bool_]:
        """Return whether each region contains the true value, (n, scores)."""
        covers: NDArray[np.bool_] = self.scores(predictions, targets) <= self.quantiles
        return covers

    @abstractmethod
    def tensors(self, predictions: Predictions) -> dict[str, NDArray[Any]]:
        """Return the regions as arrays of n rows, by name."""

    @abstractmethod
    def sizes(self, predictions: Predictions) -> Floats:
        """Return the mean size of the regions, (scores,)."""

    @abstractmethod
    def rows(self, predictions: Predictions) -> list[dict[str, Any]]:
        """Return the region of each row, as a client reads it beside the answer."""

    @abstractmethod
    def columns(self, predictions: Predictions) -> dict[str, NDArray[Any]]:
        """Return the regions as columns of a file of scores."""

    @staticmethod
    @abstractmethod
    def schema(target: Any) -> Schema:
        """Return the JSON schemas of the fields of `rows`."""


class NumberIntervals(Regions):
    """Intervals of each number, as wide for all rows. The score is the absolute error (Lei et al. 2018)."""

    target: Numbers

    noun: ClassVar[str] = "intervals"
    size: ClassVar[str] = "mean width"
    method: ClassVar[str] = "absolute error"
    excess: ClassVar[str] = "errors of validation samples are larger than those of test samples"

    @staticmethod
    def names(target: Numbers) -> tuple[str, ...]:
        return target.names if len(target.names) > 1 else ("",)

    @staticmethod
    def scores(predictions: Predictions, targets: NDArray[Any]) -> Floats:
        errors: Floats = np.abs(predictions.astype(np.float64) - targets)
        return errors

    def tensors(self, predictions: Predictions) -> dict[str, NDArray[Any]]:
        middle = predictions.astype(np.float64)
        ends = {"lower": middle - self.quantiles, "upper": middle + self.quantiles}
        return {end: values.astype(np.float32) for end, values in ends.items()}

    def sizes(self, predictions: Predictions) -> Floats:
        widths: Floats = 2.0 * self.quantiles
        return widths

    def rows(self, predictions: Predictions) -> list[dict[str, Any]]:
        names, ends = self.target.names, self.tensors(predictions)
        return [
            {end: dict(zip(names, values[row], strict=True)) for end, values in ends.items()}
            for row in range(len(predictions))
        ]

    def columns(self, predictions: Predictions) -> dict[str, NDArray[Any]]:
        """Return the columns lower and upper; of several numbers, "lower NAME" and "upper NAME" of each."""
        ends = self.tensors(predictions)
        return {
            f"{end} {name}".strip(): values[:, place].copy()
            for place, name in enumerate(self.names(self.target))
            for end, values in ends.items()
        }

    @staticmethod
    def schema(target: Numbers) -> Schema:
        numbers = object_schema({name: {"type": "number"} for name in target.names})
        return {"lower": numbers, "upper": numbers}


class ClassSets(Regions):
    """Sets of classes. They are those of LAC (Sadinle, Lei & Wasserman 2019), but never empty.

    The score of a class is 1 minus its probability, and 0 for the most probable class, which so is in every set.
    """

    target: Classes

    noun: ClassVar[str] = "sets"
    size: ClassVar[str] = "mean number of classes"
    method: ClassVar[str] = "1 minus the probability (LAC), 0 for the most probable class"
    excess: ClassVar[str] = "the most probable class is in every set, and may alone be right more often"

    @staticmethod
    def names(target: Classes) -> tuple[str, ...]:
        return ("",)

    @staticmethod
    def scores(predictions: Predictions, targets: NDArray[Any]) -> Floats:
        return np.take_along_axis(_class_scores(predictions), targets.astype(np.int64)[:, None], axis=1)

    def tensors(self, predictions: Predictions) -> dict[str, NDArray[Any]]:
        return {"set": _class_scores(predictions) <= self.quantiles}

    def sizes(self, predictions: Predictions) -> Floats:
        return np.array([self.tensors(predictions)["set"].sum(axis=1).mean()])

    def rows(self, predictions: Predictions) -> list[dict[str, Any]]:
        """Return the classes of each set, the most probable ones first."""
        order, sizes = np.argsort(-predictions, axis=1, kind="stable"), self.tensors(predictions)["set"].sum(axis=1)
        return [
            {"set": [self.target.names[place] for place in ranked[:size]]}
            for ranked, size in zip(order.tolist(), sizes.tolist(), strict=True)
        ]

    def columns(self, predictions: Predictions) -> dict[str, NDArray[Any]]:
        """Return the column set: a JSON list of names, the most probable ones first."""
        texts = [json.dumps(row["set"], ensure_ascii=False) for row in self.rows(predictions)]
        return {"set": np.array(texts, dtype=object)}

    @staticmethod
    def schema(target: Classes) -> Schema:
        return {"set": {"type": "array", "items": {"enum": list(target.names)}}}


def _class_scores(predictions: Predictions) -> Floats:
    """Return the score of each class, (n, classes)."""
    scores = 1.0 - predictions.astype(np.float64)
    np.put_along_axis(scores, predictions.argmax(axis=1)[:, None], 0.0, axis=1)
    return scores


REGIONS: Mapping[str, type[Regions]] = MappingProxyType({Classes.problem: ClassSets, Numbers.problem: NumberIntervals})
"""The regions by the name of the problem. Labels and tokens have none."""
