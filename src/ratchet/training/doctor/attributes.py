"""What a model holds beside what PyTorch knows of: tensors in its plain attributes, lists, dicts and objects."""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from types import FunctionType, MethodType, ModuleType

import torch
from torch import nn
from torch.autograd.graph import Node

__all__ = ["graph_leaves", "graph_size", "kept_tensors", "unregistered"]

_INTERNAL = frozenset(vars(nn.Module()))  # how PyTorch itself keeps a module's parts
_DEEPEST = 6
_LONGEST = 10_000  # members looked at of one container


def kept_tensors(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Tensors in the model's attributes, buffers included, parameters of registered layers not: (path, tensor)."""
    registered = {id(module) for module in model.modules()}
    seen: set[int] = set()
    for prefix, module in model.named_modules():
        for name, value in _own(module):
            yield from _within(value, f"{prefix}.{name}".lstrip("."), registered, seen, 0)


def unregistered(model: nn.Module) -> dict[int, str]:
    """The path of each tensor that wants a gradient and that `model.parameters()` lacks, by id."""
    known = {id(parameter) for parameter in model.parameters()}
    return {
        id(tensor): path
        for path, tensor in kept_tensors(model)
        if tensor.requires_grad and tensor.is_leaf and id(tensor) not in known
    }


def graph_leaves(output: torch.Tensor) -> dict[int, torch.Tensor]:
    """The tensors that a backward pass from `output` gives gradients to, by id."""
    variables = (getattr(node, "variable", None) for node in _nodes([output]))
    return {id(variable): variable for variable in variables if isinstance(variable, torch.Tensor)}


def graph_size(tensors: Iterable[torch.Tensor]) -> int:
    """How many steps of computation the tensors keep alive for a backward pass."""
    return len(_nodes(tensors))


def _nodes(tensors: Iterable[torch.Tensor]) -> set[Node]:
    waiting = [tensor.grad_fn for tensor in tensors if tensor.grad_fn is not None]
    found = set(waiting)
    while waiting:
        for node, _ in waiting.pop().next_functions:
            if node is not None and node not in found:
                found.add(node)
                waiting.append(node)
    return found


def _own(module: nn.Module) -> Iterator[tuple[str, object]]:
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
        for name, part in [*_own(value), *value._parameters.items(), *value._modules.items()]:
            yield f".{name}", part
    elif isinstance(value, Mapping):
        for key, member in list(value.items())[:_LONGEST]:
            yield f"[{key!r}]", member
    elif isinstance(value, list | tuple | set | frozenset | deque):
        for place, member in enumerate(list(value)[:_LONGEST]):
            yield f"[{place}]", member
    elif hasattr(value, "__dict__") and not isinstance(value, type | FunctionType | MethodType | ModuleType):
        for name, member in list(vars(value).items()):
            yield f".{name}", member
