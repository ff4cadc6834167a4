"""A copy of a model shares nothing with it, whatever the model keeps in its attributes."""

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from ratchet.errors import TrainingError
from ratchet.training import Finished, models
from ratchet.training.duplicate import duplicate


class Small(nn.Module):
    """A layer that is called through an attribute."""

    def __init__(self, change: Callable[[Any], None]) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        change(self)

    def answer(self, values: torch.Tensor, *, factor: float = 1.0) -> torch.Tensor:
        return factor * self.layer(values)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return self.answer(values)


def put(name: str, make: Callable[[Any], Any]) -> Callable[[Any], None]:
    return lambda self: setattr(self, name, make(self))


CHANGES: dict[str, Callable[[Any], None]] = {
    "nothing": lambda self: None,
    "compiled method": put("answer", lambda self: torch.compile(self.answer, backend="eager")),
    "compiled forward": put("forward", lambda self: torch.compile(self.forward, backend="eager")),
    "compiled function": put(
        "answer", lambda self: torch.compile(lambda values: 2 * self.layer(values), backend="eager")
    ),
    "compiled layer": put("layer", lambda self: torch.compile(self.layer, backend="eager")),
    "bound method": put("forward", lambda self: self.answer),
    "partial": put("forward", lambda self: partial(self.answer, factor=2.0)),
    "closure": put("answer", lambda self: lambda values: 2 * self.layer(values)),
    "default": put("answer", lambda self: lambda values, layer=self.layer: layer(values)),
    "hook": lambda self: self.layer.register_forward_hook(lambda _module, _args, output: output + self.layer.bias),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_copy_answers_with_its_own_weights(change: Callable[[Any], None]) -> None:
    model, values = Small(change), torch.ones(2, 4)
    copied = duplicate(model)
    assert torch.equal(copied(values), model(values))
    with torch.no_grad():
        for parameter in copied.parameters():
            parameter.zero_()
    assert not copied(values).any()
    assert model(values).any()


def test_computed_tensors_of_the_old_weight_norm_are_copied() -> None:
    with pytest.warns(FutureWarning, match="weight_norm"):
        model = nn.Sequential(nn.utils.weight_norm(nn.Linear(4, 4)))
    values = torch.ones(2, 4)
    copied = duplicate(model)
    with torch.no_grad():
        copied[0].weight_g.mul_(2)
        copied[0].bias.mul_(2)
    assert torch.allclose(copied(values), 2 * model(values))


def test_attribute_that_cannot_be_copied_is_one_clear_error() -> None:
    model = Small(put("lock", lambda _: threading.Lock()))
    with pytest.raises(TrainingError, match=r"cannot be copied \(TypeError: .*lock.*Fix: "):
        duplicate(model)


def test_average_of_a_model_with_a_compiled_method_is_measured(lab: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Validation of the moving average does not run a method with the raw weights."""
    plain: Any = models._networks("image")["tiny"]

    class Compiled(plain):
        def __init__(self, **shape: int) -> None:
            super().__init__(**shape)
            self.maps = torch.compile(self.maps, backend="eager")

        def maps(self, images: torch.Tensor) -> torch.Tensor:
            return self.features(images)

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return self.head(self.maps(images))

    expected: Finished = lab.run(lab.plan(ema_decay=0.99), name="plain")
    monkeypatch.setitem(models._networks("image"), "tiny", Compiled)
    result: Finished = lab.run(lab.plan(ema_decay=0.99), name="compiled")
    assert [epoch["validation/loss"] for epoch in result.history] == pytest.approx(
        [epoch["validation/loss"] for epoch in expected.history], rel=1e-5
    )
