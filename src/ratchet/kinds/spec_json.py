"""Inputs and targets as JSON and back, with the standard library alone."""

from dataclasses import asdict, fields
from typing import Any

from ratchet.kinds.inputs import Array, ArraysInput, Column, ImageInput, Input, TableInput, TextInput, TokensInput

__all__ = ["input_from_json", "to_json", "without_facts"]

_INPUTS: dict[str, Any] = {each.kind: each for each in (ImageInput, TableInput, TextInput, TokensInput, ArraysInput)}
_PARTS: dict[str, Any] = {"columns": Column, "arrays": Array}
_FACTS = {field.name for part in (*_INPUTS.values(), *_PARTS.values()) for field in fields(part) if not field.compare}


def to_json(described: Any) -> dict[str, Any]:
    """Return an input or a target as plain data. Values that are defaults are left out, except the kind or problem."""
    content = asdict(described)
    left_out = {
        field.name
        for field in fields(described)
        if not field.metadata.get("stored", True)
        or (field.name not in ("kind", "problem") and content[field.name] == field.default)
    }
    return {key: value for key, value in content.items() if key not in left_out}


def without_facts(content: Any) -> Any:
    """Return the plain data of an input without facts of the training samples, which decide no weight."""
    if isinstance(content, list | tuple):
        return type(content)(map(without_facts, content))
    if isinstance(content, dict):
        return {key: without_facts(value) for key, value in content.items() if key not in _FACTS}
    return content


def input_from_json(content: dict[str, Any]) -> Input:
    """Read what `to_json` returned for an input.

    Raises:
        ValueError, TypeError, KeyError: it is not one.
    """
    values = _tuples(content)
    for name, part in _PARTS.items():
        if name in values:
            values[name] = tuple(part(**_tuples(content)) for content in values[name])
    built: Input = _INPUTS[values["kind"]](**values)
    return built


def _tuples(content: dict[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in content.items()}
