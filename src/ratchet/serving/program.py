"""The exported program of a model, as it is stored: read, run by onnxruntime, and held against the model's answers."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ratchet import files

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["ABOUT", "INPUT", "OUTPUT", "PROGRAM", "NotExported", "Parity", "Program", "compare", "opening"]

PROGRAM, ABOUT = "model.onnx", "program.json"
INPUT, OUTPUT = "pixels", "probabilities"
_LONGEST = 300  # letters of a reason


@dataclass(frozen=True)
class NotExported:
    """There is no program that could be asked, and why: for a person, without a full stop."""

    why: str


@dataclass(frozen=True)
class Parity:
    """A program's answers beside those of the model that it was made of."""

    rows: int
    largest_difference: float  # of a probability
    elsewhere: int  # rows that it puts into another class


@dataclass(frozen=True)
class Program:
    """An exported model; runs on the CPU and needs neither PyTorch nor the model's code."""

    path: Path

    @classmethod
    def of(cls, folder: Path) -> "Program | NotExported | None":
        """That of the model stored in `folder`; None where it was stored without asking for one."""
        if not (folder / ABOUT).exists():
            return None
        about = files.read_json(folder / ABOUT)
        return cls(folder / about["program"]) if about["program"] else NotExported(about["why"])

    def predict(self, pixels: "NDArray[Any]") -> "NDArray[np.float32]":
        """Pixels of the model's dtype (n, height, width, channels) -> class probabilities float32 (n, classes).

        Raises:
            Exception: onnxruntime's own, which have no family: it cannot load the program, or not run it on these rows.
        """
        found: NDArray[np.float32] = self._session.run([OUTPUT], {INPUT: pixels})[0]
        return found

    @cached_property
    def _session(self) -> Any:
        import onnxruntime

        return onnxruntime.InferenceSession(self.path, providers=["CPUExecutionProvider"])


def compare(folder: Path, pixels: "NDArray[Any]", probabilities: "NDArray[np.float32]") -> Parity | NotExported | None:
    """Ask the program of the model in `folder` what the model was asked; None where it was stored without.

    `pixels` as `Program.predict` takes them, `probabilities` (n, classes) the model's own answers. The first row is
    asked alone and the others together: a program that knows but one number of rows is found out.
    """
    program = Program.of(folder)
    if not isinstance(program, Program):
        return program
    try:
        found = np.concatenate([program.predict(part) for part in (pixels[:1], pixels[1:]) if len(part)])
    except Exception as error:
        return NotExported(f"onnxruntime cannot run the program: {opening(error)}")
    difference = float(np.abs(found - probabilities).max())
    return Parity(len(pixels), difference, int(np.count_nonzero(found.argmax(1) != probabilities.argmax(1))))


def opening(error: BaseException) -> str:
    """What an error says in its first paragraph, on one line, without a full stop."""
    words = " ".join(str(error).strip().partition("\n\n")[0].split()) or type(error).__name__
    return words[:_LONGEST].rstrip(".")
