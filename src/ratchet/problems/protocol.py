"""The protocol of a problem: what is predicted for one sample, and what follows from it.

PyTorch is imported only where a model is trained, because settings, data and pages read targets, too.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import torch
    from torch import Tensor

__all__ = ["ELEMENTWISE", "LEAST_PROBABILITY", "Divergence", "Floats", "Sums", "Target", "logits", "softmax"]

Floats = NDArray[np.floating]
Choice = TypeVar("Choice")
Divergence = Callable[["Tensor", "Tensor", "Tensor | None"], "Tensor"]
"""Outputs of a student, those of its teacher, and weights of the samples -> sum over samples of the divergence."""

ELEMENTWISE = ("binary-cross-entropy", "mse", "l1", "smooth-l1")
"""Losses of each output by itself."""

LEAST_PROBABILITY = 1e-30
"""Smallest probability whose logarithm is taken: it is finite in float32."""


class Sums(Protocol):
    """Running sums on the device over a split, and the metrics that follow from them."""

    values: "Tensor"  # 0 at first; whole numbers in one dimension, or numbers that are rounded

    def add(self, outputs: "Tensor", targets: "Tensor") -> None: ...

    def metrics(self, loss: float) -> dict[str, float]:
        """Return the metrics by name; `loss` is the summed loss."""


class Target(ABC):
    """Target of a model: what it predicts for one sample. Each problem has one class of targets, a frozen dataclass.

    Outputs and targets are batches as the class says. This base has what problems with a logit for each class share.
    """

    problem: str  # its name, as in data.problem
    names: tuple[str, ...]  # of the classes, labels or numbers, in the order of the outputs

    losses: ClassVar[tuple[str, ...]]  # the first is that of training.loss: auto
    best: ClassVar[tuple[str, ...]]  # metrics of validation; the first is that of training.best: auto
    meaning: ClassVar[str]  # of the outputs for one sample
    mixes: ClassVar[bool] = False  # a target may be a mixture of two, as that of mixed images
    balances: ClassVar[bool] = False  # samples can be drawn so that all classes come equally often
    is_indexed: ClassVar[bool] = False  # targets are numbers of classes or tokens
    finds_wrong_labels: ClassVar[bool] = False  # `ratchet data labels` compares samples' classes with others
    has_accuracy: ClassVar[bool] = True
    dimensions: ClassVar[int] = 2  # of a batch of outputs; those of an ensemble have one more
    smoothing: ClassVar[float] = 0.0  # of training.label_smoothing: auto, for images
    ignored: ClassVar[int | None] = None  # target of places that never count
    constant_name: ClassVar[str] = "majority class"  # of the baseline that answers the same to all
    linear_name: ClassVar[str] = "logistic regression"

    def predicts_equal(self, other: "Target") -> bool:
        """Return whether another target has the same outputs: of equal classes, labels or numbers in this order."""
        first, second = ((each.problem, each.outputs, each.names) for each in (self, other))
        return first == second

    def continued(self, parent: "Target") -> "Target":
        """Return the target of a model that continues one with the target `parent`: its outputs mean the same."""
        return self

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes; other problems have none."""
        return ()

    @property
    @abstractmethod
    def description(self) -> str:
        """Text for people: "10 classes"."""

    @property
    def outputs(self) -> int:
        """Width of the model's output."""
        return len(self.names)

    # Predictions

    def predictions(self, outputs: Floats) -> NDArray[np.float64]:
        """Return the predictions that people read, from the outputs of a model: probabilities."""
        return softmax(outputs)

    def served(self, outputs: "Tensor") -> "Tensor":
        """Return `predictions` of tensors: what a served model answers."""
        import torch

        return torch.softmax(outputs, -1)

    def outputs_of(self, predictions: Floats) -> NDArray[np.float32]:
        """Return outputs of a model that makes these predictions: the inverse of `predictions`."""
        return logits(predictions)

    def mean_prediction(self, outputs: "Tensor", dim: int) -> "Tensor":
        """Return outputs of the mean prediction of several models, which are along `dim`."""
        from torch.nn import functional

        return functional.log_softmax(outputs, -1).logsumexp(dim) - math.log(outputs.shape[dim])

    def from_other(self, outputs: NDArray[np.float32], theirs: Any, order: list[int]) -> NDArray[np.float32]:
        """Return outputs of a model with another target of the same names as outputs for this target.

        Args:
            order: place of each of our names in it.
        """
        reordered: NDArray[np.float32] = outputs[:, order]
        return reordered

    def largest_difference(self, first: Floats, second: Floats) -> float:
        """Return the largest difference of two models' predictions, (n, outputs)."""
        return float(np.abs(first.astype(np.float64) - second).max())

    def support(self, outputs: Floats, output: int) -> Floats:
        """Return how much outputs speak for answer `output`, float (n,): here, its logit."""
        return outputs[:, output]

    # Training

    def scaled(self, targets: NDArray[np.generic]) -> NDArray[np.float64]:
        """Return targets as a model learns them."""
        return targets.astype(np.float64)

    def learned(self, device: "torch.device", smoothing: float) -> "Callable[[Tensor], Tensor]":
        """Return the function from targets to what outputs are compared with by a loss of each output by itself."""
        return lambda targets: targets

    def flat(self, outputs: "Tensor", targets: "Tensor") -> "tuple[Tensor, Tensor]":
        """Return outputs and targets with one line for each target."""
        return outputs, targets

    def num_correct(self, outputs: "Tensor", targets: "Tensor", ignored: int) -> "Tensor":
        """Return the number of right answers among those that count: int64 scalar."""
        is_right = outputs.argmax(-1) == targets
        return (is_right if ignored < 0 else is_right & (targets != ignored)).sum()  # no answer is below 0

    @property
    def answers_per_target(self) -> int:
        """Number of answers to one target that can be right."""
        return 1

    @abstractmethod
    def sums(self, ignored: int, device: "torch.device") -> Sums:
        """Return the sums that give the metrics of validation."""

    def divergence(self, teacher: Any, softness: float, device: "torch.device") -> Divergence:
        """Return the divergence of a student's outputs from those of a teacher, whose target is `teacher`."""
        from torch.nn import functional

        def divergence(outputs: "Tensor", answers: "Tensor", weights: "Tensor | None") -> "Tensor":
            expected = functional.log_softmax(answers / softness, 1)
            each = functional.kl_div(
                functional.log_softmax(outputs / softness, 1), expected, reduction="none", log_target=True
            ).sum(1)
            return softness**2 * (each if weights is None else each * weights).sum()

        return divergence

    @property
    def highest(self) -> int:
        """Largest value of a target that is a class, a token, or whether a label applies."""
        return self.outputs - 1

    # Baselines

    def is_varied(self, targets: NDArray[Any]) -> bool:
        """Return whether a model can be fitted to these targets."""
        return len(targets) > 1

    def constant(self, targets: NDArray[np.generic]) -> NDArray[np.float64]:
        """Return the outputs, (outputs,), of the model that answers the same to all samples."""
        return np.zeros(self.outputs)

    # Other packages

    @classmethod
    @abstractmethod
    def choose(cls, *, classes: Choice, labels: Choice, numbers: Choice) -> Choice:
        """Return the one for this problem of what is for one of several classes, for labels, and for numbers."""

    @classmethod
    @abstractmethod
    def of_values(
        cls, names: tuple[str, ...], values: NDArray[Any], measure: Callable[[NDArray[Any]], Any]
    ) -> "Target":
        """Return the target for training values, (rows,) or (rows, names).

        `measure` returns mean, std (never 0) and range of numbers; the range is None if none is far from the others.
        """

    @classmethod
    def statistics(cls, names: tuple[str, ...], values: NDArray[Any]) -> dict[str, dict[str, float]]:
        """Return statistics of training values, by name."""
        return {}


def softmax(logits: Floats) -> NDArray[np.float64]:
    """Return probabilities along the last axis, in double precision."""
    shifted = logits.astype(np.float64)
    shifted -= shifted.max(axis=-1, keepdims=True)
    exponentials = np.exp(shifted)
    probabilities: NDArray[np.float64] = exponentials / exponentials.sum(axis=-1, keepdims=True)
    return probabilities


def logits(probabilities: Floats) -> NDArray[np.float32]:
    """Return logits whose softmax is these probabilities."""
    return np.log(np.maximum(probabilities.astype(np.float64), LEAST_PROBABILITY)).astype(np.float32)
