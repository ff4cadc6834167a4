"""What an answer costs: two models measured side by side, in one process, in turns."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import nn

__all__ = ["Cost", "Costs", "compare", "side_by_side"]

_LEAST, _MOST = 7, 101  # rounds
_SECONDS = 1.0  # spent on rounds, when there are enough


@dataclass(frozen=True)
class Cost:
    """Of one model: bytes of its weights, and median seconds for one row and for a batch."""

    weights: int
    one: float
    batch: float


@dataclass(frozen=True)
class Costs:
    """Of two models, measured in turns on the same rows."""

    candidate: Cost
    champion: Cost
    rows: int  # of the batch


def compare(candidate: "nn.Module", champion: "nn.Module", images: "torch.Tensor") -> Costs:
    """Both models, on the CPU and in eval mode, on the batch `images` (n, channels, height, width) and its first."""
    import torch

    with torch.inference_mode():
        one, batch = (side_by_side(partial(candidate, rows), partial(champion, rows)) for rows in (images[:1], images))
    ours, theirs = (
        Cost(_weights(model), one[number], batch[number]) for number, model in enumerate((candidate, champion))
    )
    return Costs(ours, theirs, rows=len(images))


def side_by_side(ours: Callable[[], object], theirs: Callable[[], object]) -> tuple[float, float]:
    """Median seconds of a call of each.

    They take turns, so that whatever else the machine does befalls both alike, and take turns in going first. A first
    call of each is not counted: it loads what later ones find.
    """
    calls = (ours, theirs)
    for call in calls:
        call()
    taken: tuple[list[float], list[float]] = ([], [])
    began = time.perf_counter()
    while len(taken[0]) < _LEAST or (len(taken[0]) < _MOST and time.perf_counter() - began < _SECONDS):
        first = len(taken[0]) % 2
        for number in (first, 1 - first):
            start = time.perf_counter()
            calls[number]()
            taken[number].append(time.perf_counter() - start)
    return statistics.median(taken[0]), statistics.median(taken[1])


def _weights(model: "nn.Module") -> int:
    return sum(one.numel() * one.element_size() for one in model.state_dict().values())
