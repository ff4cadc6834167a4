"""An answered request, as the log, the metrics, shadow and canary see it."""

from collections.abc import Callable
from typing import NamedTuple

from ratchet.serving.formats.envelopes import Answer, ModelRequest
from ratchet.serving.versions.loaded import LoadedVersion

__all__ = ["Answered", "Observer"]


class Answered(NamedTuple):
    """A request that was answered.

    Attributes:
        key: name of its API key.
        client: its key, or its address.
        began: in seconds since 1970.
        seconds: from the request to the answer.
        model_seconds: of the version, without the client's upload and the reading of the request.
    """

    envelope: str
    question: ModelRequest
    answer: Answer
    loaded: LoadedVersion
    key: str
    client: str
    began: float
    seconds: float
    model_seconds: float


Observer = Callable[[Answered], None]
"""It is called in the event loop after each answer is ready, so it must return at once."""
