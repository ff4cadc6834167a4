"""Logits for a whole split, computed in one way for every measurement."""

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from ratchet.training.batches import Split

__all__ = ["predict_logits"]

_BATCH = 512


def predict_logits(
    model: nn.Module, split: Split, *, report: Callable[[int], None] | None = None
) -> NDArray[np.float32]:
    """Return the logits of every sample in order: float32 (rows, classes), computed in fp32 on the CPU.

    With one device and one precision the metrics of a model do not depend on the machine that trained it. The model is
    left in eval mode.

    Args:
        report: called with the number of rows done.
    """
    model = model.to("cpu").eval()
    parts: list[torch.Tensor] = []
    with torch.inference_mode():
        pieces = list(split.in_order(_BATCH))
        for rows, (images, _) in zip(pieces, split.feed(pieces, torch.device("cpu")), strict=True):
            parts.append(model(images).float())
            if report is not None:
                report(int(rows[-1]) + 1)
    logits: NDArray[np.float32] = torch.cat(parts).numpy()
    return logits
