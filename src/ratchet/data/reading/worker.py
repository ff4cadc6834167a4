"""What the workers of an ingest do: read samples, look at them, keep their pixels.

It imports little, for every process that reads has to load it anew.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any

from ratchet.data.reading.images import Facts, Look
from ratchet.data.reading.scratch import Scratch

__all__ = ["Reading", "columns"]

_FACTS = {field.name: attrgetter(field.name) for field in fields(Facts)}


@dataclass(frozen=True)
class Reading:
    """How samples are read (`read`, a sources.Reader), what is wanted of them, and where their pixels go."""

    read: Any
    look: Look
    scratch: Scratch

    def __call__(self, chunk: tuple[int, Sequence[str]]) -> dict[str, list[Any]]:
        """The facts of some samples, column by column; the first one's pixels go to this place of the scratch file."""
        place, names = chunk
        facts, pixels = self.look.over(self.read, names)
        if any(one.pixels is not None for one in facts):
            self.scratch.write(place, pixels)
        return columns(facts)


def columns(facts: Sequence[Facts]) -> dict[str, list[Any]]:
    """Facts, turned from one object per sample into one list per fact."""
    return {name: list(map(get, facts)) for name, get in _FACTS.items()}
