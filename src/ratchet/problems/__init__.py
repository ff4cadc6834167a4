"""Problems: what is predicted for one sample. Each is one class of targets, in a module of its own.

protocol.py    what every target has
classes.py     one of several classes
labels.py      any number of labels at once
numbers.py     one or several numbers
next_token.py  the token that follows each token

A new problem is a module here and a line in `PROBLEMS`. A target is part of the packed set's manifest and of the saved
model. This package imports nothing but NumPy, and torch only where it is trained.
"""

from collections.abc import Mapping
from dataclasses import fields
from types import MappingProxyType
from typing import Any, Literal, get_args, get_origin

from ratchet.problems.classes import Classes
from ratchet.problems.labels import Labels
from ratchet.problems.next_token import NextToken
from ratchet.problems.numbers import Numbers
from ratchet.problems.protocol import Target

__all__ = ["PROBLEMS", "Classes", "Labels", "NextToken", "Numbers", "Target", "target_from_json"]

PROBLEMS: Mapping[str, type[Target]] = MappingProxyType(
    {problem.problem: problem for problem in (Classes, Labels, Numbers, NextToken)}
)


def target_from_json(content: Any) -> Target:
    """Read what `ratchet.kinds.to_json` returned for a target.

    Raises:
        ValueError, TypeError, KeyError: it is not one.
    """
    problem: Any = PROBLEMS[content["problem"]]
    values = {key: tuple(value) if isinstance(value, list) else value for key, value in content.items()}
    for field in fields(problem):
        if field.name in values and not _is(values[field.name], field.type):
            raise ValueError(f"{field.name}: found {content[field.name]!r}")
    target: Target = problem(**values)
    return target


def _is(value: Any, wanted: Any) -> bool:
    """Return whether a value has the type of a target's field: a tuple, a literal, a number or a text."""
    if get_origin(wanted) is Literal:
        return value in get_args(wanted)
    if get_origin(wanted) is tuple:
        return isinstance(value, tuple) and all(_is(each, get_args(wanted)[0]) for each in value)
    return isinstance(value, int | float if wanted is float else wanted) and not isinstance(value, bool)
