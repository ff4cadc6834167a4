"""Whether one version can answer the requests of another."""

from typing import Any

from ratchet.kinds import Input
from ratchet.kinds.registry import kind_of
from ratchet.problems import Classes, Labels, Numbers, Target
from ratchet.serving.versions.loaded import LoadedVersion

__all__ = ["can_replace", "takes_equal"]


def takes_equal(first: Input, second: Input) -> bool:
    """Return whether two models take the same arrays."""
    return first.kind == second.kind and kind_of(first).is_equal(first, second)


def can_replace(served: LoadedVersion, other: LoadedVersion) -> bool:
    """Return whether `other` can answer all requests to `served`, and predicts the same."""
    have, want = served.spec.input, other.spec.input
    converts = have.kind == want.kind and served.kind.converts(have, want)
    return converts and _outputs(served.spec.target) == _outputs(other.spec.target)


def _outputs(target: Target) -> Any:
    return (target.problem, target.names) if isinstance(target, Classes | Labels | Numbers) else target
