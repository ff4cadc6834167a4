"""Whether one version can answer the requests of another."""

from typing import Any

from ratchet.problems import Target
from ratchet.serving.versions.loaded import LoadedVersion

__all__ = ["can_replace"]


def can_replace(served: LoadedVersion, other: LoadedVersion) -> bool:
    """Return whether `other` can answer all requests to `served`, and predicts the same."""
    have, want = served.spec.input, other.spec.input
    converts = have.kind == want.kind and served.kind.converts(have, want)
    return converts and _outputs(served.spec.target) == _outputs(other.spec.target)


def _outputs(target: Target) -> Any:
    return target.problem, target.outputs, target.names
