"""Losses, summed over samples, so that micro-batches add up to the loss of the whole batch."""

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
    """The loss `plan.loss`.

    `loss(batch) / weight(batch)` equals the loss of that name in torch.nn with reduction="mean": a mean over samples by
    class weight for cross-entropy, over samples and classes for the others.
    """

    def __init__(self, plan: Plan, weights: NDArray[np.float32] | None, device: torch.device) -> None:
        self.kind, self.smoothing, self.ignored = plan.loss, plan.label_smoothing, plan.ignore_index
        self.host_weights = weights
        self.weights = None if weights is None else torch.from_numpy(weights).to(device)

    def counted(self, labels: Labels) -> int:
        return int((labels != self.ignored).sum())

    def weight(self, labels: Labels) -> float:
        """Return the sum of the class weights of the batch's counted samples. Computed on the CPU."""
        counted = labels[labels != self.ignored]
        if self.host_weights is None:
            return float(len(counted))
        return float(self.host_weights[counted].sum(dtype=np.float64))

    def __call__(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return the sum of the losses of the samples, a scalar, from logits (n, classes) and labels int64 (n,)."""
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
        """Return the loss for validation: without smoothing and class weights, which are for training only."""
        return cls(replace(plan, label_smoothing=0.0), None, torch.device("cpu"))


def class_weights(plan: Plan, labels: Labels, classes: int) -> NDArray[np.float32] | None:
    """Return the weight of each class, float32 (classes,), or None if all are equal.

    Balanced weights are samples / (classes * samples of the class), as in scikit-learn: their mean over samples is 1.

    Raises:
        TrainingError: the list has another length than the classes.
    """
    if plan.class_weights == "none":
        return None
    if plan.class_weights == "balanced":
        counted = labels[labels != plan.ignore_index]
        counts = np.bincount(counted, minlength=classes)
        return (len(counted) / (classes * np.maximum(counts, 1))).astype(np.float32)
    if len(plan.class_weights) != classes:
        raise TrainingError(
            f"training.class_weights: found {len(plan.class_weights)} weights, but the data have {classes} "
            "classes. Allowed: one weight per class in the order of the classes, or balanced, or none"
        )
    return np.array(plan.class_weights, np.float32)
