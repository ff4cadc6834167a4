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
    seen = {id(module) for module in model.modules()}
    for prefix, module in model.named_modules():
        for name, value in _attributes(module):
            yield from _within(value, f"{prefix}.{name}".lstrip("."), seen, 0)


def unregistered(model: nn.Module) -> dict[int, str]:
    """Return the path of each tensor that requires a gradient and is not in `model.parameters()`, by id."""
    registered = {id(parameter) for parameter in model.parameters()}
    tensors = {id(tensor): path for path, tensor in kept_tensors(model) if tensor.requires_grad and tensor.is_leaf}
    return {key: path for key, path in tensors.items() if key not in registered}


def _attributes(module: nn.Module) -> Iterator[tuple[str, object]]:
    yield from ((name, value) for name, value in list(vars(module).items()) if name not in _INTERNAL)
    yield from module._buffers.items()


def _within(value: object, path: str, seen: set[int], depth: int) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        yield path, value
    elif depth <= _DEEPEST and id(value) not in seen:
        seen.add(id(value))
        for name, member in _members(value):
            yield from _within(member, f"{path}{name}", seen, depth + 1)


def _members(value: object) -> list[tuple[str, object]]:
    if isinstance(value, nn.Module):
        members = [*_attributes(value), *value._parameters.items(), *value._modules.items()]
        return [(f".{name}", member) for name, member in members]
    if isinstance(value, Mapping):
        return [(f"[{key!r}]", member) for key, member in list(value.items())[:_LONGEST]]
    if isinstance(value, list | tuple | set | frozenset | deque):
        return [(f"[{place}]", member) for place, member in enumerate(list(value)[:_LONGEST])]
    if hasattr(value, "__dict__") and not isinstance(value, type | FunctionType | MethodType | ModuleType):
        return [(f".{name}", member) for name, member in vars(value).items()]
    return []
