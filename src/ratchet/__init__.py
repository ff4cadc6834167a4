"""Ratchet: a PyTorch training pipeline that registers a model only if it is measurably better."""

from importlib import import_module

__all__ = ["__version__"]

__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    """Find `ratchet.open` and `ratchet.new` when they are used: they are above the library, and import much."""
    if name in ("new", "open"):
        return getattr(import_module(".api", "commands"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name, obj=None)
