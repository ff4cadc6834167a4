"""Gradient checkpointing: activations are computed twice, so that few of them are kept.

Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost". The activations inside a block are dropped and
computed again for its gradient, with the same dropout and the same buffers. Only memory and time differ.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from ratchet.training.models import Model
from ratchet.training.transfer import layers_in, stages

__all__ = ["checkpointed"]


def checkpointed(model: Model) -> None:
    """Let every block of the model drop its activations, and compute them again in the backward pass.

    A block is a module inside a stage that is not a Sequential. A Sequential is cut before each layer. Losses,
    gradients and buffers keep the same bits; parameters keep their names.
    """
    _walk(model.network, {id(module) for stage in stages(model) for module in stage.modules}, inside=False)


def _walk(module: nn.Module, tops: set[int], *, inside: bool) -> None:
    inside = inside or id(module) in tops
    if type(module).forward is nn.Sequential.forward:
        module.__dict__["forward"] = _InSequence(list(_cut(module, tops, inside=inside)))
    elif not inside:
        for child in module.children():
            _walk(child, tops, inside=False)
    elif layers_in(module) >= 2:
        module.__dict__["forward"] = _Recomputed(module.forward, [module])


def _cut(module: nn.Module, tops: set[int], *, inside: bool) -> Iterator[Callable[..., Any]]:
    """Yield the children of a Sequential in groups, each of which begins with a layer."""
    run: list[nn.Module] = []
    for child in module.children():
        if run and layers_in(child):
            yield _recomputed(run)
            run = []
        if type(child).forward is nn.Sequential.forward or not (inside or id(child) in tops):
            _walk(child, tops, inside=inside)
            if run:
                yield _recomputed(run)
            yield child
            run = []
        else:
            run.append(child)
    if run:
        yield _recomputed(run)


def _recomputed(run: list[nn.Module]) -> Callable[..., Any]:
    """Return the group with recomputation. A single layer keeps only its input anyway, so it stays as it is."""
    lone = len(run) == 1 and layers_in(run[0]) < 2
    return run[0] if lone else _Recomputed(_InSequence(list(run)), run)


class _InSequence:
    """Calls its parts one after the other."""

    def __init__(self, parts: Sequence[Callable[..., Any]]) -> None:
        self.parts = parts

    def __call__(self, value: Any) -> Any:
        for part in self.parts:
            value = part(value)
        return value


class _Recomputed:
    """Calls `run`, drops its activations and computes them again. `modules` hold the buffers that it changes."""

    def __init__(self, run: Callable[..., Any], modules: Sequence[nn.Module]) -> None:
        self.run, self.modules = run, modules

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled() or not self._has_gradient([*args, *kwargs.values()]):
            return self.run(*args, **kwargs)  # no activations are kept anyway
        contexts = partial(_contexts, self.modules)
        return checkpoint(self.run, *args, use_reentrant=False, context_fn=contexts, **kwargs)

    def _has_gradient(self, values: Sequence[Any]) -> bool:
        parameters = (parameter for module in self.modules for parameter in module.parameters())
        return any(isinstance(value, torch.Tensor) and value.requires_grad for value in (*values, *parameters))


Buffers = list[tuple[nn.Module, str, torch.Tensor]]


def _contexts(modules: Sequence[nn.Module]) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """Return the contexts of both computations. The second one sees the buffers as they were before the first."""
    owners = {inner for module in modules for inner in module.modules() if inner.training}
    before = [(owner, name, buffer.clone()) for owner in owners for name, buffer in owner.named_buffers(recurse=False)]
    return nullcontext(), _as_before(before)


@contextmanager
def _as_before(before: Buffers) -> Iterator[None]:
    """Give the modules copies of these buffers: a batch norm must not count the same batch twice."""
    own = [(module, name, getattr(module, name)) for module, name, _ in before]
    for module, name, buffer in before:
        setattr(module, name, buffer.clone())
    try:
        yield
    finally:
        for module, name, buffer in own:
            setattr(module, name, buffer)
