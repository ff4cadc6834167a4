"""Loader of registered models: `mlflow.pyfunc.load_model` calls `_load_pyfunc` here.

No pickle is used. All files are compared with their checksums before one is read or run.
"""

import logging
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from mlflow.exceptions import MlflowException
from numpy.typing import NDArray

from ratchet.checksums import CHECKSUMS, verify
from ratchet.errors import RatchetError, TrainingError
from ratchet.kinds import ModelSpec
from ratchet.kinds.input_warnings import input_warnings
from ratchet.kinds.protocol import Arrays
from ratchet.kinds.raw_values import texts_in
from ratchet.kinds.registry import kind_of
from ratchet.training.generate import Generator, Sampling
from ratchet.training.models import Model, load_model

__all__ = ["ServedModel"]

_LOG = logging.getLogger(__name__)
_BATCH = 512


class ServedModel:
    """A model behind MLflow's `predict`."""

    def __init__(self, model: Model, spec: ModelSpec) -> None:
        self.model, self.spec = model, spec
        self.kind = kind_of(spec.input)
        _ = spec.input.prepared

    def predict(self, raw: Any, params: dict[str, Any] | None = None) -> NDArray[Any]:
        """Return the answers: float32 (n, outputs), or the generated texts of a language model, object (n,).

        Answers are probabilities of classes or labels, or numbers in their own units. A warning is logged if rows are
        unlike the training samples.

        Args:
            raw: images (n, height, width, channels) of the model's `raw_dtype`; rows of a table as a frame; texts;
                prompts; raw values of a user's own kind, or its arrays by name. Images are scaled here as ingest
                scaled those of more than 8 bits; integers of another type must be in range.
            params: of a language model, the fields of `Sampling`.

        Raises:
            MlflowException: a value is out of range, or a column is missing. MLflow's server answers with its message,
                and hides that of any other error.
        """
        try:
            return self.answers(raw, params or {})
        except (ValueError, RatchetError) as error:
            raise MlflowException.invalid_parameter_value(str(error)) from error

    def answers(self, raw: Any, params: dict[str, Any]) -> NDArray[Any]:
        """Return what `predict` returns.

        Raises:
            ValueError, RatchetError: as `predict`.
        """
        if self.kind.generates:
            sampling = Sampling(**params)
            return np.array(self._generator.texts(texts_in(raw, "input"), sampling), dtype=object)
        arrays = self.kind.decode(raw, self.spec.input)
        warnings = input_warnings(arrays, self.spec.input, raw)
        if warnings:
            rows = len({warning.row for warning in warnings})
            first = f"row {warnings[0].row}: {warnings[0].text}"
            _LOG.warning("%d of %d rows are unlike the training samples; %s", rows, len(arrays[0]), first)
        return self.answers_to_arrays(arrays)

    def pieces(self, prompt: str, params: dict[str, Any]) -> Iterator[str]:
        """Yield the text that follows a prompt, in pieces as they are generated.

        Raises:
            RatchetError: as `predict`.
        """
        return self._generator(prompt, Sampling(**params))

    def answers_to_arrays(self, arrays: Arrays) -> NDArray[np.float32]:
        """Return float32 (n, outputs) for arrays as `exports.program.Program.predict` takes them."""
        inputs = self.kind.to_tensors(self.kind.packed(arrays, self.spec.input))
        with torch.inference_mode():
            parts = [
                self.spec.target.served(self.model(*(values[start : start + _BATCH] for values in inputs)))
                for start in range(0, max(1, len(inputs[0])), _BATCH)
            ]
        answers: NDArray[np.float32] = torch.cat(parts).numpy()
        return answers

    @cached_property
    def _generator(self) -> Generator:
        return Generator(self.model, self.spec.input)


def _load_pyfunc(path: str) -> ServedModel:
    if verify(Path(path)) is None:
        raise TrainingError(f"{path}: has no {CHECKSUMS}: nothing was loaded. Fix: restore the model's files")
    return ServedModel(*load_model(Path(path)))
