"""Targets of a model: what is predicted for one sample."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

__all__ = ["Classes", "Labels", "NextToken", "Numbers", "Target"]

Floats = NDArray[np.floating]


@dataclass(frozen=True)
class Classes:
    """Exactly one of several classes. Targets: int64 (n,), indices into `names`. Outputs: logits (n, classes)."""

    names: tuple[str, ...]
    problem: Literal["classification"] = "classification"

    @property
    def described(self) -> str:
        """Text for people: "10 classes"."""
        return f"{len(self.names)} classes"

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes; of other targets none."""
        return self.names

    @property
    def outputs(self) -> int:
        """Width of the model's output."""
        return len(self.names)

    def predictions(self, outputs: Floats) -> NDArray[np.float64]:
        """Return class probabilities, (n, classes), from logits."""
        return _softmax(outputs)


@dataclass(frozen=True)
class Labels:
    """Any number of labels at once. Targets: float32 (n, labels), 0 or 1. Outputs: logits (n, labels)."""

    names: tuple[str, ...]
    problem: Literal["multi-label"] = "multi-label"
    classes: ClassVar[tuple[str, ...]] = ()

    @property
    def described(self) -> str:
        """Text for people: "5 labels"."""
        return f"{len(self.names)} labels"

    @property
    def outputs(self) -> int:
        return len(self.names)

    def predictions(self, outputs: Floats) -> NDArray[np.float64]:
        """Return the probability of each label, (n, labels), from logits."""
        probabilities: NDArray[np.float64] = np.exp(-np.logaddexp(0.0, -outputs.astype(np.float64)))
        return probabilities


@dataclass(frozen=True)
class Numbers:
    """One or several numbers. Targets: float32 (n, numbers), in their own units.

    Outputs: (n, numbers), in units of the training targets' standard deviation from their mean. Targets far from all
    others have no part in both, and a model learns them as the nearest of the others. Metrics take them as they are.
    """

    names: tuple[str, ...]
    mean: tuple[float, ...]  # of the training targets
    std: tuple[float, ...]  # never 0
    low: tuple[float, ...] = ()  # smallest number to learn from, if training targets are far from the others
    high: tuple[float, ...] = ()  # largest one
    problem: Literal["regression"] = "regression"
    classes: ClassVar[tuple[str, ...]] = ()

    @property
    def described(self) -> str:
        """Text for people: "number cnt"."""
        return f"{'number' if len(self.names) == 1 else 'numbers'} {', '.join(self.names)}"

    @property
    def outputs(self) -> int:
        return len(self.names)

    def predictions(self, outputs: Floats) -> NDArray[np.float64]:
        """Return the predicted numbers in their own units, (n, numbers)."""
        numbers: NDArray[np.float64] = outputs.astype(np.float64) * np.array(self.std) + np.array(self.mean)
        return numbers

    def scaled(self, targets: NDArray[np.generic]) -> NDArray[np.float64]:
        """Return targets as a model learns them, (n, numbers): in units of the outputs, far ones limited."""
        numbers = targets.astype(np.float64)
        if self.low:
            numbers = numbers.clip(self.low, self.high)
        scaled: NDArray[np.float64] = (numbers - np.array(self.mean)) / np.array(self.std)
        return scaled


@dataclass(frozen=True)
class NextToken:
    """The token that follows each token. Targets: int64 (n, context). Outputs: logits (n, context, tokens)."""

    tokens: int  # ids of the vocabulary
    problem: Literal["next-token"] = "next-token"
    classes: ClassVar[tuple[str, ...]] = ()

    @property
    def described(self) -> str:
        return "next token"

    @property
    def outputs(self) -> int:
        return self.tokens

    def predictions(self, outputs: Floats) -> NDArray[np.float64]:
        """Return the probability of each token at each place, (n, context, tokens), from logits."""
        return _softmax(outputs)


def _softmax(logits: Floats) -> NDArray[np.float64]:
    """Return probabilities along the last axis, in double precision."""
    shifted = logits.astype(np.float64)
    shifted -= shifted.max(axis=-1, keepdims=True)
    exponentials = np.exp(shifted)
    probabilities: NDArray[np.float64] = exponentials / exponentials.sum(axis=-1, keepdims=True)
    return probabilities


Target = Classes | Labels | Numbers | NextToken
