"""Dropout with its own mask is dropout."""

import pytest
import torch
from torch import nn

from ratchet.training.models.convnet import Dropout


@pytest.mark.parametrize("p", [0.1, 0.3, 0.5, 0.9])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_dropout_has_probability_p_and_keeps_the_mean(p: float, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    out = Dropout(p)(torch.ones(1001, 1003, dtype=dtype))
    assert out.dtype == dtype
    kept = torch.tensor(1 / (1 - p), dtype=dtype)
    assert set(out.unique().tolist()) == {0.0, kept.item()}
    for lane in range(4):  # each of the four masks that one drawn number holds
        share = (out.flatten()[lane::4] == 0).double().mean().item()
        assert share == pytest.approx(p, abs=5 * (p * (1 - p) / 251_000) ** 0.5)


def test_neighbours_fall_independently() -> None:
    torch.manual_seed(0)
    dropped = (Dropout(0.5)(torch.ones(1_000_000)) == 0).double()
    for distance in (1, 2, 3, 4):
        both = (dropped[distance:] * dropped[:-distance]).mean().item()
        assert both == pytest.approx(0.25, abs=0.0025)


def test_gradient_flows_where_the_activation_was_kept_alone() -> None:
    x = torch.ones(7, 5, requires_grad=True)
    out = Dropout(0.3)(x)
    out.sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad, out.detach())  # the activations are ones


def test_one_seed_gives_one_mask() -> None:
    masks = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        masks.append(Dropout(0.5)(torch.ones(64)))
    assert torch.equal(masks[0], masks[1])
    assert not torch.equal(masks[0], masks[2])


@pytest.mark.parametrize("p", [0.0, 1.0])
def test_the_ends_are_those_of_pytorch(p: float) -> None:
    x = torch.randn(5)
    assert torch.equal(Dropout(p)(x), nn.Dropout(p)(x))


def test_nothing_falls_in_eval_mode() -> None:
    x = torch.randn(5)
    assert torch.equal(Dropout(0.5).eval()(x), x)
