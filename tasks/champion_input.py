"""The champion asked at its own input size, and its answers in the new model's classes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ratchet.data.manifest import Manifest

if TYPE_CHECKING:
    import torch

    from ratchet.training import Classifier, ModelSpec, Split

__all__ = ["Fitted", "answers_right"]

_BATCH = 512
_LUMINANCE = (0.299, 0.587, 0.114)  # ITU-R 601, as Pillow makes grey of colour


@dataclass(frozen=True)
class Fitted:
    """How packed images become the input of another model.

    Attributes:
        height, width, channels: of the model's input.
        same: the packed images are the input as they are.
        unable: why the model cannot be asked; empty if it can.
    """

    height: int
    width: int
    channels: int
    same: bool
    unable: str = ""

    @classmethod
    def of(cls, spec: "ModelSpec", packed: Manifest) -> "Fitted":
        """What the images of a packed set need."""
        shape, theirs = (spec.height, spec.width, spec.channels), (packed.height, packed.width, packed.channels)
        unable = ""
        if spec.dtype != packed.dtype:
            unable = f"it takes {spec.dtype} pixels, and these are {packed.dtype}"
        elif spec.channels != packed.channels and {spec.channels, packed.channels} != {1, 3}:
            unable = f"it takes images of {spec.channels} channels, and these have {packed.channels}"
        return cls(*shape, same=shape == theirs and not unable, unable=unable)

    def images(self, images: "torch.Tensor") -> "torch.Tensor":
        """Images (n, channels, height, width) as the model takes them: grey or colour, resized with antialiasing."""
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
        """The model's logits for every row: float32 (rows, classes)."""
        import torch

        from ratchet.training import predict_logits

        if self.same:
            return predict_logits(model, test)
        model, parts = model.to("cpu").eval(), []
        with torch.inference_mode():
            pieces = list(test.in_order(_BATCH))
            for images, _ in test.feed(pieces, torch.device("cpu")):
                parts.append(model(self.images(images)).float())
        logits: NDArray[np.float32] = torch.cat(parts).numpy()
        return logits


def answers_right(
    logits: NDArray[np.float32], labels: NDArray[np.int64], *, classes: Sequence[str], known: Sequence[str]
) -> NDArray[np.bool_]:
    """Whether each answer is the label, where the model `known` other classes than `classes`, or in another order.

    A class that the data no longer has is right for no row, so the most probable of the others is the answer.
    """
    shared = [number for number, name in enumerate(known) if name in classes]
    into = np.array([classes.index(known[number]) for number in shared], np.int64)
    right: NDArray[np.bool_] = into[logits[:, shared].argmax(1)] == labels
    return right
