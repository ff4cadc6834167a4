"""Networks whose tensors are computed from the training set, not trained: the base of all baselines, and two of them.

A fitted network has buffers only. Their sizes depend on the training set (the number of trees, of words), so it is
built with the smallest ones and takes over the sizes of the tensors that it loads.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from ratchet.kinds import Input
from ratchet.problems import Target

__all__ = ["Blend", "Constant", "Fitted", "as_outputs", "blend_weights"]


class Fitted(nn.Module):
    """A network of buffers, which take over the shapes of the tensors that are loaded."""

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        for name, buffer in self._buffers.items():
            stored = state_dict.get(prefix + name)
            if buffer is not None and isinstance(stored, torch.Tensor) and stored.dim() == buffer.dim():
                self._buffers[name] = buffer.new_zeros(stored.shape)
        super()._load_from_state_dict(state_dict, prefix, *rest)


class Constant(Fitted):
    """Predicts the same for every sample: log-frequencies of classes, logits of labels, the mean of numbers."""

    value: torch.Tensor  # float32 (outputs,)

    def __init__(
        self, *, input: Input | None = None, target: Target | None = None, classes: int = 0, **shape: int
    ) -> None:
        """Build it from an input and a target, or for images from the number of outputs, `classes`."""
        super().__init__()
        self.dimensions = target.dimensions if target else 2  # of the outputs
        self.register_buffer("value", torch.zeros(target.outputs if target else classes))

    def forward(self, first: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
        """Return outputs (n, outputs), or (n, context, tokens), for inputs of which only the number counts."""
        return self.value.expand(*first.shape[: self.dimensions - 1], -1)


class Blend(nn.Module):
    """The average of a network's and a baseline's predictions: of probabilities, or of numbers."""

    def __init__(
        self,
        input: Input,
        target: Target,
        *,
        network: Callable[..., nn.Module],
        baseline: Callable[..., nn.Module],
    ) -> None:
        super().__init__()
        self.target = target
        self.network, self.baseline = network(input=input, target=target), baseline(input=input, target=target)

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        """Return logits of the mean probability, or the mean of the numbers, of the shape of the network's outputs."""
        both = torch.stack([self.network(*inputs).float(), self.baseline(*inputs).float()])
        return self.target.mean_prediction(both, 0)


def blend_weights(network: dict[str, torch.Tensor], baseline: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the state of a `Blend` from the states of its two networks."""
    members = {"network": network, "baseline": baseline}
    return {f"{member}.{name}": tensor for member, state in members.items() for name, tensor in state.items()}


def as_outputs(values: torch.Tensor, target: Target) -> torch.Tensor:
    """Return outputs (n, outputs). Of two classes `values` may have the log-odds of the second one alone, (n, 1)."""
    if values.shape[1] < target.outputs:
        return torch.cat([-values, values], 1) / 2
    return values
