"""Errors of the user's own code during a training, as one line that names its place."""

import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ratchet.errors import RatchetError, TrainingError
from ratchet.kinds import ModelSpec
from ratchet.training.device import ran_out_of_memory
from ratchet.training.models import code_files
from ratchet.training.ranks import LostRank

__all__ = ["own_code_errors"]


@contextmanager
def own_code_errors(spec: ModelSpec) -> Iterator[None]:
    """Raise an error of the user's own model or kind as a TrainingError.

    Raises:
        TrainingError: naming the file and the line. Every other error passes.
    """
    try:
        yield
    except (RatchetError, LostRank):
        raise
    except Exception as error:  # the user's code may raise anything
        if ran_out_of_memory(error) or not (place := _line_of(error, spec)):
            raise
        raise TrainingError(f"{place} raised {type(error).__name__}: {error}. Fix: correct it") from error


def _line_of(error: BaseException, spec: ModelSpec) -> str:
    """Return the last line of the user's own code in the traceback; empty: there is none."""
    own: dict[Path, Path] = {}
    with suppress(TrainingError):  # the code is gone
        own = {place.resolve(): path for path, place in code_files(spec).items()}
    frames = [
        (own.get(Path(each.filename).resolve()), each.lineno) for each in traceback.extract_tb(error.__traceback__)
    ]
    lines = [f"{path}, line {number}," for path, number in frames if path is not None]
    return lines[-1] if lines else ""
