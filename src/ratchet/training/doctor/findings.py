"""What the doctor says."""

from dataclasses import dataclass

__all__ = ["Finding", "some"]

_NAMED = 4


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong, or most likely is."""

    check: str  # the check's name, for a headline
    told: str  # what was found, with its figures
    way_out: str  # what to do about it

    @property
    def words(self) -> str:
        """Both, as one sentence."""
        return f"{self.told}: {self.way_out}"


def some(names: list[str]) -> str:
    """The first few names, and how many more there are."""
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")
