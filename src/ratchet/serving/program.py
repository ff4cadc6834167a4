"""The stored ONNX program of a model: read it, run it with onnxruntime, and compare it with the model."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ratchet import files

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["ABOUT", "INPUT", "OUTPUT", "PROGRAM", "NotExported", "Parity", "Program", "compare", "first_paragraph"]

PROGRAM, ABOUT = "model.onnx", "program.json"
INPUT, OUTPUT = "pixels", "probabilities"
_LONGEST = 300  # characters of a reason


@dataclass(frozen=True)
class NotExported:
    """There is no program that can be run. `reason` is for people and has no full stop."""

    reason: str


@dataclass(frozen=True)
class Parity:
    """Comparison of a program's answers with the model's."""

    images: int
    largest_difference: float  # of a probability
    other_class: int  # images that the program puts into another class


@dataclass(frozen=True)
class Program:
    """An exported model. It runs on the CPU and needs neither PyTorch nor the model's code."""

    path: Path

    @classmethod
    def of(cls, folder: Path) -> "Program | NotExported | None":
        """Return the program of the model stored in `folder`; None if it was stored without one."""
        if not (folder / ABOUT).exists():
            return None
        about = files.read_json(folder / ABOUT)
        return cls(folder / about["program"]) if about["program"] else NotExported(about["reason"])

    def predict(self, pixels: "NDArray[Any]") -> "NDArray[np.float32]":
        """Return class probabilities float32 (n, classes) for pixels of the model's dtype (n, height, width, channels).

        Raises:
            Exception: onnxruntime's own, which have no common base: the program cannot be loaded, or cannot run.
        """
        probabilities: NDArray[np.float32] = self._session.run([OUTPUT], {INPUT: pixels})[0]
        return probabilities

    @cached_property
    def _session(self) -> Any:
        import onnxruntime

        return onnxruntime.InferenceSession(self.path, providers=["CPUExecutionProvider"])


def compare(folder: Path, pixels: "NDArray[Any]", probabilities: "NDArray[np.float32]") -> Parity | NotExported | None:
    """Run the program of the model in `folder` on images that the model has answered.

    The first image runs alone and the others together. This detects a program that accepts only one batch size.

    Args:
        folder: of the stored model.
        pixels: images as `Program.predict` takes them.
        probabilities: the model's own answers, (n, classes).

    Returns:
        None if the model was stored without a program.
    """
    program = Program.of(folder)
    if not isinstance(program, Program):
        return program
    try:
        answers = np.concatenate([program.predict(batch) for batch in (pixels[:1], pixels[1:]) if len(batch)])
    except Exception as error:
        return NotExported(f"onnxruntime cannot run the program: {first_paragraph(error)}")
    difference = float(np.abs(answers - probabilities).max())
    return Parity(len(pixels), difference, int(np.count_nonzero(answers.argmax(1) != probabilities.argmax(1))))


def first_paragraph(error: BaseException) -> str:
    """Return the first paragraph of an error's message, on one line and without a full stop."""
    text = " ".join(str(error).strip().partition("\n\n")[0].split()) or type(error).__name__
    return text[:_LONGEST].rstrip(".")
