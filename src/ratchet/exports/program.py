"""The stored ONNX program of a model: read it, run it with onnxruntime, and compare it with the model."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ratchet import files
from ratchet.problems import Target

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Arrays = tuple[NDArray[Any], ...]

__all__ = ["ABOUT", "OUTPUT", "PROGRAM", "NotExported", "Parity", "Program", "compare", "first_paragraph"]

PROGRAM, ABOUT = "model.onnx", "program.json"
OUTPUT = "probabilities"
_LONGEST = 300  # characters of a reason


@dataclass(frozen=True)
class NotExported:
    """There is no program that can be run. `reason` is for people and has no full stop."""

    reason: str


@dataclass(frozen=True)
class Parity:
    """Comparison of a program's answers with the model's."""

    images: int
    largest_difference: float  # see `largest_difference`
    other_class: int  # images that the program puts into another class


@dataclass(frozen=True)
class Program:
    """An exported model. It runs on the CPU and needs neither PyTorch nor the model's code."""

    path: Path
    inputs: tuple[str, ...]
    threads: int = 0  # of one call; 0: onnxruntime chooses

    @classmethod
    def of(cls, folder: Path) -> "Program | NotExported | None":
        """Return the program of the model stored in `folder`; None if it was stored without one."""
        if not (folder / ABOUT).exists():
            return None
        about = files.read_json(folder / ABOUT)
        if not about["program"]:
            return NotExported(about["reason"])
        inputs = about["inputs"] if "inputs" in about else [about["input"]]  # the second of versions of format 1
        return cls(folder / about["program"], tuple(inputs))

    def predict(self, arrays: "Arrays") -> "NDArray[np.float32]":
        """Return predictions float32 (n, outputs) for arrays of a packed set; images have the model's raw dtype.

        Raises:
            Exception: onnxruntime's own, which have no common base: the program cannot be loaded, or cannot run.
        """
        predictions: NDArray[np.float32] = self._session.run([OUTPUT], self.feed(arrays))[0]
        return predictions

    def feed(self, arrays: "Arrays") -> "dict[str, NDArray[Any]]":
        """Return the arrays by the names of the inputs that the program has: a model may not use all of them."""
        known = {entry.name for entry in self._session.get_inputs()}
        return {name: array for name, array in zip(self.inputs, arrays, strict=True) if name in known}

    @cached_property
    def _session(self) -> Any:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = self.threads
        return onnxruntime.InferenceSession(self.path, options, providers=["CPUExecutionProvider"])


def compare(
    folder: Path, arrays: "Arrays", answers: "NDArray[np.float32]", target: Target
) -> Parity | NotExported | None:
    """Run the program of the model in `folder` on samples that the model has answered.

    The first sample runs alone and the others together. This detects a program that accepts only one batch size.

    Returns:
        None if the model was stored without a program.
    """
    program = Program.of(folder)
    if not isinstance(program, Program):
        return program
    rows = len(answers)
    try:
        batches = [tuple(array[part] for array in arrays) for part in (slice(0, 1), slice(1, rows))]
        computed = np.concatenate([program.predict(batch) for batch in batches if len(batch[0])])
    except Exception as error:
        return NotExported(f"onnxruntime cannot run the program: {first_paragraph(error)}")
    other = computed.argmax(1) != answers.argmax(1) if target.classes else ()
    return Parity(rows, target.largest_difference(computed, answers), int(np.count_nonzero(other)))


def first_paragraph(error: BaseException) -> str:
    """Return the first paragraph of an error's message, on one line and without a full stop."""
    text = " ".join(str(error).strip().partition("\n\n")[0].split()) or type(error).__name__
    return text[:_LONGEST].rstrip(".")
