"""A user's own kind of data: the class that makes named arrays of a raw value.

Ingest and the served model call the same `OwnKind.arrays`, so a request becomes what a training sample became.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ratchet import files
from ratchet.errors import TrainingError
from ratchet.kinds import ArraysInput
from ratchet.training.custom_samples import summarize
from ratchet.training.models.factory import OwnCode

__all__ = ["NotArrays", "OwnKind", "layout_of", "shown_layout"]

CHOSEN_BY = {"kind": ("arrays",)}

Arrays = dict[str, NDArray[Any]]

_TYPES = ("float32", "uint8", "int8", "int16", "int32", "int64", "bool")
_FLOATS = ("float16", "float32", "float64")  # all become float32
_METHODS = ("__len__", "__getitem__")


class NotArrays(ValueError):
    """A raw value does not become arrays: the rule of quarantine that it breaks, and the problem."""

    def __init__(self, rule: str, problem: str) -> None:
        super().__init__(problem)
        self.rule = rule


@dataclass(frozen=True)
class OwnKind:
    """The class that data.kind names, in the project or in the copy in a saved model."""

    name: str  # package.module:Class
    root: Path
    place: str  # file or folder in `root` with its code

    @classmethod
    def of(cls, input_spec: ArraysInput) -> "OwnKind":
        """Return the kind of a model's input."""
        return cls(input_spec.reader, Path(input_spec.root), input_spec.code)

    @property
    def code(self) -> OwnCode:
        return OwnCode(self.root, self.place, "data.kind")

    def digest(self) -> str:
        """Return the SHA-256 (hex) of its files."""
        return files.digest_json(self.code.digests())

    @cached_property
    def loaded(self) -> Any:
        """The class.

        Raises:
            TrainingError: it cannot be imported, or lacks a method.
        """
        kind = self.code.load(self.name)
        missing = [name for name in _METHODS if not callable(getattr(kind, name, None))]
        if not isinstance(kind, type) or missing:
            problem = f"has no {missing[0]}" if isinstance(kind, type) else "is no class"
            raise TrainingError(
                f"data.kind: {self.name} {problem}. Allowed: a class with __init__(self, path), __len__, __getitem__ "
                "and a static method arrays. Fix: see docs/your-own-kind.md"
            )
        for name in ("arrays", "augment"):
            method = inspect.getattr_static(kind, name, None)
            if not isinstance(method, staticmethod | classmethod) and (method is not None or name == "arrays"):
                problem = f"{name} is no static method" if method is not None else f"it has no method {name}"
                raise TrainingError(
                    f"data.kind: {self.name}: {problem}. A served model calls it without the data set. Fix: write "
                    f"@staticmethod above `def {name}`"
                )
        return kind

    def check(self) -> None:
        """Import the class, so that later calls only use it.

        Raises:
            TrainingError: it cannot be imported, or lacks a method.
        """
        _ = self.loaded

    @property
    def augment(self) -> Callable[..., Any] | None:
        """The user's function that augments a batch; None if there is none."""
        function: Callable[..., Any] | None = getattr(self.loaded, "augment", None)
        return function

    def arrays(self, value: Any) -> Arrays:
        """Return the arrays of a raw value by name, sorted. Floating-point numbers become float32.

        Raises:
            NotArrays: the user's function raises an error, or returns no arrays of finite numbers.
        """
        try:
            arrays = self.loaded.arrays(value)
        except (Exception, SystemExit) as error:  # the user's code may raise anything
            raise NotArrays("raised", summarize(error, self.root)) from error
        if not isinstance(arrays, Mapping) or not arrays:
            raise NotArrays("not-arrays", f"arrays returns {_shown(arrays)}, not a dictionary of NumPy arrays")
        return {name: _checked(name, arrays[name]) for name in sorted(arrays, key=str)}

    def batch(self, values: list[Any], input_spec: ArraysInput) -> tuple[NDArray[Any], ...]:
        """Return the arrays of raw values as a model with this input takes them, (n, *shape) each.

        Raises:
            ValueError: a value does not become such arrays. The message names it by its place.
        """
        rows = []
        for place, value in enumerate(values):
            try:
                arrays = self.arrays(value)
            except NotArrays as error:
                raise ValueError(f"value {place}: {error}") from error
            if layout_of(arrays) != input_spec.layout:
                layout = shown_layout(layout_of(arrays))
                raise ValueError(f"value {place}: found {layout}; allowed: {input_spec.description}")
            rows.append(arrays)
        return tuple(
            np.stack([row[array.name] for row in rows]) if rows else np.zeros((0, *array.shape), array.dtype)
            for array in input_spec.arrays
        )


def layout_of(arrays: Arrays) -> tuple[tuple[str, str, tuple[int, ...]], ...]:
    """Return name, type and shape of each array, as `ArraysInput.layout`."""
    return tuple((name, str(array.dtype), array.shape) for name, array in arrays.items())


def shown_layout(layout: tuple[tuple[str, str, tuple[int, ...]], ...]) -> str:
    """Return a layout as a text: "load, float32 (168)"."""
    return "; ".join(f"{name}, {dtype} ({', '.join(map(str, shape))})" for name, dtype, shape in layout)


def _checked(name: Any, array: Any) -> NDArray[Any]:
    """Return an array as it is packed. It is a copy, because the user's code may use the memory again."""
    if not isinstance(name, str) or not name.isidentifier():
        raise NotArrays("not-arrays", f"the name {name!r} of an array is not a Python name such as load")
    if not isinstance(array, np.ndarray):
        raise NotArrays("not-arrays", f"{name} is {_shown(array)}, not a NumPy array")
    dtype = "float32" if str(array.dtype) in _FLOATS else str(array.dtype)
    if dtype not in _TYPES:
        raise NotArrays("not-arrays", f"{name} has type {array.dtype}; allowed: float64, {', '.join(_TYPES)}")
    if not array.size:
        raise NotArrays("not-arrays", f"{name} has shape {array.shape}, without a value")
    with np.errstate(over="ignore"):  # reported below
        packed = np.array(array, dtype, order="C")
    if dtype == "float32" and not np.isfinite(packed).all():
        count = int((~np.isfinite(packed)).sum())
        problem = f"{count:,} of the {packed.size:,} values of {name} are nan, infinite or beyond 3.4e38"
        raise NotArrays("not-finite", problem)
    return packed


def _shown(value: object) -> str:
    return f"a {type(value).__name__}"
