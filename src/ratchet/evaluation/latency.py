"""The cost of an answer: two models measured side by side, in one process, in alternating blocks."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import nn

__all__ = ["Cost", "Costs", "compare", "side_by_side"]

_QUANTILE = 0.1  # other programs only ever add time, so the fast calls are the ones that they disturbed least
_CALLS = 10  # of each model, at least, in one measurement
_MOST_CALLS = 200
_SECONDS = 0.5  # of one measurement, when there are enough calls
_BLOCK_SECONDS, _BLOCK_CALLS = 0.002, 8  # a block of calls of one model takes about so long, and has at most so many
_REPEATS = 3  # more measurements before a model is called too slow, each twice as long as the one before


@dataclass(frozen=True)
class Cost:
    """Of one model: bytes of its weights, and seconds for one row and for a batch (the 10 % quantile of many calls)."""

    weights: int
    one: float
    batch: float


@dataclass(frozen=True)
class Costs:
    """Of two models, measured in alternation on the same rows."""

    candidate: Cost
    champion: Cost
    rows: int  # of the batch


def compare(
    candidate: "nn.Module",
    champion: "nn.Module",
    images: "torch.Tensor",
    *,
    champion_images: "torch.Tensor | None" = None,
    limit: float = 0.0,
) -> Costs:
    """Measure both models, on the CPU and in eval mode, on the batch `images` (n, channels, height, width) and its
    first image.

    Args:
        candidate: the new model.
        champion: the model that it is compared with.
        images: as the candidate takes them.
        champion_images: the same images as the champion takes them, where its input has another size.
        limit: times the champion's seconds that are allowed. Above it the measurement is repeated; 0: never.
    """
    import torch

    theirs = images if champion_images is None else champion_images
    with torch.inference_mode():
        one, batch = (
            side_by_side(partial(candidate, images[:rows]), partial(champion, theirs[:rows]), limit=limit)
            for rows in (1, len(images))
        )
    ours, other = (
        Cost(_weights(model), one[number], batch[number]) for number, model in enumerate((candidate, champion))
    )
    return Costs(ours, other, rows=len(images))


def side_by_side(
    ours: Callable[[], object], theirs: Callable[[], object], *, limit: float = 0.0
) -> tuple[float, float]:
    """Return the seconds of a call of each: the 10 % quantile of all its timed calls.

    The two run in short alternating blocks, so that the load of the machine reaches both alike, and they alternate in
    going first. The first call of each is not counted, because it loads what later ones find. Where `ours` takes more
    than `limit` times as long as `theirs`, more calls are timed before that is believed.
    """
    times: tuple[list[float], list[float]] = ([], [])
    for repeat in range(_REPEATS + 1):
        _measure((ours, theirs), times, calls=_CALLS << repeat, seconds=_SECONDS * 2**repeat)
        mine, other = (_low(taken) for taken in times)
        if not limit or mine <= limit * other:
            break
    return mine, other


def _measure(
    models: tuple[Callable[[], object], Callable[[], object]],
    times: tuple[list[float], list[float]],
    *,
    calls: int,
    seconds: float,
) -> None:
    """Add at least so many timed calls of each to `times`, and more while there are seconds left."""
    block = min(_BLOCK_CALLS, max(1, int(_BLOCK_SECONDS / max(_timed(call) for call in models))))
    began, blocks, goal, most = time.perf_counter(), 0, len(times[0]) + calls, len(times[0]) + calls + _MOST_CALLS
    while len(times[0]) < goal or (len(times[0]) < most and time.perf_counter() - began < seconds):
        first = blocks % 2
        for number in (first, 1 - first):
            times[number].extend(_timed(models[number]) for _ in range(block))
        blocks += 1


def _timed(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _low(taken: list[float]) -> float:
    return sorted(taken)[int(len(taken) * _QUANTILE)]


def _weights(model: "nn.Module") -> int:
    return sum(one.numel() * one.element_size() for one in model.state_dict().values())
