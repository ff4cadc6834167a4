"""The function that ingests each kind. Only ingest reads this, so that no model depends on how its data is ingested."""

from collections.abc import Callable
from importlib import import_module
from typing import Any

from ratchet.kinds.registry import KINDS

__all__ = ["ingest_function"]

_FUNCTIONS = {
    "image": "ratchet.data.image_set:ingest_images",
    "table": "ratchet.data.tables.ingest:ingest_table",
    "text": "ratchet.data.texts.ingest:ingest_texts",
    "tokens": "ratchet.data.token_streams:ingest_tokens",
    "arrays": "ratchet.data.custom:ingest_custom",
}


def ingest_function(kind: str) -> Callable[[Any], Any]:
    """Return the function for data.kind, which may also be a user's own class."""
    module, _, name = _FUNCTIONS[kind if kind in KINDS else "arrays"].partition(":")
    function: Callable[[Any], Any] = getattr(import_module(module), name)
    return function
