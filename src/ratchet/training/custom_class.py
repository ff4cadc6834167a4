"""A user's own kind of data: the class that reads samples and makes named arrays of their raw values.

Ingest, training and the served model call the same `CustomClass.arrays`, so a request becomes what a training sample
became.
"""

import hashlib
import inspect
import re
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ratchet import files
from ratchet.errors import TrainingError
from ratchet.kinds import ArraysInput
from ratchet.training.custom_code import CustomCode
from ratchet.training.stored_arrays import MadeArrays

__all__ = [
    "Arrays",
    "BadSample",
    "CustomClass",
    "Layout",
    "digest_of",
    "layout_of",
    "line_of",
    "shown_layout",
    "stacked",
    "summarize",
]

CHOSEN_BY = {"kind": ("arrays",)}

Arrays = dict[str, NDArray[Any]]
Layout = tuple[tuple[str, str, tuple[int, ...]], ...]

_TYPES = ("float32", "uint8", "int8", "int16", "int32", "int64", "bool")
_FLOATS = ("float16", "float32", "float64")  # all become float32
_METHODS = ("__len__", "__getitem__")
_VALUE = "value"
_CELLS = (bool, int, float, str, date, datetime)  # types of labels and other columns


class BadSample(ValueError):
    """A sample cannot be used: the rule of quarantine that it breaks, and the problem."""

    def __init__(self, rule: str, problem: str) -> None:
        super().__init__(problem)
        self.rule = rule


@dataclass(frozen=True)
class CustomClass:
    """The class that data.kind names, in the project or in the copy in a saved model."""

    name: str  # package.module:Class
    root: Path
    place: str  # file or folder in `root` with its code

    @classmethod
    def of(cls, input_spec: ArraysInput) -> "CustomClass":
        """Return the class of a model's input."""
        return cls(input_spec.reader, Path(input_spec.root), input_spec.code)

    @property
    def code(self) -> CustomCode:
        return CustomCode(self.root, self.place, "data.kind")

    def check_digest(self, digest: str) -> None:
        """Check that its code is that of ingest.

        Raises:
            TrainingError: it has changed.
        """
        if self.digest() != digest:
            raise TrainingError(
                f"data.code: {self.place} changed since the data were ingested with it. Fix: run `ratchet train`, "
                "which ingests them again"
            )

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

    @property
    def is_packed(self) -> bool:
        """Whether ingest packs its arrays. Otherwise training reads the samples."""
        return bool(getattr(self.loaded, "packed", True))

    @property
    def augment(self) -> Callable[..., Any] | None:
        """The user's function that augments a batch; None if there is none."""
        function: Callable[..., Any] | None = getattr(self.loaded, "augment", None)
        return function

    def sample(self, opened: Any, place: int) -> tuple[Any, dict[str, Any]]:
        """Return the raw value of a sample and its other entries. `opened`: an object of the class.

        Raises:
            BadSample: __getitem__ raises an error, or returns something else.
        """
        try:
            sample = opened[place]
        except (Exception, SystemExit) as error:  # the user's code may raise anything
            raise BadSample("raised", summarize(error, self.root)) from error
        if not isinstance(sample, Mapping) or _VALUE not in sample:
            has = f"with {', '.join(map(str, sample)) or 'no entry'}" if isinstance(sample, Mapping) else ""
            problem = f"__getitem__ returns a {type(sample).__name__} {has}".rstrip()
            raise BadSample("not-arrays", f"{problem}, not a dictionary with {_VALUE}")
        cells = {
            str(name): cell.item() if isinstance(cell, np.generic) else cell
            for name, cell in sample.items()
            if name != _VALUE
        }
        for name, cell in cells.items():
            if cell is not None and not isinstance(cell, _CELLS):
                problem = f"{name} is a {type(cell).__name__}, not a text, a number, a date or None"
                raise BadSample("not-arrays", problem)
        return sample[_VALUE], cells

    def arrays(self, value: Any) -> Arrays:
        """Return the arrays of a raw value by name, sorted. Floating-point numbers become float32.

        Raises:
            BadSample: the user's function raises an error, or returns no arrays of finite numbers.
        """
        try:
            arrays = value if isinstance(value, MadeArrays) else self.loaded.arrays(value)
        except (Exception, SystemExit) as error:  # the user's code may raise anything
            raise BadSample("raised", summarize(error, self.root)) from error
        if not isinstance(arrays, Mapping) or not arrays:
            raise BadSample("not-arrays", f"arrays returns {_shown(arrays)}, not a dictionary of NumPy arrays")
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
            except BadSample as error:
                raise ValueError(f"value {place}: {error}") from error
            if layout_of(arrays) != input_spec.layout:
                raise ValueError(
                    f"value {place}: found {shown_layout(layout_of(arrays))}; allowed: {input_spec.description}"
                )
            rows.append(arrays)
        return stacked(rows, input_spec.layout)


