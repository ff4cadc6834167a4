"""Answers of the latest requests, for clients that repeat one while the server is overloaded."""

import hashlib
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from ratchet.serving.formats.request_formats import ModelRequest
from ratchet.serving.versions.loaded import LoadedVersion

__all__ = ["RecentAnswers", "request_key"]

_MOST_BYTES = 32 << 20
_LONGEST = 1 << 20  # bytes of a body; the digest of a longer one would take too long
_OVERHEAD = 1000  # bytes of an entry besides its arrays and warnings
_MISSES = 256  # requests in succession without an equal one, after which looking for one is not worth its time
_RETRY = 64  # answers after which one further request is looked for
_NEW = 4096  # answers in succession without an equal request, after which only one of _SAMPLE is kept
_SAMPLE = 16
RequestKey = tuple[str, ...] | None


def request_key(envelope: str, headers: Mapping[str, str], body: bytes, loaded: LoadedVersion) -> RequestKey:
    """Return what equal requests to a version have in common; None: the body is too long."""
    if len(body) > _LONGEST:
        return None
    form = headers.get("content-type", ""), headers.get("inference-header-content-length", "")
    return loaded.identity.run_id, envelope, *form, hashlib.sha256(body).hexdigest()


class RecentAnswers:
    """Requests that were read, with their predictions; the oldest are forgotten first."""

    def __init__(self) -> None:
        self._known: OrderedDict[RequestKey, tuple[ModelRequest, Any]] = OrderedDict()
        self._bytes, self._misses, self._answers, self._new = 0, 0.0, 0, 0

    @property
    def is_useful(self) -> bool:
        """Whether clients repeat requests, as far as the latest ones show."""
        return self._misses < _MISSES

    def __bool__(self) -> bool:
        """Whether a request is remembered."""
        return bool(self._known)

    def keeps_next(self) -> bool:
        """Return whether the answer that comes next is to be kept: to keep one costs a twentieth of a cheap answer."""
        self._misses = max(0.0, self._misses - 1 / _RETRY)
        self._answers += 1
        return self._new < _NEW or self._answers % _SAMPLE == 0

    def add(self, key: RequestKey, request: ModelRequest, predictions: Any) -> None:
        """Remember the predictions, float32 (n, outputs), for the rows of a request."""
        if key is None or key in self._known:
            self._new = self._new if key is None else 0
            return
        self._new += 1
        self._known[key] = request, predictions.copy()  # a view would keep its whole batch in memory
        self._bytes += _size(request, predictions)
        while self._bytes > _MOST_BYTES:
            _, forgotten = self._known.popitem(last=False)
            self._bytes -= _size(*forgotten)

    def get(self, key: RequestKey) -> tuple[ModelRequest, Any] | None:
        """Return the rows and the predictions of an equal request; None: they are not known."""
        if key is None:
            return None
        known = self._known.get(key)
        self._misses = 0.0 if known else min(self._misses + 1.0, _MISSES)
        self._new = 0 if known else self._new
        return known


def _size(request: ModelRequest, predictions: Any) -> int:
    return request.nbytes + int(predictions.nbytes) + _OVERHEAD
