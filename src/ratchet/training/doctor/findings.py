"""Findings of the doctor: data only. `messages.describe_finding` gives the text."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

__all__ = ["Finding"]


@dataclass(frozen=True)
class Finding:
    """A certain or probable mistake in a training that is about to begin."""

    rule: str  # id of the rule: a key of messages.TEXTS and a row in docs/preflight.md
    subject: tuple[str, ...] = ()  # names of the layers, tensors, settings, samples or splits concerned
    values: Mapping[str, object] = field(default_factory=dict)  # measurements for the text
    severity: Literal["error", "warning"] = "error"  # a warning may be intended; preflight passes with it
