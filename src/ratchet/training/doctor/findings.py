"""Results of the doctor's checks."""

from dataclasses import dataclass
from typing import Literal

__all__ = ["Finding", "some"]

_NAMED = 4


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong, or most likely is."""

    check: str  # the check's name, for a headline
    told: str  # what was found, with its figures
    way_out: str  # what to do about it
    severity: Literal["error", "warning"] = "error"  # warning: it may be meant; it does not fail a preflight

    @property
    def words(self) -> str:
        """Both, as one sentence."""
        return f"{self.told}: {self.way_out}"


def some(names: list[str]) -> str:
    """The first few names, and how many more there are."""
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")
