"""Cost: truth comes from calls that are known to differ, and from the weights counted by hand."""

import torch
from torch import nn

from ratchet.evaluation.latency import compare, side_by_side


def test_calls_take_turns_in_going_first_and_the_first_of_each_is_not_counted() -> None:
    order: list[str] = []
    side_by_side(lambda: order.append("a"), lambda: order.append("b"))
    assert order[:6] == ["a", "b", "a", "b", "b", "a"]
    assert order.count("a") == order.count("b") >= 8


def test_a_call_that_does_much_more_takes_longer() -> None:
    ours, theirs = side_by_side(lambda: sum(range(200_000)), lambda: sum(range(200)))
    assert ours > 10 * theirs


def test_models_are_weighed_by_their_bytes_and_timed_on_one_row_and_all() -> None:
    seen: list[int] = []

    class Watched(nn.Linear):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            seen.append(len(images))
            assert not torch.is_grad_enabled()
            return super().forward(images.flatten(1).float())

    with torch.random.fork_rng():
        models = Watched(12, 5), Watched(12, 2, bias=False)
    found = compare(*models, torch.zeros(7, 3, 2, 2))
    assert (found.candidate.weights, found.champion.weights, found.rows) == (4 * (60 + 5), 4 * 24, 7)
    assert set(seen) == {1, 7}
    assert min(found.candidate.one, found.candidate.batch, found.champion.one, found.champion.batch) > 0
