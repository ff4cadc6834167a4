"""Latency and size of two models, measured side by side in one process, in alternating blocks."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import nn

__all__ = ["Cost", "Costs", "compare", "side_by_side"]

_QUANTILE = 0.1  # other programs only add time, so they disturbed the fast calls least
_CALLS = 10  # of each model in one measurement, at least
_MOST_CALLS = 200
_SECONDS = 0.5  # of one measurement, when there are enough calls
_BLOCK_SECONDS, _BLOCK_CALLS = 0.002, 8  # of one model's calls: target duration and largest number
_REPEATS = 3  # further measurements before a model counts as too slow, each twice as long as the one before


@dataclass(frozen=True)
class Cost:
    """Cost of one model; a time is the 10 % quantile of many calls."""

    weights: int  # bytes
    single: float  # seconds for one image
    batch: float  # seconds for a batch


@dataclass(frozen=True)
class Costs:
    """Costs of two models, measured in alternation on the same samples."""

    candidate: Cost
    champion: Cost
    rows: int  # samples of the batch


def compare(
    candidate: "nn.Module",
    champion: "nn.Module",
    inputs: "tuple[torch.Tensor, ...]",
    *,
    champion_inputs: "tuple[torch.Tensor, ...] | None" = None,
    limit: float = 0.0,
) -> Costs:
    """Measure both models on the CPU, on one sample and on a batch. Both must be in eval mode.

    Args:
        champion_inputs: the same samples for the champion, where it takes other inputs.
        limit: largest allowed factor of the champion's time. Above it the measurement is repeated; 0: never.
    """
    import torch

    theirs = inputs if champion_inputs is None else champion_inputs
    with torch.inference_mode():
        single, batch = (
            side_by_side(_call(candidate, inputs, rows), _call(champion, theirs, rows), limit=limit)
            for rows in (1, len(inputs[0]))
        )
    candidate_cost, champion_cost = (
        Cost(_weights(model), single[number], batch[number]) for number, model in enumerate((candidate, champion))
    )
    return Costs(candidate_cost, champion_cost, rows=len(inputs[0]))


def _call(model: "nn.Module", inputs: "tuple[torch.Tensor, ...]", rows: int) -> Callable[[], object]:
    return partial(model, *(values[:rows] for values in inputs))


def side_by_side(
    ours: Callable[[], object], theirs: Callable[[], object], *, limit: float = 0.0
) -> tuple[float, float]:
    """Return the seconds of one call of each function: the 10 % quantile of its timed calls.

    The two run in short alternating blocks, so that the load of the machine affects both alike. They take turns in
    going first. The first call of each is not counted, because it fills caches. Where `ours` takes more than `limit`
    times as long as `theirs`, more calls are timed.
    """
    times: tuple[list[float], list[float]] = ([], [])
    for repeat in range(_REPEATS + 1):
        _measure((ours, theirs), times, calls=_CALLS << repeat, seconds=_SECONDS * 2**repeat)
        our_time, their_time = (_low(seconds) for seconds in times)
        if not limit or our_time <= limit * their_time:
            break
    return our_time, their_time


def _measure(
    models: tuple[Callable[[], object], Callable[[], object]],
    times: tuple[list[float], list[float]],
    *,
    calls: int,
    seconds: float,
) -> None:
    """Add at least `calls` timed calls of each to `times`, and more while `seconds` are not used up."""
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


def _low(seconds: list[float]) -> float:
    return sorted(seconds)[int(len(seconds) * _QUANTILE)]


def _weights(model: "nn.Module") -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in model.state_dict().values())
