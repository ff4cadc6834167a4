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
from types import MappingProxyType
from typing import Any

from ratchet.problems.classes import Classes
from ratchet.problems.labels import Labels
from ratchet.problems.next_token import NextToken
from ratchet.problems.numbers import Numbers
from ratchet.problems.protocol import Target

__all__ = ["PROBLEMS", "Classes", "Labels", "NextToken", "Numbers", "Target", "target_from_json"]

PROBLEMS: Mapping[str, type[Target]] = MappingProxyType(
    {problem.problem: problem for problem in (Classes, Labels, Numbers, NextToken)}
)


def target_from_json(content: dict[str, Any]) -> Target:
    """Read what `ratchet.kinds.to_json` returned for a target.

    Raises:
        ValueError, TypeError, KeyError: it is not one.
    """
    values = {key: tuple(value) if isinstance(value, list) else value for key, value in content.items()}
    return PROBLEMS[content["problem"]](**values)
