"""Compare tensors and random generators between two forward passes or two readings of a sample."""

import random

import numpy as np
import torch

__all__ = ["generator_states", "largest_difference", "nearly_equal", "same_tensor", "seeded_generators"]


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
