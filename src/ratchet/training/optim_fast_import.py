"""PyTorch's optimizers without what they carry for being compiled themselves."""

import inspect
from typing import TypeVar

import torch

__all__ = ["without_compile_wrappers"]

Kind = TypeVar("Kind", bound=torch.optim.Optimizer)


def without_compile_wrappers(kind: type[Kind]) -> type[Kind]:
    """The optimizer without the wrappers that import PyTorch's compiler, over a second of every start.

    Here the model alone is ever compiled, never its optimizer. What the wrappers also do stays: no gradients in a step.
    """
    content = {
        "add_param_group": inspect.unwrap(kind.add_param_group),
        "zero_grad": inspect.unwrap(kind.zero_grad),
        "step": torch.no_grad()(inspect.unwrap(kind.step)),
    }
    return type(kind.__name__, (kind,), content)
