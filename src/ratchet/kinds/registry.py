"""The kinds of samples by name. A new kind is a folder and a line here."""

from functools import cache
from importlib import import_module
from typing import Any

from ratchet.kinds.protocol import Kind

__all__ = ["KINDS", "kind_chosen", "kind_named", "kind_of", "noun_of", "takes_equal"]

KINDS = {
    "image": "ratchet.kinds.image.kind:Images",
    "table": "ratchet.kinds.table.kind:Tables",
    "text": "ratchet.kinds.text.kind:Texts",
    "tokens": "ratchet.kinds.tokens.kind:TokenStreams",
    "arrays": "ratchet.kinds.custom.kind:CustomKind",
}
"""Module and class of each. Only the kind in use is imported: it decides what a model learns, and others do not."""


@cache
def kind_named(name: str) -> Kind[Any]:
    """Return the kind with this name."""
    module, _, kind = KINDS[name].partition(":")
    instance: Kind[Any] = getattr(import_module(module), kind)()
    return instance


def kind_chosen(setting: str) -> Kind[Any]:
    """Return the kind that data.kind means: a name, or package.module:Class of a user's own kind."""
    return kind_named("arrays" if ":" in setting else setting)


def kind_of(spec: Any) -> Kind[Any]:
    """Return the kind of a model's input or of a packed set's."""
    return kind_named(spec.kind)


def noun_of(name: str) -> tuple[str, str]:
    """Return the words for one sample and for several of a kind; of an unknown one, "sample" and "samples"."""
    return kind_named(name).noun if name in KINDS else Kind.noun


def takes_equal(first: Any, second: Any) -> bool:
    """Return whether two models take the same arrays for a raw value."""
    return first.kind == second.kind and kind_of(first).is_equal(first, second)
