"""Inputs and targets as JSON and back, with the standard library alone."""

from dataclasses import asdict, fields
from typing import Any

from ratchet.kinds.inputs import Column, ImageInput, Input, TableInput, TextInput, TokensInput
from ratchet.kinds.targets import Classes, Labels, NextToken, Numbers, Target

__all__ = ["input_from_json", "target_from_json", "to_json"]

_INPUTS: dict[str, Any] = {"image": ImageInput, "table": TableInput, "text": TextInput, "tokens": TokensInput}
_TARGETS: dict[str, Any] = {
    "classification": Classes, "multi-label": Labels, "regression": Numbers, "next-token": NextToken,
}  # fmt: skip


def to_json(described: Input | Target) -> dict[str, Any]:
    """Return an input or a target as plain data. Values that are defaults are left out, except the kind or problem."""
    defaults = {field.name: field.default for field in fields(described) if field.name not in ("kind", "problem")}
    return {key: value for key, value in asdict(described).items() if value != defaults.get(key, ...)}


def input_from_json(content: dict[str, Any]) -> Input:
    """Read what `to_json` returned for an input.

    Raises:
        ValueError, TypeError, KeyError: it is not one.
    """
    values = _tuples(content)
    if "columns" in values:
        values["columns"] = tuple(Column(**_tuples(column)) for column in values["columns"])
    built: Input = _INPUTS[values["kind"]](**values)
    return built


def target_from_json(content: dict[str, Any]) -> Target:
    """Read what `to_json` returned for a target.

    Raises:
        ValueError, TypeError, KeyError: it is not one.
    """
    built: Target = _TARGETS[content["problem"]](**_tuples(content))
    return built


def _tuples(content: dict[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in content.items()}
