"""Errors of a request."""

__all__ = ["BadRequest", "TooManyRows"]

_LONGEST = 600  # characters of a message


class BadRequest(ValueError):
    """The request cannot be answered; the message names the field, the value, what is allowed and the fix."""

    def __init__(self, message: str) -> None:
        half = _LONGEST // 2  # a value of the request may have megabytes
        super().__init__(message if len(message) <= _LONGEST else f"{message[:half]} ... {message[-half:]}")


class TooManyRows(BadRequest):
    """The request has more rows than serving.rows."""
