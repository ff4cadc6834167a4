"""Costs of calls that are known to differ, and sizes of weights that are counted by hand."""

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from ratchet.evaluation import latency
from ratchet.evaluation.latency import compare, side_by_side


def test_blocks_alternate_and_the_first_calls_are_not_counted() -> None:
    order: list[str] = []
    side_by_side(lambda: order.append("a"), lambda: order.append("b"))
    blocks = [(name, len(list(calls))) for name, calls in itertools.groupby(order[2:])]
    assert order[:2] == ["a", "b"]
    assert [name for name, _ in blocks[:4]] == ["a", "b", "a", "b"]
    assert [count for _, count in blocks[:4]] == [
        8,
        16,
        16,
        16,
    ]  # then two adjacent blocks of one model
    assert order.count("a") == order.count("b") >= 11


def disturbed(monkeypatch: pytest.MonkeyPatch, *, ours: Callable[[int], float], theirs: Callable[[int], float]) -> Any:
    """Return two calls on a fake clock; `ours` and `theirs` give the seconds of each call by its number."""
    now, numbers = [0.0], [0, 0]

    def call(model: int, seconds: Callable[[int], float]) -> None:
        now[0] += seconds(numbers[model])
        numbers[model] += 1

    monkeypatch.setattr(latency.time, "perf_counter", lambda: now[0])
    return partial(call, 0, ours), partial(call, 1, theirs)


def test_bursts_of_load_do_not_refuse_an_identical_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three of four calls of one model are disturbed, which moves its median tenfold."""
    calls = disturbed(monkeypatch, ours=lambda number: 0.1 if number % 4 else 0.01, theirs=lambda number: 0.01)
    ours, theirs = side_by_side(*calls, limit=4.0)
    assert ours == pytest.approx(theirs)


def test_slow_first_measurement_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = disturbed(monkeypatch, ours=lambda number: 0.1 if number < 100 else 0.01, theirs=lambda number: 0.01)
    ours, theirs = side_by_side(*calls, limit=4.0)
    assert ours == pytest.approx(theirs)


def test_model_that_is_six_times_slower_stays_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    noise = np.random.default_rng(3).exponential(0.05, 100_000)
    calls = disturbed(monkeypatch, ours=lambda number: 0.06 + noise[number], theirs=lambda number: 0.01)
    ours, theirs = side_by_side(*calls, limit=4.0)
    assert ours > 4 * theirs


def test_more_work_takes_more_time() -> None:
    ours, theirs = side_by_side(lambda: sum(range(200_000)), lambda: sum(range(200)))
    assert ours > 10 * theirs


def test_costs_of_two_models_have_sizes_and_times() -> None:
    """Both models run on one image and on the whole batch."""
    seen: list[int] = []

    class Watched(nn.Linear):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            seen.append(len(images))
            assert not torch.is_grad_enabled()
            return super().forward(images.flatten(1).float())

    with torch.random.fork_rng():
        models = Watched(12, 5), Watched(12, 2, bias=False)
    costs = compare(*models, (torch.zeros(7, 3, 2, 2),))
    assert (costs.candidate.weights, costs.champion.weights, costs.rows) == (4 * (60 + 5), 4 * 24, 7)
    assert set(seen) == {1, 7}
    assert min(costs.candidate.single, costs.candidate.batch, costs.champion.single, costs.champion.batch) > 0


def test_champion_is_timed_at_its_own_input_size() -> None:
    sizes: list[int] = []

    class Watched(nn.Flatten):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            sizes.append(images.shape[-1])
            return super().forward(images)

    compare(Watched(), Watched(), (torch.zeros(3, 1, 8, 8),), champion_inputs=(torch.zeros(3, 1, 4, 4),))
    assert set(sizes[:2]) == {8, 4}
