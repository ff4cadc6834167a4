"""Example rows that are stored with a version, and the model's answers: a server compares its own answers with them."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ratchet.errors import RegistryError
from ratchet.problems import Target

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ratchet.exports.program import Arrays

__all__ = ["EXAMPLES", "check_examples", "write_examples"]

EXAMPLES = "examples.npz"


def write_examples(folder: Path, arrays: "Arrays", answers: "NDArray[np.float32]", *, limit: float) -> None:
    """Store rows, as `Program.predict` takes them, with the model's answers (n, outputs).

    `limit`: largest difference from these answers with which a version is served, in the
        units of `Target.largest_difference`.
    """
    named = {f"input_{number}": array for number, array in enumerate(arrays)}
    np.savez(folder / EXAMPLES, allow_pickle=False, answers=answers, limit=np.float64(limit), **named)


def check_examples(folder: Path, run: "Callable[[Arrays], NDArray[np.float32]]", target: Target) -> None:
    """Compare the answers of `run` to the rows stored in `folder`, if there are any, with the model's.

    Raises:
        RegistryError: they differ by more than the stored limit, or are not finite.
    """
    if not (folder / EXAMPLES).exists():  # a version that was registered without examples
        return
    with np.load(folder / EXAMPLES) as stored:
        arrays = tuple(stored[f"input_{number}"] for number in range(len(stored.files) - 2))
        answers, limit = stored["answers"], float(stored["limit"])
    difference = target.largest_difference(run(arrays), answers)
    if not difference <= limit:  # NaN does not pass
        raise RegistryError(
            f"its answers to {len(answers)} example rows differ from those that were stored with it by up to "
            f"{difference:.3g}; allowed: {limit:g}"
        )