def stacked(rows: Sequence[Arrays], layout: Layout) -> tuple[NDArray[Any], ...]:
    """Return the arrays of samples with this layout, (n, *shape) each."""
    return tuple(
        np.stack([row[name] for row in rows]) if rows else np.zeros((0, *shape), dtype) for name, dtype, shape in layout
    )


def layout_of(arrays: Arrays) -> Layout:
    """Return name, type and shape of each array, as `ArraysInput.layout`."""
    return tuple((name, str(array.dtype), array.shape) for name, array in arrays.items())


def digest_of(arrays: Arrays) -> str:
    """Return the SHA-256 (hex) of arrays with their names, types and shapes."""
    digest = hashlib.sha256(repr(layout_of(arrays)).encode())
    for array in arrays.values():
        digest.update(array.tobytes())
    return digest.hexdigest()


def shown_layout(layout: Layout) -> str:
    """Return a layout as a text: "load, float32 (168)"."""
    return "; ".join(f"{name}, {dtype} ({', '.join(map(str, shape))})" for name, dtype, shape in layout)


def line_of(error: BaseException, root: Path) -> str:
    """Return the line of the user's code that raised an error, in brackets; empty if it is unknown."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename).is_relative_to(root)]
    ours = str(Path(__file__).parent)  # the project folder holds this code too
    lines = [frame for frame in frames if "site-packages" not in frame.filename and not frame.filename.startswith(ours)]
    return f" (line {lines[-1].lineno} of {Path(lines[-1].filename).relative_to(root)})" if lines else ""


def summarize(error: BaseException, root: Path) -> str:
    """Return an error and its line of the user's code, as a text that is the same on every machine."""
    text = re.sub(r" at 0x[0-9a-fA-F]+", "", str(error)).replace(f"{root}/", "")
    where = line_of(error, root)
    return f"{type(error).__name__}: {text}{where}" if text else f"{type(error).__name__}{where}"


def _checked(name: Any, array: Any) -> NDArray[Any]:
    """Return an array as it is packed. It is a copy, because the user's code may use the memory again."""
    if not isinstance(name, str) or not name.isidentifier():
        raise BadSample("not-arrays", f"the name {name!r} of an array is not a Python name such as load")
    if not isinstance(array, np.ndarray):
        raise BadSample("not-arrays", f"{name} is {_shown(array)}, not a NumPy array")
    dtype = "float32" if str(array.dtype) in _FLOATS else str(array.dtype)
    if dtype not in _TYPES:
        raise BadSample("not-arrays", f"{name} has type {array.dtype}; allowed: float64, {', '.join(_TYPES)}")
    if not array.size:
        raise BadSample("not-arrays", f"{name} has shape {array.shape}, without a value")
    with np.errstate(over="ignore"):  # reported below
        packed = np.array(array, dtype, order="C")
    if dtype == "float32" and not np.isfinite(packed).all():
        count = int((~np.isfinite(packed)).sum())
        problem = f"{count:,} of the {packed.size:,} values of {name} are nan, infinite or beyond 3.4e38"
        raise BadSample("not-finite", problem)
    return packed


def _shown(value: object) -> str:
    return f"a {type(value).__name__}"
