"""Whether one version can answer the requests of another."""

from typing import Any

from ratchet.kinds import ImageInput, Input, TableInput
from ratchet.problems import Classes, Labels, Numbers, Target
from ratchet.serving.versions.loaded import LoadedVersion

__all__ = ["can_replace", "takes_equal"]


def takes_equal(first: Input, second: Input) -> bool:
    """Return whether two models take the same arrays. Images are scaled inside the program."""
    if isinstance(first, ImageInput) and isinstance(second, ImageInput):
        return (first.shape, first.raw_dtype, first.depth) == (second.shape, second.raw_dtype, second.depth)
    return first == second


def can_replace(served: LoadedVersion, other: LoadedVersion) -> bool:
    """Return whether `other` can answer all requests to `served`, and predicts the same."""
    return _converts(served.spec.input, other.spec.input) and _outputs(served.spec.target) == _outputs(
        other.spec.target
    )


def _converts(first: Input, second: Input) -> bool:
    """Return whether requests to one model can be encoded for the other. Tables differ in their columns and scales."""
    if isinstance(first, TableInput) and isinstance(second, TableInput):
        return {column.name for column in second.columns} <= {column.name for column in first.columns}
    return takes_equal(first, second)


def _outputs(target: Target) -> Any:
    return (target.problem, target.names) if isinstance(target, Classes | Labels | Numbers) else target
