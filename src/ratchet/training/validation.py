"""Validation: the metrics of a split, the best epoch by them, patience and over-fitting."""

import math
from typing import Protocol

import numpy as np
import torch
from torch import nn

from ratchet.problems import Classes, Labels, Numbers
from ratchet.training.batches import Split
from ratchet.training.losses import Objective
from ratchet.training.plan import Plan
from ratchet.training.precision import Precision
from ratchet.training.state import TrainingState

__all__ = ["epoch_score", "larger_is_better", "overfitting_notice", "update_best", "validate"]

_SMALLER_IS_BETTER = ("loss", "mae", "rmse", "perplexity")


def validate(
    model: nn.Module, split: Split, *, objective: Objective, precision: Precision, device: torch.device, batch_size: int
) -> dict[str, float]:
    """Compute the loss and the problem's metrics over the whole split. The model is left in eval mode.

    Classes: accuracy; balanced_accuracy, the mean recall over classes; f1, the mean over classes of the harmonic mean
    of precision and recall. Classes without samples are left out; for f1, only those that are not predicted either.
    Labels: accuracy and f1 over all labels of all samples. Numbers: mae and rmse in their own units, and r2; each is a
    mean over the targets. Next token: perplexity, e to the loss.
    """
    model.eval()
    loss = torch.zeros((), device=device)
    sums = _sums_for(objective, device)
    with torch.inference_mode():
        for inputs, targets in split.feed(list(split.in_order(batch_size)), device):
            with precision.autocast(device):
                outputs = model(*inputs)
            loss += objective(outputs, targets)
            sums.add(outputs, targets)
    metrics = sums.metrics(loss.item())
    return {f"validation/{name}": value for name, value in metrics.items()}


class _Sums(Protocol):
    """Running sums on the device, and the metrics that follow from them."""

    def add(self, outputs: torch.Tensor, targets: torch.Tensor) -> None: ...

    def metrics(self, loss: float) -> dict[str, float]:
        """Return the metrics by name; `loss` is the summed loss."""


def _sums_for(objective: Objective, device: torch.device) -> _Sums:
    match objective.target:
        case Classes():
            return _ClassSums(objective, device)
        case Labels():
            return _LabelSums(device)
        case Numbers():
            return _NumberSums(objective, device)
        case _:
            return _TokenSums(objective)


class _ClassSums:
    def __init__(self, objective: Objective, device: torch.device) -> None:
        self.classes, self.ignored = objective.target.outputs, objective.ignored
        self.table = torch.zeros(self.classes**2, dtype=torch.int64, device=device)

    def add(self, outputs: torch.Tensor, targets: torch.Tensor) -> None:
        counted = targets != self.ignored
        pairs = (targets * self.classes + outputs.argmax(1))[counted]
        self.table += torch.bincount(pairs, minlength=self.classes**2)

    def metrics(self, loss: float) -> dict[str, float]:
        confusion = self.table.view(self.classes, self.classes).cpu().numpy()  # (actual, predicted)
        total, correct = confusion.sum(), confusion.diagonal()
        actual, predicted = confusion.sum(1), confusion.sum(0)
        present, known = actual > 0, actual + predicted > 0
        return {
            "loss": loss / max(int(total), 1),
            "accuracy": float(correct.sum() / max(total, 1)),
            "balanced_accuracy": float(np.mean(correct[present] / actual[present])),
            "f1": float(np.mean(2 * correct[known] / (actual + predicted)[known])),
        }


class _LabelSums:
    def __init__(self, device: torch.device) -> None:
        self.rows = self.cells = 0
        self.counts = torch.zeros(3, dtype=torch.int64, device=device)  # right, true and answered, true or answered

    def add(self, outputs: torch.Tensor, targets: torch.Tensor) -> None:
        answered, true = outputs > 0, targets > 0.5
        self.counts += torch.stack([(answered == true).sum(), (answered & true).sum(), answered.sum() + true.sum()])
        self.rows, self.cells = self.rows + len(targets), self.cells + targets.numel()

    def metrics(self, loss: float) -> dict[str, float]:
        right, both, either = self.counts.tolist()
        accuracy, f1 = right / max(self.cells, 1), 2 * both / either if either else 1.0
        return {"loss": loss / max(self.rows, 1), "accuracy": accuracy, "f1": f1}


