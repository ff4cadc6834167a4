"""Faults of the user's own code during a training: errors, with their line, and buffers that no file keeps."""

import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from torch import nn

from ratchet.errors import RatchetError, TrainingError
from ratchet.kinds import ModelSpec
from ratchet.training.device import ran_out_of_memory
from ratchet.training.models import code_files
from ratchet.training.ranks import LostRank

__all__ = ["UnsavedBuffers", "own_code_errors"]


class UnsavedBuffers:
    """Buffers of a network that its state_dict lacks, as they were before the first step."""

    def __init__(self, network: nn.Module) -> None:
        saved = network.state_dict().keys()
        self._first = {name: each.detach().clone() for name, each in network.named_buffers() if name not in saved}

    def notice(self, network: nn.Module) -> str | None:
        """Return a message, once, if training has changed some.

        One of another shape or type is a table that has grown, or that is kept in the type of the inputs.
        """
        buffers = dict(network.named_buffers())
        pairs = [(name, first, buffers[name].detach().cpu()) for name, first in self._first.items() if name in buffers]
        changed = [
            name
            for name, first, now in pairs
            if (first.shape, first.dtype) == (now.shape, now.dtype)
            and not ((first == now) | (first.isnan() & now.isnan())).all()
        ]
        if not changed:
            return None
        self._first = {}
        return (
            f"training changes {', '.join(changed)} of the network, which its state_dict lacks: the saved model and a "
            "resumed training do not have the values. Fix: register_buffer(..., persistent=True)"
        )


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
