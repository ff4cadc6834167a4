"""Example rows that are stored with a version, and the model's answers: a server compares its own answers with them."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ratchet.errors import RegistryError
from ratchet.exports.program import largest_difference
from ratchet.kinds import ArraysInput, ImageInput, Input, TableInput, TextInput, TokensInput
from ratchet.problems import Target

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ratchet.exports.program import Arrays

__all__ = ["EXAMPLES", "check_examples", "random_arrays", "write_examples"]

EXAMPLES = "examples.npz"
_TOKENS = 8  # of each text


def write_examples(folder: Path, arrays: "Arrays", answers: "NDArray[np.float32]", *, limit: float) -> None:
    """Store rows, as `Program.predict` takes them, with the model's answers (n, outputs).

    `limit`: largest difference from these answers with which a version is served, as `largest_difference` returns it.
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
    difference = largest_difference(run(arrays), answers, target)
    if not difference <= limit:  # NaN does not pass
        raise RegistryError(
            f"its answers to {len(answers)} example rows differ from those that were stored with it by up to "
            f"{difference:.3g}; allowed: {limit:g}"
        )


def random_arrays(described: Input, rows: int, *, seed: int) -> "Arrays":
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
                random.normal(array.mean, array.std, (rows, *array.shape)).astype(array.dtype)
                if array.is_scaled
                else np.full(
                    (rows, *array.shape), round(array.mean), array.dtype
                )  # in the range of the training values
                for array in described.arrays
            )
        case TokensInput():
            raise AssertionError("a language model is not asked for rows")
