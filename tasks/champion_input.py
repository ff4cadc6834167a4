"""Adaptation of the packed images to the champion's input, and of its answers to the new model's classes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ratchet.data.manifest import Manifest

if TYPE_CHECKING:
    import torch

    from ratchet.training import Classifier, ModelSpec, Split

__all__ = ["InputAdapter", "right_answers"]

_BATCH = 512
_LUMINANCE = (0.299, 0.587, 0.114)  # ITU-R 601, as in Pillow's conversion to greyscale


@dataclass(frozen=True)
class InputAdapter:
    """Conversion of packed images to the input of another model.

    Attributes:
        height, width, channels: of the model's input.
        same: no conversion is needed.
        mismatch: why no conversion is possible; empty if one is.
    """

    height: int
    width: int
    channels: int
    same: bool
    mismatch: str = ""

    @classmethod
    def of(cls, spec: "ModelSpec", packed: Manifest) -> "InputAdapter":
        """Return the adapter from a packed set to the model's input."""
        shape, theirs = (spec.height, spec.width, spec.channels), (packed.height, packed.width, packed.channels)
        mismatch = ""
        if spec.dtype != packed.dtype:
            mismatch = f"it takes {spec.dtype} pixels, and these are {packed.dtype}"
        elif spec.channels != packed.channels and {spec.channels, packed.channels} != {1, 3}:
            mismatch = f"it takes images of {spec.channels} channels, and these have {packed.channels}"
        return cls(*shape, same=shape == theirs and not mismatch, mismatch=mismatch)

    def images(self, images: "torch.Tensor") -> "torch.Tensor":
        """Return images (n, channels, height, width) in the model's channels and size, resized with antialiasing."""
        import torch
        from torch.nn import functional

        if self.same:
            return images
        dtype, images = images.dtype, images.float()
        if self.channels == 1 and images.shape[1] == 3:
            images = (images * torch.tensor(_LUMINANCE).view(1, 3, 1, 1)).sum(1, keepdim=True)
        elif self.channels != images.shape[1]:
            images = images.expand(-1, self.channels, -1, -1)
        if tuple(images.shape[2:]) != (self.height, self.width):
            images = functional.interpolate(images, (self.height, self.width), mode="bilinear", antialias=True)
        return images.round().clamp(0, 255).to(dtype) if dtype == torch.uint8 else images

    def logits(self, model: "Classifier", test: "Split") -> NDArray[np.float32]:
        """Return the model's logits for every image, float32 (rows, classes)."""
        import torch

        from ratchet.training import predict_logits

        if self.same:
            return predict_logits(model, test)
        model, batches = model.to("cpu").eval(), []
        with torch.inference_mode():
            order = list(test.in_order(_BATCH))
            for images, _ in test.feed(order, torch.device("cpu")):
                batches.append(model(self.images(images)).float())
        logits: NDArray[np.float32] = torch.cat(batches).numpy()
        return logits


def right_answers(
    logits: NDArray[np.float32], labels: NDArray[np.int64], *, classes: Sequence[str], known: Sequence[str]
) -> NDArray[np.float64]:
    """Return the score of each answer of a model with other classes, (rows,): 1 where it is the label, else 0.

    A class that the data no longer has is right for no image, so the most probable of the other classes counts.

    Args:
        logits: of the model, (rows, its classes).
        labels: (rows,), indices into `classes`.
        classes: of the data.
        known: classes of the model, in the order of its logits.
    """
    shared = [number for number, name in enumerate(known) if name in classes]
    new_index = np.array([classes.index(known[number]) for number in shared], np.int64)
    score: NDArray[np.float64] = (new_index[logits[:, shared].argmax(1)] == labels).astype(np.float64)
    return score
