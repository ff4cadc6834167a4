"""Losses, summed over samples, so that micro-batches add up to the loss of the whole batch."""

from collections.abc import Callable
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from ratchet.augmentations import MIXING, entries, list_faults
from ratchet.combinations import objective_faults, own_loss_fault, sampling_fault
from ratchet.errors import TrainingError
from ratchet.kinds.registry import kind_named
from ratchet.problems import Target
from ratchet.training.batches import Rows, Split
from ratchet.training.own_loss import OwnLoss
from ratchet.training.plan import Plan

__all__ = ["Objective", "SampleCounts", "class_weights", "resolve_auto"]

_ELEMENTWISE: dict[str, Callable[..., torch.Tensor]] = {
    "binary-cross-entropy": functional.binary_cross_entropy_with_logits,
    "mse": functional.mse_loss,
    "l1": functional.l1_loss,
    "smooth-l1": functional.smooth_l1_loss,
}
Targets = NDArray[Any]


def resolve_auto(plan: Plan, target: Target, *, kind: str = "image") -> Plan:
    """Return the plan with loss, metric and label smoothing chosen by target and kind of samples where they are auto.

    Raises:
        TrainingError: the problem has no such loss or metric, or the list of augmentations is wrong.
    """
    loss = target.losses[0] if plan.loss == "auto" else plan.loss
    best = f"validation/{target.best[0]}" if plan.best == "auto" else plan.best
    faults = chain(list_faults(plan, kind), objective_faults(plan, target))  # the others read a correct list
    if fault := next(filter(None, faults), "") or own_loss_fault(plan) or sampling_fault(plan):
        raise TrainingError(fault)
    if target.ignored is not None:
        plan = replace(plan, ignore_index=target.ignored)
    if plan.label_smoothing == "auto":
        smooths = kind_named(kind).smooths_labels and ":" not in loss
        plan = replace(plan, label_smoothing=target.smoothing if smooths else 0.0)
    is_mixing = any(name in MIXING for name, _ in entries(plan))
    return replace(plan, loss=loss, best=best, mixed_classes=len(target.classes) if is_mixing else 0)


