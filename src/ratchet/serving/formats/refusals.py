"""Errors of a request."""

from ratchet.kinds.protocol import InputError

__all__ = ["BadRequest"]


class BadRequest(InputError):
    """The request itself is wrong, not only a value in it."""
