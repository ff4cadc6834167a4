"""Samples of a user's own kind: raw values of which the user's code makes named arrays, or these arrays."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ratchet.errors import RatchetError
from ratchet.kinds.inputs import ArraysInput
from ratchet.kinds.protocol import (
    Arrays,
    InputError,
    Json,
    Kind,
    RawValue,
    TensorSpec,
    Unusual,
    far_values,
    go_on,
    require_fit,
)
from ratchet.kinds.raw_values import as_type, json_type, only_column

if TYPE_CHECKING:
    from ratchet.training import Split
    from ratchet.training.custom_class import CustomClass

__all__ = ["CustomKind"]


class CustomKind(Kind[ArraysInput]):
    """Named arrays, as data.kind names the class that makes them."""

    name = "arrays"
    networks = MappingProxyType({"mlp": "ArraysMLP"})
    model = "ArraysModel"
    has_user_code = True
    baseline = "array-trees"

    def array_names(self, spec: ArraysInput) -> tuple[str, ...]:
        return spec.names

    def prepare(self, spec: ArraysInput) -> "CustomClass":
        """Return the user's class.

        Raises:
            TrainingError: it cannot be imported, or lacks a method.
        """
        from ratchet.training.custom_class import CustomClass

        custom = CustomClass.of(spec)
        _ = custom.loaded  # so that later calls only use it
        return custom

    def example(self, spec: ArraysInput, rows: int, seed: int) -> Arrays:
        random = np.random.default_rng(seed)
        return tuple(
            random.normal(array.mean, array.std, (rows, *array.shape)).astype(array.dtype)
            if array.is_scaled
            else np.full((rows, *array.shape), round(array.mean), array.dtype)  # in the range of the training values
            for array in spec.arrays
        )

    def zeros(self, spec: ArraysInput, rows: int) -> Arrays:
        return tuple(np.zeros((rows, *array.shape), array.dtype) for array in spec.arrays)

    def read(self, values: Any, spec: ArraysInput, field: str, check: Callable[[], None] = go_on) -> Arrays:
        """Return the arrays of a list of the user's values, or of a mapping of arrays by name."""
        values = only_column(values, field)
        if isinstance(values, Mapping) and len(values) == 1 and not set(values) & set(spec.names):
            (values,) = values.values()  # a frame with one column
        if isinstance(values, Mapping):
            return _named_arrays(values, spec, field)
        if not isinstance(values, list | np.ndarray):
            raise InputError(f"{field}: found {json_type(values)}; allowed: a list of {spec.reader} values")
        try:
            arrays: Arrays = spec.prepared.batch(list(values), spec)
            return arrays
        except (RatchetError, ValueError) as error:
            raise InputError(f"{field}: {error}") from None

    def values(self, arrays: Arrays, spec: ArraysInput) -> dict[str, NDArray[Any]]:
        return dict(zip(spec.names, arrays, strict=True))

    def features(self, arrays: Arrays, spec: ArraysInput) -> dict[str, NDArray[Any]]:
        return {f"mean of {name}": array.mean(1) for name, array in zip(spec.names, arrays, strict=True)}

    def unusual(self, arrays: Arrays, spec: ArraysInput, raw_value: RawValue) -> Iterator[Unusual]:
        for values, array in zip(arrays, spec.arrays, strict=True):
            yield from far_values(values, array.name, array.range)

    def obstacle(self, have: ArraysInput, want: ArraysInput) -> str:
        if have.layout != want.layout:
            return f"it takes {want.description}, and these data have {have.description}"
        return ""

    def continued(self, own: ArraysInput, parent: ArraysInput) -> ArraysInput:
        """Return the input with the parent's scaling."""
        require_fit(*("; ".join(array.description for array in each.arrays) for each in (parent, own)))
        pairs = zip(parent.arrays, own.arrays, strict=True)
        arrays = tuple(replace(now, mean=before.mean, std=before.std, limits=before.limits) for before, now in pairs)
        return replace(own, arrays=arrays)

    def open_split(self, packed: Path, name: str, manifest: Mapping[str, Any], spec: ArraysInput) -> "Split":
        from ratchet.training.custom_split import ArraysSplit

        return ArraysSplit.read(packed, name, manifest, spec)

    def model_input(
        self, packed: Path, manifest: Mapping[str, Any], spec: ArraysInput, *, root: str, **settings: Any
    ) -> ArraysInput:
        """Return the input with the user's code in the project folder."""
        from ratchet.training.custom_class import CustomClass

        spec = super().model_input(packed, manifest, spec, root=root, **settings).with_code_in(root)
        CustomClass.of(spec).check_digest(spec.code_digest)
        return spec

    def tensors(self, spec: ArraysInput) -> tuple[TensorSpec, ...]:
        return tuple(TensorSpec(array.name, array.dtype, array.shape) for array in spec.arrays)

    def from_named(self, tensors: Mapping[str, NDArray[Any]], spec: ArraysInput) -> Mapping[str, NDArray[Any]]:
        return tensors

    def schema(self, spec: ArraysInput) -> Json:
        by_name = {name: {"type": "array"} for name in spec.names}
        return {"anyOf": [{"type": "object", "properties": by_name, "required": [*by_name]}, {"type": "array"}]}

    def example_values(self, spec: ArraysInput) -> dict[str, list[Any]]:
        return {each.name: np.full((1, *each.shape), each.mean).astype(each.dtype).tolist() for each in spec.arrays}

    def example_tensors(self, spec: ArraysInput) -> list[list[Any]]:
        return [np.ravel(values).tolist() for values in self.example_values(spec).values()]

    def mlflow_schema(self, spec: ArraysInput) -> None:
        """Return None: MLflow would change values such as arrays in a dictionary."""
        return

    def summary(self, spec: ArraysInput) -> str:
        return f"raw values, of which {spec.reader} makes {spec.description}"

    def argument(self, spec: ArraysInput) -> str:
        return f"a list of raw values, or {spec.description}"


def _named_arrays(values: Mapping[str, Any], spec: ArraysInput, field: str) -> Arrays:
    """Return arrays that are given by name, (n, *shape) each."""
    if set(values) != set(spec.names):
        names = ", ".join(map(str, values)) or "no arrays"
        raise InputError(f"{field}: found {names}; allowed: {spec.description}")
    arrays = []
    for array in spec.arrays:
        raw = values[array.name]
        try:
            given = np.asarray(raw, None if isinstance(raw, np.ndarray) else object)
            arrays.append(as_type(given, np.dtype(array.dtype)))
        except (ValueError, TypeError, OverflowError):
            raise InputError(f"{field}: {array.name} has values that are no finite {array.dtype}") from None
    rows = {len(each) if each.ndim else -1 for each in arrays}
    for array, each in zip(spec.arrays, arrays, strict=True):
        if each.shape[1:] != array.shape or len(rows) > 1 or rows == {-1}:
            shape = ", ".join(map(str, ("n", *array.shape)))
            raise InputError(
                f"{field}: {array.name} has shape {each.shape}; allowed: ({shape}), with one n for all arrays"
            )
    return tuple(arrays)
