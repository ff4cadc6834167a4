"""How MLflow loads a registered model: `mlflow.pyfunc.load_model` calls `_load_pyfunc` here.

No pickle is involved, and no file is read or run before all were held against their checksums.
"""

import logging
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ratchet.training.models import Classifier, ModelSpec, load_model, verify

__all__ = ["ServedClassifier"]

log = logging.getLogger(__name__)


class ServedClassifier:
    """A classifier behind MLflow's `predict`."""

    def __init__(self, model: Classifier, spec: ModelSpec) -> None:
        self.model, self.spec = model, spec

    def predict(self, images: NDArray[Any], params: dict[str, object] | None = None) -> NDArray[np.float32]:
        """Pixels of the model's `dtype` (n, height, width, channels) -> class probabilities float32 (n, classes)."""
        with torch.inference_mode():
            logits = self.model(torch.from_numpy(np.array(images, self.spec.dtype)).permute(0, 3, 1, 2))
        probabilities: NDArray[np.float32] = torch.softmax(logits, 1).numpy()
        return probabilities


def _load_pyfunc(path: str) -> ServedClassifier:
    if verify(Path(path)) is None:
        log.warning("%s was stored without checksums, by an earlier version: its files are not checked", path)
    return ServedClassifier(*load_model(Path(path)))
