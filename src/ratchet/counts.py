"""Numbers of things in messages."""

__all__ = ["count_of"]

NO_RESULT = "it writes messages"


def count_of(number: int, singular: str, plural: str = "") -> str:
    """Return a number with its noun: "1 sample", "1,200 samples". `plural` is needed if it is not made with an s."""
    return f"{number:,} {singular if number == 1 else plural or singular + 's'}"
