"""Tensors that a model keeps in plain attributes, lists, dicts and objects."""

from collections import deque
from collections.abc import Iterator, Mapping
from types import FunctionType, MethodType, ModuleType

import torch
from torch import nn

__all__ = ["kept_tensors", "unregistered"]

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
