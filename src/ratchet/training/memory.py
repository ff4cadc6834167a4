"""Gradient checkpointing: activations are computed twice, so that few of them have to be kept.

Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost". What a block makes on its way is dropped and made
again when its gradient is due, with the same dropout and the same buffers, so that nothing but memory and time differs.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from ratchet.training.models import Classifier
from ratchet.training.transfer import layers_in, stages

__all__ = ["checkpointed"]


def checkpointed(model: Classifier) -> None:
    """Make every block of the model forget what it computed, and compute it again on the way back.

    A block is a module inside a stage that is not a Sequential; a Sequential is cut where a layer follows another.
    Losses, gradients and buffers stay the same bits; names of parameters stay as they are.
    """
    _walk(model.network, {id(module) for stage in stages(model) for module in stage.modules}, inside=False)


def _walk(module: nn.Module, tops: set[int], *, inside: bool) -> None:
    inside = inside or id(module) in tops
    if type(module).forward is nn.Sequential.forward:
        module.__dict__["forward"] = _Runs(list(_cut(module, tops, inside=inside)))
    elif not inside:
        for child in module.children():
            _walk(child, tops, inside=False)
    elif layers_in(module) >= 2:
        module.__dict__["forward"] = _Recomputed(module.forward, [module])


def _cut(module: nn.Module, tops: set[int], *, inside: bool) -> Iterator[Callable[..., Any]]:
    """A Sequential's children, in runs that each begin with a layer."""
    run: list[nn.Module] = []
    for child in module.children():
        if run and layers_in(child):
            yield _forgetting(run)
            run = []
        if type(child).forward is nn.Sequential.forward or not (inside or id(child) in tops):
            _walk(child, tops, inside=inside)
            if run:
                yield _forgetting(run)
            yield child
            run = []
        else:
            run.append(child)
    if run:
        yield _forgetting(run)


def _forgetting(run: list[nn.Module]) -> Callable[..., Any]:
    """A lone layer keeps only what goes into it: nothing is to be won there."""
    lone = len(run) == 1 and layers_in(run[0]) < 2
    return run[0] if lone else _Recomputed(_Runs(list(run)), run)


class _Runs:
    """One after the other."""

    def __init__(self, parts: Sequence[Callable[..., Any]]) -> None:
        self.parts = parts

    def __call__(self, value: Any) -> Any:
        for part in self.parts:
            value = part(value)
        return value


class _Recomputed:
    """`run`, whose inner results are dropped and made again; `modules` hold the buffers that it changes."""

    def __init__(self, run: Callable[..., Any], modules: Sequence[nn.Module]) -> None:
        self.run, self.modules = run, modules

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled() or not self._has_gradient([*args, *kwargs.values()]):
            return self.run(*args, **kwargs)  # nothing is kept anyway
        contexts = partial(_contexts, self.modules)
        return checkpoint(self.run, *args, use_reentrant=False, context_fn=contexts, **kwargs)

    def _has_gradient(self, values: Sequence[Any]) -> bool:
        parameters = (one for module in self.modules for one in module.parameters())
        return any(isinstance(one, torch.Tensor) and one.requires_grad for one in (*values, *parameters))


Buffers = list[tuple[nn.Module, str, torch.Tensor]]


def _contexts(modules: Sequence[nn.Module]) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """For the first computation none; for the second the buffers as they were before the first."""
    owners = {one for module in modules for one in module.modules() if one.training}
    before = [(one, name, buffer.clone()) for one in owners for name, buffer in one.named_buffers(recurse=False)]
    return nullcontext(), _as_before(before)


@contextmanager
def _as_before(before: Buffers) -> Iterator[None]:
    """Lend the modules copies of their buffers: a batch norm must not count the same batch twice."""
    own = [(module, name, getattr(module, name)) for module, name, _ in before]
    for module, name, buffer in before:
        setattr(module, name, buffer.clone())
    try:
        yield
    finally:
        for module, name, buffer in own:
            setattr(module, name, buffer)
