"""The space of a search: `search.space` of params.yaml as typed dimensions, and points in it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from ratchet import files
from ratchet.settings.model import Params

__all__ = [
    "KINDS",
    "Dimension",
    "apply",
    "dimension_of",
    "is_inside",
    "listed",
    "parse_space",
    "plain_value",
    "plain_values",
    "present_values",
    "setting_of",
    "winner_id",
    "winner_of",
]

Kind = Literal["choice", "float", "int"]
KINDS: tuple[Kind, ...] = ("choice", "float", "int")


@dataclass(frozen=True)
class Dimension:
    """One setting that differs between trials.

    Attributes:
        low, high: bounds, both included, for kinds float and int.
        when: the dimension exists only if each of these settings has one of its values.
    """

    key: str
    kind: Kind
    choices: tuple[Any, ...] = ()
    low: float = 0.0
    high: float = 0.0
    step: float | None = None
    log: bool = False
    when: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)

    def is_active(self, values: Mapping[str, Any], params: Params) -> bool:
        """Return whether it exists beside the values chosen so far; other settings have their value of `params`."""
        return all(
            (values[key] if key in values else setting_of(params, key)) in allowed for key, allowed in self.when.items()
        )

    def contains(self, value: Any) -> bool:
        """Return whether a value is one that the dimension can have."""
        if self.kind == "choice":
            return _frozen(value) in self.choices
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not self.low <= value <= self.high or (self.kind == "int" and value != int(value)):
            return False
        return self.step is None or abs(round((value - self.low) / self.step) * self.step + self.low - value) < 1e-9

    @property
    def size(self) -> int | None:
        """Number of values; None if there is no end of them."""
        if self.kind == "choice":
            return len(self.choices)
        step = self._step
        return None if step is None else math.floor((self.high - self.low) / step + 1e-9) + 1

    @property
    def ends(self) -> tuple[Any, ...]:
        """Lowest and highest value of a range; all values of a choice."""
        if self.kind == "choice":
            return self.choices
        return self._value(0), self.high if self.size is None else self._value(self.size - 1)

    @property
    def _step(self) -> float | None:
        return self.step or (1 if self.kind == "int" and not self.log else None)

    def _value(self, place: int) -> Any:
        value = self.low + place * (self._step or 0)
        return int(value) if self.kind == "int" else float(f"{value:.12g}")


def parse_space(params: Params) -> tuple[Dimension, ...]:
    """Return the dimensions of `search.space`, each after those that its `when` names. They have no faults."""
    dimensions = [dimension_of(key, content) for key, content in params.search.space.items()]
    known = {dimension.key for dimension in dimensions}
    ordered: dict[str, Dimension] = {}
    while len(ordered) < len(dimensions):
        for dimension in dimensions:
            if dimension.key not in ordered and not ({*dimension.when} & known) - {*ordered}:
                ordered[dimension.key] = dimension
    return tuple(ordered.values())


def apply(params: Params, values: Mapping[str, Any]) -> Params:
    """Return the settings with these values by dotted key."""
    content = params.model_dump()
    for key, value in values.items():
        section, _, name = key.partition(".")
        if name:
            content[section][name] = value
        else:
            content[section] = value
    return Params.model_validate(content)


def setting_of(params: Params, key: str) -> Any:
    """Return the setting with a dotted key."""
    section, _, name = key.partition(".")
    return getattr(getattr(params, section), name) if name else getattr(params, section)


def present_values(space: Sequence[Dimension], params: Params) -> dict[str, Any]:
    """Return the values of `params` for the settings of the space, also where the space does not contain them.

    The first trial has them, so the winner is compared with what there was.
    """
    values: dict[str, Any] = {}
    for dimension in space:
        if dimension.is_active(values, params):
            values[dimension.key] = setting_of(params, dimension.key)
    return values


def is_inside(space: Sequence[Dimension], values: Mapping[str, Any]) -> bool:
    """Return whether the space contains the values of a trial. Those of the first trial may be outside it."""
    return all(dimension.contains(values[dimension.key]) for dimension in space if dimension.key in values)


def plain_value(value: Any) -> Any:
    """Return a value as JSON gives it back, with lists in place of tuples."""
    return list(map(plain_value, value)) if isinstance(value, tuple) else value


def plain_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values as JSON gives them back."""
    return {key: plain_value(value) for key, value in values.items()}


def winner_id(study: str, number: int, values: Mapping[str, Any]) -> str:
    """Return the value of `search.winner`: study, number of the trial, and a digest of its settings."""
    return f"{study}/{number}:{files.digest_json(plain_values(values))[:12]}"


def winner_of(params: Params) -> str | None:
    """Return STUDY/NUMBER of the trial whose settings these are, by `search.winner`; None: they have changed since."""
    trial, _, digest = params.search.winner.partition(":")
    if not digest or not params.search.space:
        return None
    values = present_values(parse_space(params), params)
    return trial if files.digest_json(plain_values(values))[:12] == digest else None


def dimension_of(key: str, content: Mapping[str, Any]) -> Dimension:
    """Return an entry of `search.space`, which has no faults, as a dimension."""
    kind = next(kind for kind in KINDS if kind in content)
    when = {name: tuple(map(_frozen, listed(value))) for name, value in content.get("when", {}).items()}
    if kind == "choice":
        return Dimension(key, kind, choices=tuple(map(_frozen, content["choice"])), when=when)
    low, high = content[kind]
    return Dimension(key, kind, low=low, high=high, step=content.get("step"), log=content.get("log", False), when=when)


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


def listed(value: Any) -> list[Any]:
    """Return a list as it is, and any other value as a list of one."""
    return list(value) if isinstance(value, list | tuple) else [value]
