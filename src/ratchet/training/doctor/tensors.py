"""Tensors that a model keeps in plain attributes, lists, dicts and objects, and the graphs behind tensors."""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from types import FunctionType, MethodType, ModuleType

import torch
from torch import nn
from torch.autograd.graph import Node

__all__ = ["graph_leaves", "graph_nodes", "kept_tensors", "unregistered"]

_INTERNAL = frozenset(vars(nn.Module()))  # attributes in which PyTorch itself keeps a module's members
_DEEPEST = 6
_LONGEST = 10_000  # members of one container that are looked at


def kept_tensors(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield (path, tensor) for the model's attributes: with buffers, without parameters of registered layers."""
    registered = {id(module) for module in model.modules()}
    seen: set[int] = set()
    for prefix, module in model.named_modules():
        for name, value in _attributes(module):
            yield from _within(value, f"{prefix}.{name}".lstrip("."), registered, seen, 0)


def unregistered(model: nn.Module) -> dict[int, str]:
    """Return the path of each tensor that requires a gradient and is not in `model.parameters()`, by id."""
    known = {id(parameter) for parameter in model.parameters()}
    return {
        id(tensor): path
        for path, tensor in kept_tensors(model)
        if tensor.requires_grad and tensor.is_leaf and id(tensor) not in known
    }


def graph_nodes(nodes: Iterable[Node | None]) -> Iterator[Node]:
    """Yield the nodes of the autograd graph behind `nodes` and these themselves, nearest first."""
    waiting = deque(node for node in nodes if node is not None)
    seen = set(waiting)
    while waiting:
        node = waiting.popleft()
        yield node
        for before, _ in node.next_functions:
            if before is not None and before not in seen:
                seen.add(before)
                waiting.append(before)


def graph_leaves(node: Node | None) -> Iterator[torch.Tensor]:
    """Yield the tensors that a backward pass from `node` gives gradients to, nearest first."""
    for each in graph_nodes([node]):
        variable = getattr(each, "variable", None)
        if isinstance(variable, torch.Tensor):
            yield variable


def _attributes(module: nn.Module) -> Iterator[tuple[str, object]]:
    for name, value in vars(module).items():
        if name not in _INTERNAL:
            yield name, value
    yield from module._buffers.items()


def _within(
    value: object, path: str, registered: set[int], seen: set[int], depth: int
) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        yield path, value
        return
    if depth > _DEEPEST or id(value) in seen or id(value) in registered:
        return
    seen.add(id(value))
    for name, member in _members(value):
        yield from _within(member, f"{path}{name}", registered, seen, depth + 1)


def _members(value: object) -> Iterator[tuple[str, object]]:
    if isinstance(value, nn.Module):
        for name, member in [*_attributes(value), *value._parameters.items(), *value._modules.items()]:
            yield f".{name}", member
    elif isinstance(value, Mapping):
        for key, member in list(value.items())[:_LONGEST]:
            yield f"[{key!r}]", member
    elif isinstance(value, list | tuple | set | frozenset | deque):
        for place, member in enumerate(list(value)[:_LONGEST]):
            yield f"[{place}]", member
    elif hasattr(value, "__dict__") and not isinstance(value, type | FunctionType | MethodType | ModuleType):
        for name, member in list(vars(value).items()):
            yield f".{name}", member
