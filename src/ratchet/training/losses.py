"""Losses, summed over samples so that micro-batches add up to exactly what the whole batch would have given."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from ratchet.errors import TrainingError
from ratchet.training.plan import Plan

__all__ = ["Objective", "class_weights"]

_ELEMENTWISE: dict[str, Callable[..., torch.Tensor]] = {
    "binary-cross-entropy": functional.binary_cross_entropy_with_logits,
    "mse": functional.mse_loss,
    "l1": functional.l1_loss,
    "smooth-l1": functional.smooth_l1_loss,
}
Labels = NDArray[np.int64]


class Objective:
    """The loss that `plan` names, for one training.

    `loss(batch) / weight(batch)` is what torch.nn's loss of that name with reduction="mean" gives: cross-entropy over
    the samples' class weights, the others over samples and classes.
    """

    def __init__(self, plan: Plan, weights: NDArray[np.float32] | None, device: torch.device) -> None:
        self.kind, self.smoothing, self.ignored = plan.loss, plan.label_smoothing, plan.ignore_index
        self.host_weights = weights
        self.weights = None if weights is None else torch.from_numpy(weights).to(device)

    def counted(self, labels: Labels) -> int:
        """How many of the labels count."""
        return int((labels != self.ignored).sum())

    def weight(self, labels: Labels) -> float:
        """What the batch weighs: its counted samples, each times its class's weight. Worked out on the host."""
        counted = labels[labels != self.ignored]
        if self.host_weights is None:
            return float(len(counted))
        return float(self.host_weights[counted].sum(dtype=np.float64))

    def __call__(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Logits (n, classes) and labels int64 (n,) -> the sum of the samples' losses, a scalar."""
        if logits.dtype in (torch.bfloat16, torch.float16):
            logits = logits.float()
        if self.kind == "cross-entropy":
            return functional.cross_entropy(
                logits,
                labels,
                weight=None if self.weights is None else self.weights.to(logits.dtype),
                ignore_index=self.ignored,
                label_smoothing=self.smoothing,
                reduction="sum",
            )
        classes = logits.shape[1]
        counts = labels != self.ignored
        known = torch.where(counts, labels, torch.zeros_like(labels))
        targets = functional.one_hot(known, classes).to(logits.dtype)
        targets = targets * (1.0 - self.smoothing) + self.smoothing / classes
        losses = _ELEMENTWISE[self.kind](logits, targets, reduction="none").mean(1)
        weights = counts.to(logits.dtype)
        if self.weights is not None:
            weights = weights * self.weights.to(logits.dtype)[known]
        return (losses * weights).sum()

    @classmethod
    def measuring(cls, plan: Plan) -> "Objective":
        """The same loss as it is measured: without smoothing and class weights, which only teach."""
        return cls(replace(plan, label_smoothing=0.0), None, torch.device("cpu"))


def class_weights(plan: Plan, labels: Labels, classes: int) -> NDArray[np.float32] | None:
    """The weight of each class, float32 (classes,), or None: all alike.

    balanced: rows / (classes * rows of the class), as scikit-learn has it, so that their mean over the rows is 1.

    Raises:
        TrainingError: a list of another length.
    """
    if plan.class_weights == "none":
        return None
    if plan.class_weights == "balanced":
        counted = labels[labels != plan.ignore_index]
        counts = np.bincount(counted, minlength=classes)
        return (len(counted) / (classes * np.maximum(counts, 1))).astype(np.float32)
    if len(plan.class_weights) != classes:
        raise TrainingError(
            f"training.class_weights: found {len(plan.class_weights)} weights; the data have {classes} classes: "
            "give one per class in the order of the classes, or balanced, or none"
        )
    return np.array(plan.class_weights, np.float32)
