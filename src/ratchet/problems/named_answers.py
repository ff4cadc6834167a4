"""Answers as a client reads them, with the names of classes, labels or numbers. Each problem has a class.

It also reads the labels that come later, and compares answers. The package does not import this module: its code
decides no weight.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ratchet.problems.classes import Classes
from ratchet.problems.labels import Labels
from ratchet.problems.next_token import NextToken
from ratchet.problems.numbers import Numbers
from ratchet.problems.protocol import Target

__all__ = ["NAMED_ANSWERS", "NamedAnswers", "named_answers", "object_schema"]

NO_RESULT = "it names answers for readers, and decides how a served version is watched"

Schema = dict[str, Any]
Predictions = NDArray[np.float32]
Floats = NDArray[np.float64]

_SHARE: Mapping[str, Any] = MappingProxyType({"type": "number", "minimum": 0, "maximum": 1.000001})
_NUMBER: Mapping[str, Any] = MappingProxyType({"type": "number"})
_LEAST = 1e-30  # probability whose logarithm is finite
_LARGEST = 3.4e38  # of float32
_LISTED = 20  # classes that a message lists
_WATCHED = 32  # classes whose probabilities are watched for drift, each for itself


@dataclass(frozen=True)
class NamedAnswers(ABC):
    """Form of the answers of one model."""

    target: Any

    takes_labels: ClassVar[bool] = False
    has_confidence: ClassVar[bool] = False

    @abstractmethod
    def rows(self, predictions: Predictions, top: int) -> list[dict[str, Any]]:
        """Return the answer to each row; of classes the `top` most probable ones."""

    @property
    @abstractmethod
    def schema(self) -> Schema:
        """JSON schema of the answer to a row."""

    def columns(self, predictions: Predictions) -> dict[str, NDArray[Any]]:
        """Return the answers as columns of a file of scores."""
        return {name: predictions[:, place].copy() for place, name in enumerate(self.target.names)}

    def features(self, predictions: Floats) -> dict[str, NDArray[Any]]:
        """Return features of answers by name, to watch for drift."""
        return {f"answer.{name}": predictions[:, place] for place, name in enumerate(self.target.names)}

    def entropy(self, predictions: Floats) -> Floats:
        """Return how uncertain each answer is; NaN: it does not say."""
        return np.full(len(predictions), np.nan)

    @property
    def label_schema(self) -> Schema:
        """JSON schema of the true value of a row."""
        return dict(_NUMBER)

    def label(self, value: Any) -> list[float]:
        """Return the true value of a row as numbers.

        Raises:
            ValueError: it is not possible; the message says what is allowed.
        """
        raise NotImplementedError("only classes and numbers take labels")

    def true_value(self, label: list[float]) -> Any:
        """Return the true value of a row: the inverse of `label`.

        Raises:
            ValueError: the numbers are not a label of this model.
        """
        raise NotImplementedError("only classes and numbers take labels")

    def label_columns(self, labels: Floats, names: Sequence[str]) -> dict[str, NDArray[Any]]:
        """Return labels (n, numbers) as columns of a table whose label columns have these names."""
        raise NotImplementedError("only classes and numbers take labels")

    @staticmethod
    def equal_rows(first: Floats, second: Floats) -> Any:
        """Return which rows have the same answer in two predictions (n, outputs); None: they are numbers."""
        return np.all((first > 0.5) == (second > 0.5), axis=1)

    @staticmethod
    def right_rows(predictions: Floats, labels: Floats) -> Any:
        """Return which rows are right, by labels as `label` returns them; None: they are numbers."""
        return None

    @staticmethod
    def confidence_rows(predictions: Floats) -> Floats | None:
        """Return the probability that each answer is right; None: the answers do not say."""
        return None


class _Classes(NamedAnswers):
    target: Classes

    takes_labels: ClassVar[bool] = True
    has_confidence: ClassVar[bool] = True

    def rows(self, predictions: Predictions, top: int) -> list[dict[str, Any]]:
        names, order = self.target.names, np.argsort(-predictions, axis=1, kind="stable")[:, :top]
        return [
            {
                "class": names[best[0]],
                "probability": row[best[0]],
                **({"top": [{"class": names[at], "probability": row[at]} for at in best]} if top > 1 else {}),
            }
            for row, best in zip(predictions, order, strict=True)
        ]

    @property
    def schema(self) -> Schema:
        chosen: Schema = {"class": {"enum": list(self.target.names)}, "probability": dict(_SHARE)}
        several = {"type": "array", "items": object_schema(chosen)}
        return object_schema(chosen | {"top": several}, "class", "probability")

    def columns(self, predictions: Predictions) -> dict[str, NDArray[Any]]:
        names = np.array(self.target.names, dtype=str)
        return {"class": names[predictions.argmax(axis=1)], "probability": predictions.max(axis=1)}

    def features(self, predictions: Floats) -> dict[str, NDArray[Any]]:
        """Return probabilities and confidence; with many classes, the class and its confidence."""
        confidence = {"confidence": predictions.max(axis=1)}
        if len(self.target.names) <= _WATCHED:
            return super().features(predictions) | confidence
        classes = np.array([*self.target.names, None], object)
        best = np.where(np.isnan(confidence["confidence"]), len(classes) - 1, predictions.argmax(axis=1))
        return {"answer": classes[best]} | confidence

    def entropy(self, predictions: Floats) -> Floats:
        entropy: Floats = -(predictions * np.log(np.maximum(predictions, _LEAST))).sum(axis=1)
        return entropy

    @property
    def label_schema(self) -> Schema:
        return {"enum": list(self.target.names)}

    def label(self, value: Any) -> list[float]:
        names = self.target.names
        if isinstance(value, int | float):  # 1 and 1.0 mean the class "1", true the class "True"
            value = next((name for name in names if name.lower() == str(value).lower().removesuffix(".0")), value)
        if value not in names:
            raise ValueError(", ".join(names[:_LISTED]) + (", ..." if len(names) > _LISTED else ""))
        return [float(names.index(value))]

    def true_value(self, label: list[float]) -> str:
        if len(label) != 1 or label[0] % 1 or not 0 <= label[0] < len(self.target.names):
            raise ValueError(", ".join(self.target.names[:_LISTED]))
        return self.target.names[int(label[0])]

    def label_columns(self, labels: Floats, names: Sequence[str]) -> dict[str, NDArray[Any]]:
        return {names[0]: np.array(self.target.names, object)[labels[:, 0].astype(np.int64)]}

    @staticmethod
    def equal_rows(first: Floats, second: Floats) -> Any:
        return np.equal(first.argmax(axis=1), second.argmax(axis=1))

    @staticmethod
    def confidence_rows(predictions: Floats) -> Floats | None:
        confidence: Floats = predictions.max(axis=1)
        return confidence

    @staticmethod
    def right_rows(predictions: Floats, labels: Floats) -> Any:
        return np.equal(predictions.argmax(axis=1), labels[:, 0])


class _Labels(NamedAnswers):
    target: Labels

    def rows(self, predictions: Predictions, top: int) -> list[dict[str, Any]]:
        return [{"probabilities": dict(zip(self.target.names, row, strict=True))} for row in predictions]

    @property
    def schema(self) -> Schema:
        return object_schema({"probabilities": object_schema({key: dict(_SHARE) for key in self.target.names})})


class _Numbers(NamedAnswers):
    target: Numbers

    takes_labels: ClassVar[bool] = True

    def rows(self, predictions: Predictions, top: int) -> list[dict[str, Any]]:
        return [{"values": dict(zip(self.target.names, row, strict=True))} for row in predictions]

    @property
    def schema(self) -> Schema:
        target = self.target
        numbers = {
            name: {**_NUMBER, "description": f"training values: mean {mean:.6g}, standard deviation {std:.6g}"}
            for name, mean, std in zip(target.names, target.mean, target.std, strict=True)
        }
        return object_schema({"values": object_schema(numbers)})

    @property
    def label_schema(self) -> Schema:
        values = object_schema({key: dict(_NUMBER) for key in self.target.names}, *self.target.names)
        return {"anyOf": [dict(_NUMBER), values]} if len(self.target.names) == 1 else values

    def label(self, value: Any) -> list[float]:
        names = self.target.names
        values = value if isinstance(value, dict) else {names[0]: value}
        if set(values) != set(names) or not all(_is_number(each) for each in values.values()):
            raise ValueError("a finite number" if len(names) == 1 else f"an object with numbers: {', '.join(names)}")
        return [float(values[name]) for name in names]

    def true_value(self, label: list[float]) -> dict[str, float]:
        if len(label) != len(self.target.names):
            raise ValueError(f"{len(self.target.names)} numbers")
        return dict(zip(self.target.names, label, strict=True))

    def label_columns(self, labels: Floats, names: Sequence[str]) -> dict[str, NDArray[Any]]:
        return {name: labels[:, place] for place, name in enumerate(names)}

    @staticmethod
    def equal_rows(first: Floats, second: Floats) -> Any:
        return None


class _Texts(NamedAnswers):
    target: NextToken

    def rows(self, predictions: Predictions, top: int) -> list[dict[str, Any]]:
        raise NotImplementedError("a language model answers with texts")

    @property
    def schema(self) -> Schema:
        return object_schema({"text": {"type": "string"}}, "text")


NAMED_ANSWERS: Mapping[str, type[NamedAnswers]] = MappingProxyType(
    {
        target.problem: named
        for target, named in ((Classes, _Classes), (Labels, _Labels), (Numbers, _Numbers), (NextToken, _Texts))
    }
)

"""The form of the answers by the name of the problem."""


def named_answers(target: Target) -> NamedAnswers:
    """Return the form of the answers of a model with this target."""
    return NAMED_ANSWERS[target.problem](target)


def object_schema(properties: Schema, *required: str) -> Schema:
    """Return the JSON schema of an object."""
    return {"type": "object", "properties": properties} | ({"required": list(required)} if required else {})


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value) and abs(value) <= _LARGEST
