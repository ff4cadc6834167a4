"""Which pixels spoke for a wrong answer, and which for the right one: integrated gradients of the worst errors.

Integrated gradients (Sundararajan, Taly and Yan, "Axiomatic Attribution for Deep Networks", 2017) work for whatever can
be differentiated. What is explained is the margin, the logit of the answer minus that of the truth, against a picture
of the training data's mean colour: black would leave black pixels without a say. The contributions of all pixels add up
to what the margin is beyond that of the plain picture.
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

    from ratchet.training import Classifier

__all__ = ["Explanations", "explain", "read_explanations", "write_explanations"]

Floats = NDArray[np.float32]

_STEPS = 32  # points of the Gauss-Legendre rule on the way from the plain picture to the real one
_AT_ONCE = 32 * 64 * 64  # pixels of all steps that are worked on together: bounds the memory
_LARGEST_GAP = 0.2  # further off it would mislead; digits, CIFAR-10 and photographs stay below 0.002
_ARRAYS = ("rows", "contributions", "margins")


@dataclass(frozen=True)
class Explanations:
    """Of some wrong answers, worst first."""

    rows: NDArray[np.int64]  # (errors,), test rows
    contributions: Floats  # (errors, height, width), logits; above 0: for the wrong answer, below: for the right one
    margins: Floats  # (errors,), what each one's contributions should add up to
    why: str = ""  # why nothing is explained, as a clause a sentence can end with

    @classmethod
    def none(cls, why: str) -> "Explanations":
        """Nothing explained, and the reason."""
        return cls(np.zeros(0, np.int64), np.zeros((0, 0, 0), np.float32), np.zeros(0, np.float32), why)

    def of(self, row: int) -> Floats | None:
        """The contributions, float32 (height, width), of one test row's pixels; None where it was not explained."""
        places = np.flatnonzero(self.rows == row)
        return self.contributions[places[0]] if len(places) else None

    @property
    def gap(self) -> float:
        """How far sums of contributions are from their margins, as a share of all that the pixels say."""
        said = self.contributions.astype(np.float64)
        off = np.abs(said.sum(axis=(1, 2)) - self.margins).sum()
        return float(off / np.abs(said).sum()) if said.any() else 0.0


def explain(
    model: "Classifier",
    images: "torch.Tensor",
    *,
    rows: NDArray[np.int64],
    answers: Sequence[int],
    truths: Sequence[int],
) -> Explanations:
    """Explain wrong answers on the CPU; the model is left in eval mode.

    Args:
        model: as it answered; one that has not run in inference mode, whose leftovers cannot be differentiated.
        images: pixels (errors, channels, height, width), uint8 or float32.
        rows: the test row of each, int64 (errors,).
        answers: the class that was answered, for each.
        truths: the class it is.

    Returns:
        none, with the reason, where the model cannot be differentiated or its gradient does not explain its answers.
    """
    model = model.to("cpu").eval()
    try:
        found = [_one(model, *each) for each in zip(images.float(), answers, truths, strict=True)]
    except ImportError:  # captum's, not the model's, which has answered before
        raise
    except Exception as error:  # a user's own model may raise anything
        first = (str(error).splitlines() or [""])[0]
        return Explanations.none(f"the model cannot be differentiated ({type(error).__name__}: {first[:200]})")
    contributions = np.stack([one for one, _ in found]) if found else np.zeros((0, *images.shape[2:]), np.float32)
    margins = np.array([margin for _, margin in found], np.float32)
    if not np.isfinite(contributions).all():
        return Explanations.none("the model's gradients are not finite numbers")
    if found and not contributions.any():
        return Explanations.none("the model's gradient is zero everywhere, as that of a rounding is")
    explanations = Explanations(rows, contributions, margins)
    if explanations.gap > _LARGEST_GAP:
        return Explanations.none(
            f"the contributions miss what they should add up to by {explanations.gap:.0%} of what they say: the model "
            "leaps where its gradient does not tell"
        )
    return explanations


def _one(model: "Classifier", image: "torch.Tensor", answer: int, truth: int) -> tuple[Floats, float]:
    """What each pixel of an image (channels, height, width) contributes, (height, width), and their due sum."""
    import torch
    from captum.attr import IntegratedGradients

    def margin(images: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = model(images)
        return logits[:, answer] - logits[:, truth]

    picture, plain = image[None], model.mean.expand_as(image[None])
    at_once = max(1, _AT_ONCE // picture[0, 0].numel())
    parts = IntegratedGradients(margin).attribute(picture, plain, n_steps=_STEPS, internal_batch_size=at_once)
    with torch.no_grad():
        beyond = float(margin(picture) - margin(plain))
    found: Floats = parts[0].detach().sum(0).numpy().astype(np.float32)
    return found, beyond


def write_explanations(path: Path, explanations: Explanations) -> None:
    """Write a safetensors file; a reason stands in its header."""
    from safetensors.numpy import save

    arrays = {name: getattr(explanations, name) for name in _ARRAYS}
    files.write_bytes(path, save(arrays, {"why": explanations.why}))


def read_explanations(path: Path) -> Explanations:
    """What `write_explanations` wrote; none, with the reason, where an earlier version wrote nothing."""
    from safetensors import safe_open

    if not path.exists():
        return Explanations.none("this evaluation was made without it: run evaluate again")
    with safe_open(path, "numpy") as file:
        rows, contributions, margins = (file.get_tensor(name) for name in _ARRAYS)
        return Explanations(rows, contributions, margins, file.metadata()["why"])
