"""Explanations of the worst errors: the pixels that argued for the wrong class and for the right one.

The method is integrated gradients (Sundararajan, Taly and Yan, "Axiomatic Attribution for Deep Networks", 2017). It
works for every model that can be differentiated. It explains the margin: the logit of the predicted class minus the
logit of the true class. The baseline is an image of the training data's mean colour, because against black, black
pixels would have no contribution. The contributions of all pixels add up to the difference between the margin of the
image and that of the baseline.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ratchet import files

if TYPE_CHECKING:
    import torch

    from ratchet.training import ImageModel

__all__ = ["Explanations", "explain", "read_explanations", "write_explanations"]

Floats = NDArray[np.float32]

_STEPS = 32  # points of the Gauss-Legendre rule between the baseline and the image
_PIXELS_AT_ONCE = 32 * 64 * 64  # of all steps: bounds the memory
_LARGEST_GAP = 0.2  # larger gaps would mislead; digits, CIFAR-10 and photographs stay below 0.002
_ARRAYS = ("rows", "contributions", "margins")


@dataclass(frozen=True)
class Explanations:
    """Contributions of pixels to some wrong predictions, worst first."""

    rows: NDArray[np.int64]  # (errors,), test rows
    contributions: Floats  # (errors, height, width), logits; positive: for the wrong class, negative: for the right one
    margins: Floats  # (errors,), required sum of each row's contributions
    reason: str = ""  # why nothing is explained, as a clause without a full stop

    @classmethod
    def none(cls, reason: str) -> "Explanations":
        """Return no explanation, and the reason."""
        return cls(np.zeros(0, np.int64), np.zeros((0, 0, 0), np.float32), np.zeros(0, np.float32), reason)

    def of(self, row: int) -> Floats | None:
        """Return the contributions of one test row's pixels, float32 (height, width); None: not explained."""
        positions = np.flatnonzero(self.rows == row)
        return self.contributions[positions[0]] if len(positions) else None

    @property
    def gap(self) -> float:
        """Distance of the summed contributions from their margins, as a share of all absolute contributions."""
        contributions = self.contributions.astype(np.float64)
        off = np.abs(contributions.sum(axis=(1, 2)) - self.margins).sum()
        return float(off / np.abs(contributions).sum()) if contributions.any() else 0.0


def explain(
    model: "ImageModel",
    images: "torch.Tensor",
    *,
    rows: NDArray[np.int64],
    answers: Sequence[int],
    truths: Sequence[int],
) -> Explanations:
    """Explain wrong predictions on the CPU. The model is left in eval mode.

    Args:
        model: one that has not run in inference mode, because tensors cached there cannot be differentiated.
        images: pixels (errors, channels, height, width), uint8 or float32.
        rows: test row of each image, int64 (errors,).

    Returns:
        Explanations without rows, with the reason, where the model cannot be differentiated or its gradient does not
        explain its predictions.
    """
    model = model.to("cpu").eval()
    try:
        explained = [_attribute(model, *error) for error in zip(images.float(), answers, truths, strict=True)]
    except ImportError:  # of captum: the model was imported before
        raise
    except Exception as error:  # a user's own model may raise anything
        first = (str(error).splitlines() or [""])[0]
        return Explanations.none(f"the model cannot be differentiated ({type(error).__name__}: {first[:200]})")
    maps = [contributions for contributions, _ in explained]
    contributions = np.stack(maps) if maps else np.zeros((0, *images.shape[2:]), np.float32)
    margins = np.array([margin for _, margin in explained], np.float32)
    return _checked(Explanations(rows, contributions, margins))


def _checked(explanations: Explanations) -> Explanations:
    """Return the explanations, or the reason why they would mislead."""
    contributions = explanations.contributions
    if not np.isfinite(contributions).all():
        return Explanations.none("the model's gradients are not finite numbers")
    if len(contributions) and not contributions.any():
        return Explanations.none("the model's gradient is zero everywhere, as with a model that rounds")
    if explanations.gap > _LARGEST_GAP:
        return Explanations.none(
            f"the contributions differ from the required sum by {explanations.gap:.0%}, so the model's gradient does "
            "not explain its predictions"
        )
    return explanations


def _attribute(model: "ImageModel", image: "torch.Tensor", answer: int, truth: int) -> tuple[Floats, float]:
    """Return the contributions (height, width) of an image (channels, height, width), and their required sum."""
    import torch
    from captum.attr import IntegratedGradients

    def margin(images: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = model(images)
        return logits[:, answer] - logits[:, truth]

    batch, baseline = image[None], model.mean.expand_as(image[None])
    at_once = max(1, _PIXELS_AT_ONCE // batch[0, 0].numel())
    gradients = IntegratedGradients(margin).attribute(batch, baseline, n_steps=_STEPS, internal_batch_size=at_once)
    with torch.no_grad():
        required = float(margin(batch) - margin(baseline))
    contributions: Floats = gradients[0].detach().sum(0).numpy().astype(np.float32)
    return contributions, required


def write_explanations(path: Path, explanations: Explanations) -> None:
    """Write a safetensors file, with the reason in its header."""
    from safetensors.numpy import save

    arrays = {name: getattr(explanations, name) for name in _ARRAYS}
    files.write_bytes(path, save(arrays, {"reason": explanations.reason}))


def read_explanations(path: Path) -> Explanations:
    """Read the file that `write_explanations` wrote."""
    from safetensors import safe_open

    with safe_open(path, "numpy") as file:
        rows, contributions, margins = (file.get_tensor(name) for name in _ARRAYS)
        return Explanations(rows, contributions, margins, file.metadata()["reason"])