class Objective:
    """The loss `plan.loss`.

    `loss(batch) / weight(batch)` equals the loss of that name in torch.nn with reduction="mean": a mean over samples by
    class weight for cross-entropy, over tokens for language models, over samples and outputs for the others. Numbers
    are compared in units of the training targets' standard deviation. Of an ensemble, outputs (n, members, outputs),
    it is the mean over the members' losses. `own` is the user's loss, which gives that of each sample or token: it is
    weighted as cross-entropy.
    """

    def __init__(
        self,
        plan: Plan,
        target: Target,
        device: torch.device,
        *,
        weights: NDArray[np.float32] | None = None,
        own: OwnLoss | None = None,
    ) -> None:
        assert not isinstance(plan.label_smoothing, str), "`resolve_auto` replaces auto"
        self.kind, self.smoothing, self.ignored = plan.loss, plan.label_smoothing, plan.ignore_index
        self.target, self.device, self.own = target, device, own
        self.host_weights = weights
        self.weights = None if weights is None else torch.from_numpy(weights).to(device)
        self.learned = target.learned(device, self.smoothing)

    def count(self, targets: Targets) -> int:
        """Return the number of samples, or of tokens, that count in the loss. Computed on the CPU."""
        if self.target.is_indexed:
            return int((targets != self.ignored).sum())
        return len(targets)

    def weight(self, targets: Targets) -> float:
        """Return the sum of the class weights of the batch's counted samples. Computed on the CPU."""
        if self.host_weights is None or not self.target.is_indexed:
            return float(self.count(targets))
        return float(self.host_weights[targets[targets != self.ignored]].sum(dtype=np.float64))

    def sample_weights(self, targets: torch.Tensor) -> torch.Tensor:
        """Return the weight of each sample or token of a batch, float32 (n,); 0 for those that do not count."""
        if targets.is_floating_point():
            return targets.sum(1)
        counts = targets != self.ignored
        if self.weights is None:
            return counts.float()
        return self.weights[torch.where(counts, targets, torch.zeros_like(targets))] * counts

    def __call__(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return the sum of the losses of the samples, a scalar; see `ratchet.problems` for the shapes.

        Raises:
            TrainingError: the outputs are no tensor: `build` has tried the model in eval mode only.
        """
        if not isinstance(outputs, torch.Tensor):
            raise TrainingError(
                f"the model returns a {type(outputs).__name__} in training mode. Allowed: a tensor, as in eval mode: "
                f"{self.target.meaning}. Fix: let forward return that alone"
            )
        if outputs.dtype in (torch.bfloat16, torch.float16):
            outputs = outputs.float()
        if outputs.dim() > self.target.dimensions:
            members = outputs.shape[1]
            return self(outputs.flatten(0, 1), targets.repeat_interleave(members, 0)) / members
        outputs, targets = self.target.flat(outputs, targets)
        if self.target.is_indexed:
            of_classes = self._of_shares if targets.is_floating_point() else self._of_classes
            return of_classes(outputs, targets)
        wanted = self.learned(targets).to(outputs.dtype)
        if self.own is not None:
            return self.own(outputs, wanted).sum()
        return _ELEMENTWISE[self.kind](outputs, wanted, reduction="none").mean(1).sum()

    def _of_classes(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
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
        indices = torch.where(counts, labels, torch.zeros_like(labels))
        if self.own is not None:
            each = self.own(logits, indices)
            losses = torch.where(counts, each, torch.zeros_like(each))
        else:
            targets = functional.one_hot(indices, classes).to(logits.dtype)
            targets = targets * (1.0 - self.smoothing) + self.smoothing / classes
            losses = _ELEMENTWISE[self.kind](logits, targets, reduction="none").mean(1)
        weights = counts.to(logits.dtype)
        if self.weights is not None:
            weights = weights * self.weights.to(logits.dtype)[indices]
        return (losses * weights).sum()

    def _of_shares(self, logits: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
        """Return the loss of mixed samples; those that do not count have no share of any class."""
        counts = shares.sum(1)
        targets = shares * (1.0 - self.smoothing) + self.smoothing / logits.shape[1] * counts[:, None]
        if self.kind == "cross-entropy":
            return -(functional.log_softmax(logits, 1) * targets).sum()
        return (_ELEMENTWISE[self.kind](logits, targets.to(logits.dtype), reduction="none").mean(1) * counts).sum()

    def num_correct(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return the number of right answers among those that count: int64 scalar; 0 for numbers.

        A label is right if its logit is on the right side of 0. The members of an ensemble answer together. Of a mixed
        sample the class with the largest share is the right one.
        """
        if self.target.is_indexed and targets.is_floating_point():
            targets = torch.where(targets.sum(1) > 0, targets.argmax(1), self.ignored)
        if outputs.dim() > self.target.dimensions:
            outputs = outputs.float().mean(1)
        return self.target.num_correct(outputs, targets, self.ignored)

    def num_scored(self, targets: Targets) -> int:
        """Return the largest value that the sum of `num_correct` can have."""
        return self.count(targets) * self.target.answers_per_target

    @classmethod
    def measuring(cls, plan: Plan, target: Target, device: torch.device, *, own: OwnLoss | None = None) -> "Objective":
        """Return the loss for validation: without smoothing and class weights, which are for training only."""
        return cls(replace(plan, label_smoothing=0.0), target, device, own=own)


class SampleCounts:
    """Weights and numbers of answers of the rows of a split. Their targets are read only where rows differ."""

    def __init__(self, objective: Objective, split: Split) -> None:
        self.objective, self.split = objective, split
        self.per_row = split.targets_per_row(objective.ignored) if objective.target.is_indexed else 1
        self.is_even = objective.host_weights is None or not objective.target.is_indexed

    def weight(self, rows: Rows) -> float:
        """Return `Objective.weight` of the targets of `rows`."""
        if self.per_row is not None and self.is_even:
            return float(self.per_row * len(rows))
        return self.objective.weight(self.split.host_targets(rows))

    def num_scored(self, rows: Rows) -> int:
        """Return `Objective.num_scored` of the targets of `rows`."""
        if self.per_row is not None:
            return self.per_row * len(rows) * self.objective.target.answers_per_target
        return self.objective.num_scored(self.split.host_targets(rows))


def class_weights(plan: Plan, targets: Targets, target: Target) -> NDArray[np.float32] | None:
    """Return the weight of each class, float32 (classes,), or None if all are equal.

    Balanced weights are samples / (classes * samples of the class), as in scikit-learn: their mean over samples is 1.

    Raises:
        TrainingError: the list has another length than the classes, or there are no classes.
    """
    if plan.class_weights == "none":
        return None
    if not target.classes:
        raise TrainingError(
            f"training.class_weights: found {plan.class_weights}, and the problem of the data is {target.problem}. "
            "Allowed: none. Fix: `ratchet set training.class_weights=none`"
        )
    classes = target.outputs
    if plan.class_weights == "balanced":
        counted = targets[targets != plan.ignore_index]
        counts = np.bincount(counted, minlength=classes)
        return (len(counted) / (classes * np.maximum(counts, 1))).astype(np.float32)
    if len(plan.class_weights) != classes:
        raise TrainingError(
            f"training.class_weights: found {len(plan.class_weights)} weights, but the data have {classes} "
            "classes. Allowed: one weight per class in the order of the classes, or balanced, or none"
        )
    return np.array(plan.class_weights, np.float32)
