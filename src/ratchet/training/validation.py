"""What a model is worth on the validation rows."""

import numpy as np
import torch
from torch import nn

from ratchet.training.batches import Split
from ratchet.training.losses import Objective
from ratchet.training.precision import Precision

__all__ = ["METRICS", "validate"]

METRICS = ("accuracy", "balanced_accuracy", "f1", "loss")


def validate(
    model: nn.Module,
    split: Split,
    *,
    objective: Objective,
    classes: int,
    precision: Precision,
    device: torch.device,
    batch_size: int,
) -> dict[str, float]:
    """The figures of `METRICS` over the whole split; the model is put in eval mode and left so.

    balanced_accuracy is the mean over classes of the share found (recall), f1 the mean over classes of the harmonic
    mean of precision and recall; a class that has no row, and for f1 no answer either, is left out.
    """
    model.eval()
    loss = torch.zeros((), device=device)
    table = torch.zeros(classes * classes, dtype=torch.int64, device=device)
    with torch.inference_mode():
        for images, labels in split.feed(list(split.in_order(batch_size)), device):
            with precision.autocast(device):
                logits = model(images)
            loss += objective(logits, labels)
            counted = labels != objective.ignored
            table += torch.bincount((labels * classes + logits.argmax(1))[counted], minlength=classes * classes)
    matrix = table.view(classes, classes).cpu().numpy()  # actual, answered
    total, right = matrix.sum(), matrix.diagonal()
    actual, answered = matrix.sum(1), matrix.sum(0)
    present, known = actual > 0, actual + answered > 0
    return {
        "validation/loss": loss.item() / max(int(total), 1),
        "validation/accuracy": float(right.sum() / max(total, 1)),
        "validation/balanced_accuracy": float(np.mean(right[present] / actual[present])),
        "validation/f1": float(np.mean(2 * right[known] / (actual + answered)[known])),
    }
