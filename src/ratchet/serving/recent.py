"""Answers of the latest requests, for clients that repeat one while the server is overloaded."""

import hashlib
from collections import OrderedDict

import numpy as np
from numpy.typing import NDArray

from ratchet.serving.formats.raw_inputs import Arrays
from ratchet.serving.versions.loaded import LoadedVersion

__all__ = ["RecentAnswers"]

_MOST_BYTES = 32 << 20
_Key = tuple[str, int, bytes]
_OVERHEAD = 500  # bytes of an entry besides its predictions


class RecentAnswers:
    """Predictions by version and input; the oldest are forgotten first."""

    def __init__(self) -> None:
        self._known: OrderedDict[_Key, NDArray[np.float32]] = OrderedDict()
        self._bytes = 0

    def add(self, loaded: LoadedVersion, arrays: Arrays, predictions: NDArray[np.float32]) -> None:
        """Remember the predictions, float32 (n, outputs), for the arrays of n rows."""
        key = _key(loaded, arrays)
        if key in self._known:
            return
        self._known[key] = predictions.copy()  # a view would keep its whole batch in memory
        self._bytes += predictions.nbytes + _OVERHEAD
        while self._bytes > _MOST_BYTES:
            _, forgotten = self._known.popitem(last=False)
            self._bytes -= forgotten.nbytes + _OVERHEAD

    def get(self, loaded: LoadedVersion, arrays: Arrays) -> NDArray[np.float32] | None:
        """Return the predictions of this version for these rows; None: they are not known."""
        return self._known.get(_key(loaded, arrays))


def _key(loaded: LoadedVersion, arrays: Arrays) -> _Key:
    # The version gives types and shapes of its arrays, but for the rows and one length, which the digest implies.
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(np.ascontiguousarray(array).data)
    return loaded.identity.run_id, len(arrays[0]), digest.digest()
