"""How MLflow loads a registered model: `mlflow.pyfunc.load_model` calls `_load_pyfunc` here.

No pickle is involved, and no file is read or run before all were held against their checksums.
"""

import logging
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ratchet.data.depth import eight_bits
from ratchet.training.models import Classifier, ModelSpec, load_model, verify

__all__ = ["ServedClassifier"]

log = logging.getLogger(__name__)


class ServedClassifier:
    """A classifier behind MLflow's `predict`."""

    def __init__(self, model: Classifier, spec: ModelSpec) -> None:
        self.model, self.spec = model, spec

    def predict(self, images: NDArray[Any], params: dict[str, object] | None = None) -> NDArray[np.float32]:
        """Raw values (n, height, width, channels) -> class probabilities float32 (n, classes).

        They are of the model's `raw_dtype`: uint16 where it learned from images of more than 8 bits, which are scaled
        here as ingest scaled them. Integers of another type must lie in the range of that type.

        Raises:
            ValueError: a value does not.
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
        log.warning("%s was stored without checksums, by an earlier version: its files are not checked", path)
    return ServedClassifier(*load_model(Path(path)))
