"""A registered version that answers requests: loaded, compared with its checksums, and warm."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ratchet import files
from ratchet.errors import RegistryError
from ratchet.kinds import ArraysInput, ImageInput, Input, TableInput, TextInput, TokensInput
from ratchet.serving.program import NotExported, Program, first_paragraph
from ratchet.training.models import ModelSpec

__all__ = ["SIZES", "Identity", "LoadedVersion"]

Arrays = tuple[NDArray[Any], ...]

SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32)
"""Rows of the batches that are computed. A batch of another size is filled up to the next one."""
_TOKENS = 8  # of each text that is tried
_ROUNDS, _TRIAL = 64, 1.0  # trials of a version: batches of the largest size, and seconds after which no other is begun


@dataclass(frozen=True)
class Identity:
    """Name, number and origin of a version, which are part of each of its answers."""

    model: str
    version: str
    run_id: str
    provenance: str | None  # id of the provenance record

    def __str__(self) -> str:
        return f"{self.model} version {self.version}"


class LoadedVersion:
    """A version in memory.

    Attributes:
        identity: of the version.
        spec: input and target of the model.
        engine: "onnxruntime", or "torch" for a model that was stored without a program.
        why_torch: the reason for torch; empty with onnxruntime.
        sizes: batch sizes that may be computed: in each of them a row gets the same bits.
    """

    def __init__(self, identity: Identity, folder: Path, *, threads: int = 1) -> None:
        """Load the model from the folder of its verified files, and try it. `threads` compute one batch.

        Raises:
            RegistryError: the model cannot be loaded, or does not answer example rows.
        """
        self.identity = identity
        self.spec = ModelSpec.from_json(files.read_json(folder / "model.json")["spec"])
        self._folder = folder
        program = Program.of(folder)
        self.engine = "onnxruntime" if isinstance(program, Program) else "torch"
        self.why_torch = program.reason if isinstance(program, NotExported) else ""
        try:
            self._run: Callable[[Arrays], NDArray[np.float32]] = (
                replace(program, threads=threads).predict
                if isinstance(program, Program)
                else self._torch.answers_to_arrays
            )
            self.sizes = SIZES if isinstance(self.spec.input, TokensInput) else self._reliable_sizes()
        except Exception as error:  # of onnxruntime, torch or a user's code: they have no common base
            raise RegistryError(f"{identity}: does not answer: {first_paragraph(error)}") from error

    def predict(self, arrays: Arrays) -> NDArray[np.float32]:
        """Return predictions, float32 (n, outputs): probabilities, or numbers in their own units.

        A row has the same bits alone and in any batch.

        Args:
            arrays: of n rows, as `given_arrays` returns them.
        """
        rows, largest = len(arrays[0]), self.sizes[-1]
        parts = []
        for start in range(0, rows, largest):
            part = tuple(array[start : start + largest] for array in arrays)
            count = len(part[0])
            size = next(size for size in self.sizes if size >= count)
            parts.append(self._run(tuple(_filled(array, size) for array in part))[:count])
        if not parts:
            return np.empty((0, self.spec.target.outputs), np.float32)
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def generate(self, prompts: list[str], parameters: dict[str, Any]) -> list[str]:
        """Return the texts that a language model writes after each prompt. `parameters` are fields of `Sampling`.

        Raises:
            TrainingError: a parameter is not allowed, or a prompt has text that the model does not know.
        """
        texts: list[str] = self._torch.answers(prompts, parameters).tolist()
        return texts

    @property
    def own(self) -> Any:
        """The user's own kind; None with another one."""
        return self._torch.own if isinstance(self.spec.input, ArraysInput) else None

    @cached_property
    def _torch(self) -> Any:
        from ratchet.registry.pyfunc import ServedModel
        from ratchet.training.models import load_model

        return ServedModel(*load_model(self._folder))

    def _reliable_sizes(self) -> tuple[int, ...]:
        """Return the sizes in which every example row has the bits that it has in a batch of the largest size.

        A matrix product of one row often runs in another kernel than one of many rows, and the last values of an array
        that do not fill a vector register in another one than the others. Both round differently, but rarely: so many
        rows are tried.
        """
        largest, ends = SIZES[-1], time.monotonic() + _TRIAL
        reliable = list(SIZES)
        for seed in range(_ROUNDS):
            example = example_arrays(self.spec.input, largest, seed=seed)
            expected = self._run(example)
            reliable = [size for size in reliable if self._agrees(example, expected, size)]
            if time.monotonic() > ends:
                break
        return tuple(reliable)

    def _agrees(self, example: Arrays, expected: NDArray[np.float32], size: int) -> bool:
        """Return whether batches of this size give the expected bits."""
        for start in {*range(0, len(expected) - size, size), len(expected) - size}:
            part = slice(start, start + size)
            if self._run(tuple(array[part] for array in example)).tobytes() != expected[part].tobytes():
                return False
        return True


def example_arrays(described: Input, rows: int, *, seed: int) -> Arrays:
    """Return random rows as `LoadedVersion.predict` takes them."""
    random = np.random.default_rng(seed)
    match described:
        case ImageInput():
            shape = (rows, *described.shape)
            if described.dtype == "uint8":
                return (random.integers(0, 256, shape).astype(described.raw_dtype),)
            return (random.normal(described.mean, described.std, shape).astype(np.float32),)
        case TableInput():
            numbers = [random.normal(column.mean, column.std, rows) for column in described.numeric]
            codes = [random.integers(0, len(column.categories) + 2, rows) for column in described.categorical]
            return (
                np.array(numbers, np.float32).reshape(-1, rows).T.copy(),
                np.array(codes, np.int64).reshape(-1, rows).T.copy(),
            )
        case TextInput():
            known = described.buckets or len(described.vocabulary) + 2
            return (random.integers(1, known, (rows, _TOKENS)),)
        case ArraysInput():
            return tuple(
                random.normal(np.mean(array.mean), np.mean(array.std), (rows, *array.shape)).astype(array.dtype)
                for array in described.arrays
            )
        case TokensInput():
            raise AssertionError("a language model is not asked for rows")


def _filled(array: NDArray[Any], size: int) -> NDArray[Any]:
    """Return the array with its last row repeated up to this number of rows."""
    missing = size - len(array)
    return array if not missing else np.concatenate([array, np.repeat(array[-1:], missing, axis=0)])
