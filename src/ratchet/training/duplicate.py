"""An independent copy of a model, including objects that `copy.deepcopy` cannot copy."""

import copy
from collections.abc import Mapping
from operator import is_
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
        for owner in (vars(module), *(vars(module).get(hooks, {}) for hooks in _HOOKS)):
            for name, value in list(owner.items()):
                if isinstance(value, FunctionType):  # which copy.deepcopy does not copy
                    owner[name] = _rebound(value, memo)
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


def _rebound(value: Any, memo: dict[int, Any]) -> Any:
    """Return `value` for the copied model: the same object where it does not refer to the original."""
    if isinstance(value, MethodType):
        return MethodType(value.__func__, _rebound(value.__self__, memo))
    if not isinstance(value, FunctionType):
        return memo.get(id(value), value)
    if compiled := getattr(value, "_torchdynamo_orig_callable", None):
        return _rebound(compiled, memo)
    cells = tuple(_rebound_cell(cell, memo) for cell in value.__closure__ or ())
    defaults = tuple(_rebound(default, memo) for default in value.__defaults__ or ())
    if all(map(is_, (*cells, *defaults), (*(value.__closure__ or ()), *(value.__defaults__ or ())))):
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
