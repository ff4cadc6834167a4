"""An answered request, as the log, the metrics, shadow and canary see it."""

from collections.abc import Callable
from typing import NamedTuple

from ratchet.serving.formats.envelopes import Answer, Question
from ratchet.serving.versions.loaded import LoadedVersion

__all__ = ["Answered", "Observer"]


class Answered(NamedTuple):
    """A request that was answered. `began` is in seconds since 1970; `seconds` from the request to the answer.

    `key` is the name of its API key.
    """

    envelope: str
    question: Question
    answer: Answer
    loaded: LoadedVersion
    key: str
    began: float
    seconds: float


Observer = Callable[[Answered], None]
"""It is called in the event loop after each answer is ready, so it must return at once."""
