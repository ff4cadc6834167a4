"""Ratchet: a PyTorch training pipeline that registers a model only if it is measurably better."""

__all__ = ["__version__"]

__version__ = "0.1.0"
