"""An independent copy of a model, including objects that `copy.deepcopy` cannot copy."""

import copy
from collections.abc import Mapping
from functools import partial
from types import CellType, FunctionType, MethodType
from typing import Any, TypeVar

import torch
from torch import nn

from ratchet.errors import TrainingError

__all__ = ["duplicate"]

Model = TypeVar("Model", bound=nn.Module)
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def duplicate(model: Model) -> Model:
    """Return a copy that shares no weight, buffer or function with `model`.

    Beyond `copy.deepcopy`: a computed tensor in an attribute (`torch.nn.utils.weight_norm`) is copied by value, and
    functions that refer to a part of the model refer to that part of the copy. Compiled methods are not compiled there.

    Raises:
        TrainingError: the model holds something that cannot be copied.
    """
    memo: dict[int, Any] = {}
    for module in model.modules():
        for value in vars(module).values():
            _note_computed(value, memo)
    try:
        copied = copy.deepcopy(model, memo)
    except Exception as error:  # the user's objects may raise anything
        why = f"{type(error).__name__}: {error}".partition("\n")[0]
        raise TrainingError(
            f"the model cannot be copied ({why}): copy.deepcopy(model) must work. Fix: keep locks, open files and "
            "generators out of the model's attributes, or give their class a __deepcopy__"
        ) from error
    for module in copied.modules():
        _rebind(vars(module), memo)
        for hooks in _HOOKS:
            _rebind(vars(module).get(hooks, {}), memo)
    return copied


def _note_computed(value: object, memo: dict[int, Any]) -> None:
    """Enter copies of computed tensors, which PyTorch refuses to copy, into the memo of `copy.deepcopy`."""
    if isinstance(value, torch.Tensor):
        if not value.is_leaf:
            memo[id(value)] = value.detach().clone()
    elif isinstance(value, Mapping):
        for member in value.values():
            _note_computed(member, memo)
    elif type(value) in (list, tuple):
        for member in value:  # type: ignore[attr-defined]
            _note_computed(member, memo)


def _rebind(owner: dict[Any, Any], memo: dict[int, Any]) -> None:
    for name, value in owner.items():
        rebound = _rebound(value, memo)
        if rebound is not value:
            owner[name] = rebound


def _rebound(value: Any, memo: dict[int, Any]) -> Any:
    """Return `value` for the copied model: the same object where it does not refer to the original."""
    if isinstance(value, nn.Module):
        return memo.get(id(value), value)
    if isinstance(value, MethodType):
        owner = _rebound(value.__self__, memo)
        return value if owner is value.__self__ else MethodType(value.__func__, owner)
    if isinstance(value, partial):
        inner = _rebound(value.func, memo)
        return value if inner is value.func else partial(inner, *value.args, **value.keywords)
    if not isinstance(value, FunctionType):
        return value
    compiled = getattr(value, "_torchdynamo_orig_callable", None)
    if compiled is not None:
        original = _rebound(compiled, memo)
        return value if original is compiled else original
    cells = tuple(_rebound_cell(cell, memo) for cell in value.__closure__ or ())
    defaults = tuple(_rebound(default, memo) for default in value.__defaults__ or ())
    if all(map(_is, cells, value.__closure__ or ())) and all(map(_is, defaults, value.__defaults__ or ())):
        return value
    function = FunctionType(value.__code__, value.__globals__, value.__name__, defaults or None, cells)
    function.__kwdefaults__, function.__dict__ = value.__kwdefaults__, dict(vars(value))
    return function


def _rebound_cell(cell: CellType, memo: dict[int, Any]) -> CellType:
    try:
        before = cell.cell_contents
    except ValueError:  # not yet assigned
        return cell
    after = before if isinstance(before, FunctionType) else _rebound(before, memo)
    return cell if after is before else CellType(after)


def _is(first: object, second: object) -> bool:
    return first is second
