"""Two provenance records, side by side."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ratchet.settings import dotted

__all__ = ["Change", "changes", "environment"]

_ENVIRONMENT = ("python", "packages", "lock", "hardware")


@dataclass(frozen=True)
class Change:
    """One named thing that is not the same in both; None: it is not there."""

    name: str
    before: Any
    after: Any


def changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Change]:
    """What differs between two nested groups, by dotted key, in the order of the keys."""
    one, other = dotted(before), dotted(after)
    names = [*one, *(name for name in other if name not in one)]
    return [Change(name, one.get(name), other.get(name)) for name in names if one.get(name) != other.get(name)]


def environment(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Change]:
    """Packages, Python, the lock and the machine, where two records differ."""
    return changes(*({name: record.get(name) for name in _ENVIRONMENT} for record in (before, after)))
