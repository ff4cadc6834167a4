"""Loader of registered models: `mlflow.pyfunc.load_model` calls `_load_pyfunc` here.

No pickle is used. All files are compared with their checksums before one is read or run.
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ratchet.data.depth import eight_bits
from ratchet.errors import TrainingError
from ratchet.training.models import Classifier, ModelSpec, load_model, verify
from ratchet.training.models.checksums import CHECKSUMS

__all__ = ["ServedClassifier"]


class ServedClassifier:
    """A classifier behind MLflow's `predict`."""

    def __init__(self, model: Classifier, spec: ModelSpec) -> None:
        self.model, self.spec = model, spec

    def predict(self, images: NDArray[Any], params: dict[str, object] | None = None) -> NDArray[np.float32]:
        """Return the class probabilities, float32 (n, classes), of raw images (n, height, width, channels).

        Images have the model's `raw_dtype`. It is uint16 if the training images have more than 8 bits; they are scaled
        here as ingest scaled those. Integers of another type must be in the range of that type.

        Raises:
            ValueError: a value is out of range.
        """
        values = np.asarray(images)
        limits = np.iinfo(self.spec.raw_dtype) if self.spec.dtype == "uint8" else None
        if limits and values.size and not limits.min <= values.min() <= values.max() <= limits.max:
            raise ValueError(
                f"values from {values.min()} to {values.max()}; allowed: {limits.min} to {limits.max}, as in the "
                "training images. Fix: scale 16-bit images to 8 bits, or train on 16-bit images"
            )
        if self.spec.depth is not None:
            values = eight_bits(values, self.spec.depth)
        with torch.inference_mode():
            logits = self.model(torch.from_numpy(np.array(values, self.spec.dtype)).permute(0, 3, 1, 2))
        probabilities: NDArray[np.float32] = torch.softmax(logits, 1).numpy()
        return probabilities


def _load_pyfunc(path: str) -> ServedClassifier:
    if verify(Path(path)) is None:
        raise TrainingError(f"{path}: has no {CHECKSUMS}: nothing was loaded. Fix: restore the model's files")
    return ServedClassifier(*load_model(Path(path)))
