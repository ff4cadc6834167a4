"""The functions that ingest each kind, and write it. No model depends on them."""

from collections.abc import Callable
from importlib import import_module
from typing import Any

from ratchet.errors import NoRequests
from ratchet.kinds.registry import KINDS

__all__ = ["ingest_function", "sample_files"]

_FUNCTIONS = {
    "image": "ratchet.data.image_set:ingest_images",
    "table": "ratchet.data.tables.ingest:ingest_table",
    "text": "ratchet.data.texts.ingest:ingest_texts",
    "tokens": "ratchet.data.token_streams:ingest_tokens",
    "arrays": "ratchet.data.custom:ingest_custom",
}
_FILES = {
    "image": "ratchet.data.sample_files:ImageFiles",
    "table": "ratchet.data.sample_files:RowsFile",
    "text": "ratchet.data.sample_files:TextsFile",
    "arrays": "ratchet.data.sample_files:ArrayFiles",
}


def ingest_function(kind: str) -> Callable[[Any], Any]:
    """Return the function for data.kind, which may also be a user's own class."""
    return _function(_FUNCTIONS[kind if kind in KINDS else "arrays"])


def sample_files(kind: str) -> Any:
    """Return the `SampleFiles` that write samples of a kind, so that ingest reads them.

    Raises:
        NoRequests: the log does not have the samples of a kind, or no file has them.
    """
    if kind not in _FILES:
        raise NoRequests(
            f"data.kind: found {kind}. Allowed for data from requests: {', '.join(_FILES)}, because the log has the "
            "arrays of the model, and not the values that were sent. Fix: join the labels with your own copies"
        )
    return _function(_FILES[kind])()


def _function(place: str) -> Callable[..., Any]:
    module, _, name = place.partition(":")
    function: Callable[..., Any] = getattr(import_module(module), name)
    return function