class _NumberSums:
    def __init__(self, objective: Objective, device: torch.device) -> None:
        self.mean, self.std, self.rows = objective.mean, objective.std, 0
        self.precise = torch.float32 if device.type == "mps" else torch.float64  # far targets have huge squares
        # Sums of |error|, error^2, target and target^2.
        self.sums = torch.zeros(4, len(self.std), device=device, dtype=self.precise)

    def add(self, outputs: torch.Tensor, targets: torch.Tensor) -> None:
        """Add the errors in units of the standard deviation, where their squares neither overflow nor vanish."""
        scaled = (targets.to(self.precise) - self.mean) / self.std
        errors = outputs.to(self.precise) - scaled
        self.sums += torch.stack([errors.abs(), errors.square(), scaled, scaled.square()]).sum(1)
        self.rows += len(targets)

    def metrics(self, loss: float) -> dict[str, float]:
        absolute, squared, mean, square = self.sums.cpu().double().numpy() / max(self.rows, 1)
        std, variance = self.std.cpu().numpy().astype(np.float64), square - mean**2
        explained = 1.0 - np.divide(squared, variance, out=np.full_like(squared, np.inf), where=variance > 0)
        return {
            "loss": loss / max(self.rows, 1),
            "mae": float(np.mean(absolute * std)),
            "rmse": float(np.mean(np.sqrt(squared) * std)),
            "r2": float(np.mean(np.where(np.isfinite(explained), explained, 0.0))),
        }


class _TokenSums:
    def __init__(self, objective: Objective) -> None:
        self.ignored, self.count = objective.ignored, 0

    def add(self, outputs: torch.Tensor, targets: torch.Tensor) -> None:
        self.count += int((targets != self.ignored).sum())

    def metrics(self, loss: float) -> dict[str, float]:
        mean = loss / max(self.count, 1)
        return {"loss": mean, "perplexity": math.exp(min(mean, 700.0))}


def larger_is_better(plan: Plan, value: float) -> float:
    """Return a value of the metric `training.best` with its sign such that larger is better."""
    return -value if plan.best.removeprefix("validation/") in _SMALLER_IS_BETTER else value


def epoch_score(plan: Plan, metrics: dict[str, float], epoch: int) -> tuple[float, ...]:
    """Return the key by which epochs are compared; larger is better. Small sets tie often: then the loss decides."""
    return larger_is_better(plan, metrics[plan.best]), -metrics["validation/loss"], -float(epoch)


def update_best(state: TrainingState, plan: Plan, metrics: dict[str, float]) -> None:
    """Keep the weights if this epoch is the best so far, and count the epochs without improvement."""
    value = metrics[plan.best]
    gain = (
        math.inf
        if state.patience_value is None
        else larger_is_better(plan, value) - larger_is_better(plan, state.patience_value)
    )
    # Measured from the last value that counted: many small gains count once they add up to more than min_delta.
    if gain > plan.min_delta:
        state.patience_value, state.stale_epochs = value, 0
    else:
        state.stale_epochs += 1
    best = state.history[state.best_epoch - 1] if state.best_epoch else None
    if best is None or epoch_score(plan, metrics, state.epoch + 1) > epoch_score(plan, best, state.best_epoch):
        state.keep_best(value)


def overfitting_notice(state: TrainingState, plan: Plan, metrics: dict[str, float]) -> str | None:
    """Return a message, once in a run, when training accuracy is `overfit_gap` above validation accuracy."""
    if "train/accuracy" not in metrics or "validation/accuracy" not in metrics:
        return None
    trained, held_out = metrics["train/accuracy"], metrics["validation/accuracy"]
    if state.overfit_noticed or trained - held_out <= plan.overfit_gap:
        return None
    state.overfit_noticed = True
    return (
        f"over-fitting at epoch {state.epoch + 1}: training accuracy {trained:.3f}, validation accuracy "
        f"{held_out:.3f}, a gap above training.overfit_gap {plan.overfit_gap}. Fix: more data, fewer "
        "training.epochs, more training.weight_decay; of images, augmentation (training.flip, training.crop_padding)"
    )
