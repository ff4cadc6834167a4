"""PyTorch's optimizers without their hooks for torch.compile, which slow the import."""

import inspect
from typing import TypeVar

import torch

__all__ = ["without_compile_wrappers"]

Kind = TypeVar("Kind", bound=torch.optim.Optimizer)


def without_compile_wrappers(kind: type[Kind]) -> type[Kind]:
    """Return the optimizer class without the wrappers that import PyTorch's compiler, over a second at every start.

    Only models are compiled here, never optimizers. The other effect of the wrappers stays: no gradients in a step.
    """
    content = {
        "add_param_group": inspect.unwrap(kind.add_param_group),
        "zero_grad": inspect.unwrap(kind.zero_grad),
        "step": torch.no_grad()(inspect.unwrap(kind.step)),
    }
    return type(kind.__name__, (kind,), content)
