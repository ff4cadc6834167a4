"""Record and compare forward passes: calls of PyTorch functions, tensors, states of random generators."""

import random
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

__all__ = [
    "Recorder",
    "Steady",
    "generator_states",
    "largest_difference",
    "nearly_equal",
    "same_tensor",
    "seeded_generators",
]

_WEIGHTED = frozenset({"conv1d", "conv2d", "conv3d", "linear", "matmul", "mm", "addmm", "bmm", "einsum", "__matmul__"})
_NORMS = frozenset({"batch_norm", "layer_norm", "group_norm", "instance_norm", "rms_norm"})
_DROPOUTS = frozenset({"dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout"})
_RANDOM_SLOPES = frozenset({"rrelu", "rrelu_"})  # how many numbers they draw depends on the values of all samples
_MEAN_SLOPE = (1 / 8 + 1 / 3) / 2  # of their default bounds
_PLACES = {"p": 1, "training": 2}  # arguments of a dropout function by position


class Recorder(TorchFunctionMode):
    """Record the input of the first weighted operation, and the probability of each dropout.

    Attributes:
        first: input of the first convolution, linear layer or matrix product; None where a norm comes before it.
        dropouts: probabilities of the dropouts that were active.
    """

    def __init__(self) -> None:
        super().__init__()
        self.first: torch.Tensor | None = None
        self.dropouts: list[float] = []
        self._decided = False

    def __torch_function__(
        self,
        function: Callable[..., Any],
        _types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(function, "__name__", "")
        if name in _DROPOUTS and _argument("training", args, kwargs, default=True):
            self.dropouts.append(float(_argument("p", args, kwargs, default=0.5)))
        if not self._decided and name in _WEIGHTED | _NORMS:
            self._decided = True
            value = next((each for each in (*args, *kwargs.values()) if isinstance(each, torch.Tensor)), None)
            self.first = value.detach() if value is not None and name in _WEIGHTED else None
        return function(*args, **kwargs)


class Steady(TorchFunctionMode):
    """Let batch norms use their running statistics and dropouts keep all values, in both modes."""

    def __torch_function__(
        self,
        function: Callable[..., Any],
        _types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = dict(kwargs or {})
        if function in (functional.batch_norm, torch.batch_norm):
            return _normalised(*args, **kwargs)
        if getattr(function, "__name__", "") in _DROPOUTS:
            return args[0] if args else kwargs["input"]
        if getattr(function, "__name__", "") in _RANDOM_SLOPES:
            return functional.leaky_relu(args[0] if args else kwargs["input"], _MEAN_SLOPE)
        return function(*args, **kwargs)


def _argument(name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, default: Any) -> Any:
    if name in kwargs:
        return kwargs[name]
    place = _PLACES[name]
    return args[place] if len(args) > place else default


def _normalised(
    input: torch.Tensor,  # PyTorch's own name for it
    running_mean: torch.Tensor | None,
    running_var: torch.Tensor | None,
    *others: Any,
    **kwargs: Any,
) -> torch.Tensor:
    """Apply batch norm with running statistics, without scale and shift; return the input where there are none."""
    if running_mean is None or running_var is None:
        return input
    shape = (1, -1, *[1] * (input.dim() - 2))
    return (input - running_mean.view(shape)) / (running_var.view(shape) + 1e-5).sqrt()


def same_tensor(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Return whether shapes and all values are equal."""
    return first.shape == second.shape and torch.equal(first, second)


def largest_difference(first: torch.Tensor, second: torch.Tensor) -> float:
    """Return the largest absolute difference of two values."""
    return float((first.detach() - second.detach()).abs().max())


def nearly_equal(first: torch.Tensor, second: torch.Tensor, share: float) -> bool:
    """Return whether no difference exceeds `share` of the largest absolute value of `second`."""
    return largest_difference(first, second) <= share * float(second.detach().abs().max())


def generator_states(device: torch.device) -> dict[str, bytes]:
    """Return the states of the global random generators, by module name."""
    states = {
        "random": repr(random.getstate()).encode(),
        "numpy.random": np.random.get_state()[1].tobytes(),  # type: ignore[index]  # the array of the five
        "torch": torch.get_rng_state().numpy().tobytes(),
    }
    if device.type == "cuda":
        states["torch.cuda"] = torch.cuda.get_rng_state(device).numpy().tobytes()
    return states


def seeded_generators(first: dict[str, bytes], second: dict[str, bytes]) -> tuple[str, ...]:
    """Return the generators in the same state after two different seeds: the code between has seeded them itself."""
    return tuple(name for name, state in first.items() if state == second[name])
